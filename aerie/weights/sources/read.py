"""The manifest of a source, whatever kind it is."""

from aerie.lock import WeightsModel
from aerie.weights.manifest import File, Manifest, Source

from . import bucket, folder, hub, web
from .content import Say

__all__ = ["Say", "read"]


def read(name: str, model: WeightsModel, *, endpoint: str = "", say: Say = lambda line: None) -> Manifest:
    """The manifest of the model `name` as its source has it now; nothing is written.

    endpoint: address of the hub, "" for the library's own. say: gets a line where reading takes time: hashes that a
    source does not tell are made by reading every byte once. Raises AerieError with what is wrong, what the source
    said, and what to do.
    """
    revision, files = "", tuple[File, ...]()
    if model.source == "hub":
        revision, files = hub.files(model.location, model.revision, endpoint)
    elif model.source == "http":
        files = web.files(model.location, say)
    elif model.source == "s3":
        files = bucket.files(model.location, say)
    else:
        files = folder.files(model.location, say)
    source = Source(kind=model.source, location=model.location, revision=revision)
    return Manifest(model=name, source=source, files=files)
