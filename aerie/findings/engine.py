"""What differs in what engines run as and listen on."""

from collections.abc import Iterator

from .case import Case, known
from .model import Finding

__all__ = ["judge"]

NO_SHELLS = ("/usr/sbin/nologin", "/sbin/nologin", "/bin/false", "/usr/bin/false")


def judge(case: Case) -> Iterator[Finding]:
    """The findings of the layer engine."""
    engine, lock = case.snapshot.engine, case.lock.engine
    if engine.user is None:
        yield case.finding("engine.user-missing", seen=f"no account {lock.user}", expected=f"account {lock.user}")
    elif engine.user_shell not in NO_SHELLS:
        yield case.finding("engine.user-shell", seen=str(engine.user_shell), expected=NO_SHELLS[0])
    elsewhere = [socket for socket in known(engine.listening) or () if not _is_allowed(socket, lock.bind)]
    if elsewhere:
        yield case.finding("engine.bind-open", seen=", ".join(elsewhere), expected=lock.bind, bind=lock.bind)


def _is_allowed(socket: str, bind: str) -> bool:
    address = socket.rpartition(":")[0].strip("[]")
    return bind in ("0.0.0.0", "::") or address == bind or address == "::1" or address.startswith("127.")
