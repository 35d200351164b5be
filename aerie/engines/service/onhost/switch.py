"""Changes what serves a model: the new slot starts, proves itself, and the front leads to it; or all is as before."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aerie.errors import AerieError
from aerie.weights.onhost import warm

from . import asking, front, regression, state, trial, units
from .definition import CONFIGURATION, Service, Slot, load, unit_of
from .state import Change, State

__all__ = ["Switch", "can_stand_beside", "key_of", "smoke"]

SMOKE_TOKENS: Final = 24
DRAIN_S: Final = 120.0  # a long answer of the slot before may go on for that long

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A change of one model to the slot `to`. say: is told every phase.

    accept_fall: serve it also where its acceptance fell, which is told all the same. is_tried: False serves it without
    the trial, and what it accepts is no reference for later ones: for who serves it only to measure it.
    """

    model: str
    to: Slot
    say: Say
    accept_fall: bool = False
    is_tried: bool = True

    def run(self) -> Change:
        """Make it, or leave what was there serving; the receipt is written either way.

        Raises AerieError where the slot is empty; whatever else goes wrong is in the receipt.
        """
        began, before = time.monotonic(), state.read(self.model)
        new = _filled(self.model, self.to)
        old = load(self.model, before.live) if before.live and before.live != self.to else None
        old_slot = before.live if old else None
        try:
            verdict = self._replace(new, old, old_slot)
        except Exception as error:  # whatever it was, what served before is to serve again
            return self._go_back(before, new, old, old_slot, _words(error), began)
        if verdict:
            regression.keep(self.model, verdict.run)
        change = self._change("switched", new, old, "", began, verdict)
        state.write(before.after(change, live=self.to, previous=old_slot or before.previous))
        units.enable(unit_of(self.model, self.to), at_boot=True)
        if old_slot:
            units.enable(unit_of(self.model, old_slot), at_boot=False)
        if old and old_slot:
            self._retire(old, old_slot)
        return change

    def _replace(self, new: Service, old: Service | None, old_slot: Slot | None) -> regression.Verdict | None:
        if old and old_slot and not can_stand_beside(new):
            self.say(f"stopping {old_slot}: there is no room for both")
            units.stop(unit_of(self.model, old_slot))
        units.stop(unit_of(self.model, self.to))  # one that a change left which was killed, or the same slot anew
        self.say(f"starting {self.to}: {new.words}")
        units.start(unit_of(self.model, self.to))
        self.say(f"trying {self.to}")
        key = key_of(self.model)
        url = f"http://127.0.0.1:{new.port_of(self.to)}"
        smoke(new, url, key)
        verdict = self._hold_against_the_last(new, url, key) if new.drafter and self.is_tried else None
        self.say("leading the front to it")
        front.point(new, self.to)
        _through_the_front(new, key)
        return verdict

    def _hold_against_the_last(self, new: Service, url: str, key: str) -> regression.Verdict:
        self.say(f"measuring its acceptance on {trial.COUNT} prompts")
        verdict = regression.judge(trial.measure(new, url, key), regression.good_runs(self.model))
        self.say(verdict.words)
        if verdict.fell and not self.accept_fall:
            raise AerieError(
                url,
                seen=f"engine.acceptance-fell: {verdict.words}",
                expected="no less accepted than in the last good run",
                remedy=(
                    "Serve what it was before, and look into what changed (./invoke bench asks the same prompts). "
                    "Where less is meant to be accepted: ./invoke serve … --accept-fall."
                ),
            )
        return verdict

    def _go_back(
        self, before: State, new: Service, old: Service | None, old_slot: Slot | None, why: str, began: float
    ) -> Change:
        self.say(f"going back: {why.splitlines()[0][:200]}")
        units.stop(unit_of(self.model, self.to))
        if old is None or old_slot is None:
            front.lead(self.model, None)
            change = self._change("failed", new, old, why, began)
            state.write(before.after(change, live=None))
            return change
        try:
            units.systemctl("start", unit_of(self.model, old_slot))  # nothing to do where it never stopped
            front.point(old, old_slot)
            _through_the_front(old, key_of(self.model))
        except AerieError as error:
            change = self._change("failed", new, old, f"{why}\nand {old_slot} did not come back: {error}", began)
        else:
            change = self._change("kept", new, old, why, began)
        # What the slot held before, for the way back, is not there any more.
        state.write(before.after(change, previous=None if before.previous == self.to else before.previous))
        return change

    def _retire(self, old: Service, slot: Slot) -> None:
        url, end = f"http://127.0.0.1:{old.port_of(slot)}", time.monotonic() + DRAIN_S
        try:
            while asking.running(url) > 0 and time.monotonic() < end:
                self.say(f"waiting for the last answers of {slot}")
                time.sleep(1)
        except AerieError:
            pass  # it is gone, or stopped already
        units.stop(unit_of(self.model, slot))

    def _change(
        self,
        outcome: str,
        new: Service,
        old: Service | None,
        why: str,
        began: float,
        verdict: regression.Verdict | None = None,
    ) -> Change:
        return Change(
            at=state.now(),
            outcome=outcome,  # type: ignore[arg-type]  # the three words above
            to=f"{self.to}: {new.words}",
            before=old.words if old else "",
            why=why,
            seconds=round(time.monotonic() - began, 1),
            acceptance=verdict.to_dict() if verdict else None,
        )


