"""What differs in what engines run as and listen on."""

from collections.abc import Iterator
from functools import partial

from aerie.snapshot import EngineService, Limits

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
    services = known(engine.services) or ()
    for id_, seen, expected in (
        ("engine.service-failed", _failed, "running"),
        ("engine.service-down", _down, "the engine running, and the front before it"),
        ("engine.restarting", _restarting, "no restart since it was started"),
        ("engine.limits-low", partial(_limits, case), "the lock's limits"),
        ("engine.key-open", _key, "600, of root"),
    ):
        found = [(service, words) for service in services if (words := seen(service))]
        if found:
            words = "; ".join(f"{service.model}: {words}" for service, words in found)
            first = found[0][0]
            yield case.finding(
                id_, seen=words, expected=expected, model=first.model, engine=first.engine, unit=first.unit
            )
    yield from _busy(case, {service.unit for service in services})


def _is_allowed(socket: str, bind: str) -> bool:
    address = socket.rpartition(":")[0].strip("[]")
    return bind in ("0.0.0.0", "::") or address == bind or address == "::1" or address.startswith("127.")


def _failed(service: EngineService) -> str:
    return f"{service.unit} {service.active} ({service.result})" if service.active == "failed" else ""


def _down(service: EngineService) -> str:
    if service.active == "failed":
        return ""
    if service.active not in ("active", "activating", "reloading"):
        return f"{service.unit} {service.active or 'not there'}"
    return "" if service.front_active == "active" else f"aerie-front.service {service.front_active or 'not there'}"


def _restarting(service: EngineService) -> str:
    is_up = service.active in ("active", "activating")
    return f"{service.restarts} restarts, {service.active}" if is_up and service.restarts else ""


def _limits(case: Case, service: EngineService) -> str:
    if service.limits is None:
        return ""
    wanted = {name: int(getattr(case.lock.base, name)) for name in Limits.__dataclass_fields__}
    low = {name: getattr(service.limits, name) for name in wanted}
    return ", ".join(
        f"{name} {value}" for name, value in low.items() if value is not None and not 0 <= wanted[name] <= value
    )


def _key(service: EngineService) -> str:
    mode = known(service.key_mode)
    return "" if mode in (None, "600 0") else f"mode {mode.replace(' ', ', owner ')}"


def _busy(case: Case, units: set[str]) -> Iterator[Finding]:
    """Strangers on the GPUs of a host that serves; jobs of a host that serves nothing are nobody's business."""
    gpus = known(case.snapshot.gpus) or ()
    strangers = {
        f"GPU {gpu.index}: {process.unit or process.name} (pid {process.pid})"
        for gpu in gpus
        for process in known(gpu.processes) or ()
        if process.unit not in units
    }
    if units and strangers:
        yield case.finding("engine.gpus-busy", seen="; ".join(sorted(strangers)), expected=", ".join(sorted(units)))
