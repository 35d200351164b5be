"""The shape of bench.json, which `bench --json` prints too. Within a version only keys are added."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["BenchDocument"]

Share = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)  # unknown keys are allowed: readers are to ignore them


class MachineDocument(_Part):
    """Where the client ran."""

    machine: str
    python: str


class ArmDocument(_Part):
    """One server, and what it said of itself; empty where it does not tell."""

    url: str
    gpus: list[int] = Field(description="indexes on the client's machine; empty where they are not known")
    model: str
    engine: str
    version: str
    arguments: dict[str, Any] = Field(description="plain ones alone, without secrets")


class SpreadDocument(_Part):
    """Over repetitions."""

    median: float
    min: float
    max: float


class QuantilesDocument(_Part):
    """Over requests, by nearest rank."""

    count: int
    mean: float
    median: float
    p90: float
    p95: float
    p99: float


class CountersDocument(_Part):
    """Speculation as counts, before any division."""

    verify_steps: int
    proposed: int
    accepted: int
    accepted_by_position: list[int]


class LoadDocument(_Part):
    """What the client itself used, the most of any repetition."""

    cpu_share: float = Field(description="of one core")
    loop_lag_p99_ms: float
    bound: bool = Field(description="a faster client would have measured more")


class RowDocument(_Part):
    """One arm at one temperature and concurrency, all repetitions together. Rates leave out requests that failed."""

    arm: str
    temperature: float
    concurrency: int
    repetitions: int
    requests: int
    failed: int
    first_error: str
    output_tokens: int
    gpus: int = Field(description="0 where they are not known")
    bursts: int = Field(description="answers whose chunks came together, which have no TPOT")
    is_counted: bool = Field(description="the server counted the tokens of every chunk")
    request_rate: SpreadDocument | None = Field(description="per second")
    tok_s: SpreadDocument | None = Field(description="of all users")
    tok_s_user: SpreadDocument | None = Field(description="of one user, without each request's first chunk")
    tok_s_gpu: float | None
    ttft_ms: QuantilesDocument | None = Field(description="to the first token")
    tpot_ms: QuantilesDocument | None = Field(description="per token after the first chunk")
    itl_ms: QuantilesDocument | None = Field(description="between arrivals")
    e2e_ms: QuantilesDocument | None = Field(description="the whole request")
    good_share: Share | None = Field(description="requests within limits_ms; null without limits")
    good_rate: float | None = Field(description="of those, per second")
    joules_per_token: float | None
    cached_share: Share | None = Field(description="of prompt tokens, from the server's prefix cache")
    tau: float | None = Field(description="accept length, 1 + accepted / verify_steps; null where nothing drafts")
    accept_rate: Share | None = Field(description="accepted / proposed")
    accept_by_position: list[Share] | None
    counters: CountersDocument | None
    client: LoadDocument


class RatioDocument(_Part):
    """The other arm's time over the first one's: below 1 is faster. low and high hold 95 % of the resamples."""

    ratio: float
    low: float
    high: float
    clear: bool = Field(description="the interval leaves out 1")


class ComparisonDocument(_Part):
    """Two arms at one temperature and concurrency, each prompt compared with itself."""

    first: str
    other: str
    temperature: float
    concurrency: int
    prompts: int = Field(description="that both answered")
    few: bool = Field(description="too few for the interval to be trusted")
    ttft: RatioDocument | None
    tpot: RatioDocument | None
    e2e: RatioDocument | None
    e2e_token: RatioDocument | None = Field(default=None, description="the whole request over its tokens")
    same_outputs: Share | None = Field(description="null at a temperature above 0")


class ChoiceDocument(_Part):
    """The fastest number of draft tokens at one temperature and concurrency, by the time of a whole request per token.

    Ratios are of times over the best arm's: above 1 it is that many times as fast.
    """

    temperature: float
    concurrency: int
    best: str
    smallest: str
    over_smallest: RatioDocument | None = Field(description="null where the smallest is the best")
    next: str
    over_next: RatioDocument | None
    tied: list[str] = Field(description="arms that are not proven to be slower, by interval, drift or too few prompts")
    clear: bool = Field(description="none is tied")


class SweepDocument(_Part):
    """How one service was measured with several numbers of draft tokens, one after the other."""

    host: str
    model: str
    drafter: str
    present: str = Field(description="the arm that served before, and serves again")
    again: str = Field(description='the arm of its second measurement, at the end; "" where there is none')
    order: list[str] = Field(description="arms as they were measured")
    drift: list[ComparisonDocument] = Field(description="that second measurement against the first")
    choices: list[ChoiceDocument]
    way_back: str = Field(description="the command that leads back to what served before, while the sweep is at work")
    ended: str = Field(description='why not every arm was measured; ""')
    left: str = Field(description='why what served before does not serve again; ""')
    settings: dict[str, str] = Field(description="by arm, the command that serves it")


class BenchDocument(_Part):
    """What `bench --json` prints, and bench.json holds."""

    schema_: Literal["aerie.bench/1"] = Field(alias="schema")
    started_at: str = Field(description="UTC, ISO 8601")
    client: MachineDocument
    api: str
    prompts: int
    max_tokens: int
    ignore_eos: bool
    repetitions: int
    limits_ms: dict[str, float] = Field(description="that make a request good, by ttft, tpot or e2e")
    arms: dict[str, ArmDocument]
    rows: list[RowDocument]
    comparisons: list[ComparisonDocument]
    sweep: SweepDocument | None = Field(default=None, description="of bench.sweep; else null")
