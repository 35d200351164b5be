"""A stand-in of NVIDIA's package repository, signed and laid out like it, that can go wrong on demand."""

from .build import Repository, build, distro_of
from .service import MODES, chosen, mode, start, stop, uri

__all__ = ["MODES", "Repository", "build", "chosen", "distro_of", "mode", "start", "stop", "uri"]
