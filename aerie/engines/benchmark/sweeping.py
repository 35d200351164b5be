"""A sweep over numbers of draft tokens on a host: its service is changed to each, measured there, and put back."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from aerie import remote
from aerie.engines.benchmark import best, document, sweep
from aerie.engines.benchmark.endpoint import Endpoint, Served
from aerie.engines.benchmark.hosts import measure_on
from aerie.engines.benchmark.running import Level, Measured, Spec
from aerie.engines.service import serving
from aerie.engines.service.onhost.definition import Service, Slot
from aerie.engines.service.planning import Action, Prepared, ServePlan
from aerie.engines.service.status import Status, look
from aerie.engines.service.variants import Variants
from aerie.errors import AerieError

__all__ = ["take"]

PATIENCE_S = 600.0  # a host that is not reached for so long is left as it is, and the way back told
AGAIN_S = 5.0


def take(
    variants: Variants, spec: Spec, listener: serving.Listener = lambda phase, seconds: None
) -> tuple[document.Result, int]:
    """The measurement of every k, and the exit code; what served before serves again, or the result says why not.

    spec: without endpoints. listener: as serving.serve has it, here with the whole sweep's seconds. The arguments of
    all are held against the engine's own parser before anything is changed. Raises AerieError where the host is taken,
    or not even what serves could be measured, and KeyboardInterrupt where it was interrupted by then.
    """
    began, started_at = time.monotonic(), document.now()

    def tell(phase: str) -> None:
        listener(phase, time.monotonic() - began)

    with serving.hold(variants.now.host, "bench.sweep"):
        tell("asking the engine's own parser")
        serving.check_arguments(variants.ground.host, list(variants.services.values()))
        bench = _OnHost(variants, spec, tell)
        walked = sweep.walk(variants.present, list(variants.services), bench, tell, variants.way_back)
    if not walked.measured and walked.ended:
        raise walked.ended
    result = _result(variants, replace(spec, endpoints=bench.endpoints(walked)), walked, started_at)
    return result, walked.exit_code or result.exit_code


@dataclass(frozen=True)
class _OnHost:
    """The host as sweep.Bench."""

    variants: Variants
    spec: Spec
    tell: Callable[[str], None]

    def service(self, tokens: int) -> Service:
        return self.variants.current if tokens == self.variants.present else self.variants.services[tokens]

    def serve(self, tokens: int) -> None:
        self.tell(f"k{tokens}: changing to it")
        self._change(self.service(tokens), self.variants.away)

    def measure(self, tokens: int, arm: str) -> Measured:
        requests = len(self.spec.questions) * len(self.spec.temperatures) * len(self.spec.concurrency)
        self.tell(f"{arm}: measuring, {requests * self.spec.repetitions} requests or more")
        ground = self.variants.ground
        _, measured = measure_on(ground.host.name, self.variants.now.model, self.spec, ground.inventory, arm)
        now = look(ground.host, self.variants.now.model)
        if now.live is None or now.services[now.live] != self.service(tokens):
            raise AerieError(
                f"host {now.host}: {now.model}",
                seen=f"{now.services[now.live].words} at the end of measuring" if now.live else "nothing that serves",
                expected=f"{self.service(tokens).words}, as at its beginning",
                remedy="Somebody changed the service meanwhile; start the sweep again.",
            )
        return measured

    def back(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._back()
            except remote.Unreachable as error:
                if time.monotonic() > end:
                    raise
                self.tell(f"going back: {error.seen}; tried again for at most {PATIENCE_S:g} s")
                time.sleep(AGAIN_S)

    def _back(self) -> None:
        variants, host = self.variants, self.variants.ground.host
        now = look(host, variants.now.model)
        if now.job == "running":  # of a change that was interrupted here; it goes on there
            self.tell("waiting for the end of the change at work")
            plan = ServePlan(host=host.name, model=now.model, action=Action.ATTACH, slot=None, wanted=None, now=now)
            with suppress(AerieError):  # however it ended, what serves now is looked at
                serving.change(self._prepared(plan), self._listen)
            now = look(host, now.model)
        self._require_ours(now)
        home, away = variants.home, variants.away
        if now.live != home or now.services.get(home) != variants.current or not now.is_serving:
            self.tell(f"going back to {variants.current.words}")
            self._change(variants.current, home)
        was = variants.now.services.get(away)
        if was and variants.now.previous == away and look(host, now.model).services.get(away) != was:
            self.tell(f"filling {away} as it was, for --rollback")
            try:
                serving.fill(self._prepared(self._plan(was, away)))
            except AerieError as error:  # what served before serves, which is what counts
                self.tell(f"{away} was not filled, so --rollback does not lead to {was.words}: {error.seen}")

    def _require_ours(self, now: Status) -> None:
        """What somebody else serves, or stopped, meanwhile is left alone."""
        known = [self.variants.current, *self.variants.services.values()]
        is_stopped = now.live is None and (now.state["last"] or {}).get("outcome") == "stopped"
        if is_stopped or (now.live and now.services[now.live] not in known):
            raise AerieError(
                f"host {now.host}: {now.model}",
                seen=f"somebody else serves {now.services[now.live].words}" if now.live else "somebody else stopped it",
                expected="the sweep alone at work",
                remedy="It was left so.",
            )

    def _change(self, service: Service, slot: Slot) -> None:
        ended = serving.change(self._prepared(self._plan(service, slot)), self._listen)
        if ended.exit_code:
            raise AerieError(
                f"host {ended.host}: {service.words}",
                seen=ended.change["why"] if ended.change else "nothing",
                expected="a service that generates, and drafts where it has a drafter",
                remedy=f"Its log: ./invoke serve --host {ended.host} --model {ended.model} --status names it.",
            )

    def _plan(self, service: Service, slot: Slot) -> ServePlan:
        host, model = self.variants.ground.host, self.variants.now.model
        now = look(host, model)
        return ServePlan(host=host.name, model=model, action=Action.CHANGE, slot=slot, wanted=service, now=now)

    def _prepared(self, plan: ServePlan) -> Prepared:
        # Not tried: nobody is led to it to stay, and what it accepts is measured anyway. What served before was good.
        ground = self.variants.ground
        return Prepared(plan=plan, inventory=ground.inventory, host=ground.host, lock=ground.lock, is_tried=False)

    def _listen(self, phase: str, seconds: float) -> None:
        self.tell(phase)

    def endpoints(self, walked: sweep.Walked) -> tuple[Endpoint, ...]:
        """Arms by k, the smallest first, with which the others are compared."""
        tokens = {sweep.arm_of(one): one for one in (self.variants.present, *self.variants.services)}
        arms = sorted(walked.measured, key=lambda arm: (arm not in tokens, tokens.get(arm)))
        return tuple(Endpoint(name=arm, url=self._url(tokens.get(arm, self.variants.present))) for arm in arms)

    def _url(self, tokens: int) -> str:
        slot = self.variants.home if tokens == self.variants.present else self.variants.away
        return f"http://127.0.0.1:{self.service(tokens).port_of(slot)}"


def _result(variants: Variants, spec: Spec, walked: sweep.Walked, started_at: str) -> document.Result:
    served: dict[str, Served] = {}
    gpus: dict[str, tuple[int, ...]] = {}
    levels: list[Level] = []
    for one in spec.endpoints:
        of_arm = walked.measured[one.name]
        served |= of_arm[0]
        gpus |= of_arm[1]
        levels += of_arm[2]
    tokens = {sweep.arm_of(one): one for one in (variants.present, *variants.services)}
    present = sweep.arm_of(variants.present)
    again = present + sweep.AGAIN if present + sweep.AGAIN in walked.measured else ""
    moved = best.drift(levels, present, again)
    found = best.Sweep(
        host=variants.now.host,
        model=variants.now.model,
        drafter=variants.drafter,
        order=tuple(walked.measured),
        present=present,
        again=again,
        drift=moved,
        choices=best.choose(levels, tokens, moved, present),
        settings={arm: variants.setting(one) for arm, one in sorted(tokens.items(), key=lambda pair: pair[1])},
        way_back=variants.way_back,
        ended=walked.why,
        left=walked.left,
    )
    made = document.result_of(started_at, spec, {}, (served, gpus, levels))
    return replace(made, sweep=found)
