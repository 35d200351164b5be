"""The one door to a host: run a program there, put a file there, read its snapshot; over ssh, or locally."""

from .exchange import Result
from .failures import Unreachable
from .probing import Unprobed, probe, probe_all
from .running import put, run
from .session import Session

__all__ = ["Result", "Session", "Unprobed", "Unreachable", "probe", "probe_all", "put", "run"]
