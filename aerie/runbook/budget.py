"""What a step will take: said before it runs, from its values, and from what was measured when it ran before."""

from dataclasses import dataclass

__all__ = ["Budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one run of a step takes at the most. 0 is "no more than any program".

    ram_bytes: of the host's memory, page cache that must stay included; gpu_bytes: on each GPU, of `gpus` of them;
    seconds: None where nobody can say yet. basis: a sentence for each number, with where it comes from; smaller: what
    would make it take less, for a plan that does not fit.

    A step's module may have `budget(profile, measured) -> Budget`: the whole profile, for what is only counted makes no
    result stale; measured: the evidence of the step's newest result on this host, whatever its values were, None where
    it never came to its end. It reads no file and asks no host.
    """

    disk_bytes: int = 0
    ram_bytes: int = 0
    gpu_bytes: int = 0
    gpus: int = 0
    seconds: float | None = None
    basis: tuple[str, ...] = ()
    smaller: tuple[str, ...] = ()
