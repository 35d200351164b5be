"""A stand-in of a model hub, over real http, that can go wrong on demand."""

from .faults import KINDS, Fault
from .models import model, write_model
from .service import Hub, serve
from .spec import BUCKET, MEMBER, STRANGER

__all__ = ["BUCKET", "KINDS", "MEMBER", "STRANGER", "Fault", "Hub", "model", "serve", "write_model"]
