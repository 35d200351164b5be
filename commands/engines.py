"""The task `engines`: what the capability table says."""

from invoke import Context, task

from .screen import JSON, show

__all__ = ["engines"]


@task(
    auto_shortflags=False,
    help={
        "for_": "model: kimi-k2.5 (default), deepseek-v3, llama",
        "arch": "sm120 (default), sm100, sm90 or cpu",
        "engine": "only this one: vllm or sglang",
        "json": JSON,
    },
)
def engines(c: Context, for_: str = "kimi-k2.5", arch: str = "sm120", engine: str = "", json: bool = False) -> None:
    """Show which engine can serve a model on a card, with a drafter or without, and why not."""
    from aerie.engines import capability
    from aerie.report import engines as report

    found = capability.survey(for_, arch, engine)
    show(report.survey_view(found, for_, arch), report.survey_document(found, for_, arch), json=json)