def smoke(service: Service, url: str, key: str) -> None:
    """Raises AerieError unless it generates, and verifies drafts where it has a drafter."""
    name = service.draft_counter
    before = asking.counter(url, name) if name else 0.0
    try:
        asking.generate(url, service.model, key, SMOKE_TOKENS)
    except asking.NotYet as error:
        raise AerieError(url, seen=str(error), expected="a generation", remedy="See the unit's journal.") from error
    if name and asking.counter(url, name) <= before:
        raise AerieError(
            url,
            seen=f"{name} still {before:g} after {SMOKE_TOKENS} tokens",
            expected="verify steps of the drafter",
            remedy="The engine serves without its drafter: see its log for the speculative configuration.",
        )


def can_stand_beside(service: Service, meminfo: Path = Path("/proc/meminfo"), limit_bytes: int | None = None) -> bool:
    """Has the host memory for the service beside what runs? Never where it takes the GPUs.

    limit_bytes: of the control group, read where it is left out.
    """
    if service.beside_bytes == 0:
        return False
    rows = dict(line.partition(":")[::2] for line in meminfo.read_text().splitlines())
    available = int(rows["MemAvailable"].split()[0]) << 10
    most = warm.memory_bytes() if limit_bytes is None else limit_bytes
    return min(available, most) >= service.beside_bytes


def key_of(model: str) -> str:
    """The key that the model's engines ask for."""
    return (CONFIGURATION / model / "api-key").read_text().strip()


def _through_the_front(service: Service, key: str) -> None:
    end = time.monotonic() + 10  # nginx's new workers take the socket some milliseconds after the reload
    url = front.address(service)
    while True:
        try:
            asking.generate(url, service.model, key, 1)
        except asking.NotYet as error:
            if time.monotonic() > end:
                raise AerieError(
                    url, seen=str(error), expected="the engine behind it", remedy="See journalctl -u aerie-front."
                ) from error
            time.sleep(0.1)
        else:
            return


def _filled(model: str, slot: Slot) -> Service:
    service = load(model, slot)
    if service is None:
        raise AerieError(
            f"{model}, slot {slot}", seen="empty", expected="a service", remedy="Run ./invoke serve, which fills one."
        )
    return service


def _words(error: Exception) -> str:
    if not isinstance(error, AerieError):
        return f"{type(error).__name__}: {error}"
    return "\n".join(part for part in (str(error.seen), error.remedy) if part)
