"""The address that clients use: nginx leads it to the live slot, and goes on with open answers while it is led anew."""

from pathlib import Path
from typing import Final

from aerie.runbook.step import write_atomic

from . import units
from .definition import CONFIGURATION, FRONT, Service, Slot

__all__ = ["address", "lead", "point"]

FOLDER: Final = CONFIGURATION / "front.d"
# What serves clients and measures it. Engines have more, some of which change them: those are for the host itself.
OPEN: Final = "v1/|generate$|health$|metrics$|tokenize$|version$|get_model_info$|get_server_info$|server_info$"

SERVER: Final = """\
# Written by aerie when it changed what serves {model}: {words}.
server {{
    listen {front};
    location ~ "^/({open})" {{
        proxy_pass http://127.0.0.1:{port};
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $host;
    }}
    location / {{
        return 404;
    }}
}}
"""


def address(service: Service) -> str:
    """The front's URL as this host reaches it."""
    host, _, port = service.front.rpartition(":")
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"


def point(service: Service, slot: Slot) -> None:
    """Let the front of the model lead to this slot. An answer that is being given ends where it began.

    Raises AerieError where nginx refuses; it then goes on as it was.
    """
    port = service.port_of(slot)
    text = SERVER.format(model=service.model, words=service.words, front=service.front, open=OPEN, port=port)
    lead(service.model, text)


def lead(model: str, text: str | None) -> None:
    """Write the model's part of the front, or remove it, and have nginx take it; else all is as it was."""
    file = FOLDER / f"{model}.conf"
    before = _read(file)
    _write(file, text)
    try:
        units.systemctl("reload-or-restart", FRONT)
    except BaseException:
        _write(file, before)
        raise


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None


def _write(file: Path, text: str | None) -> None:
    if text is None:
        file.unlink(missing_ok=True)
    else:
        write_atomic(file, text.encode())
