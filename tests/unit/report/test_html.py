"""The page: one file, no network, every number with its evidence; from everything or from little."""

import re
from html.parser import HTMLParser
from typing import ClassVar
from xml.etree import ElementTree

import pytest

from aerie.report import html
from tests.unit import recorded

MAX_BYTES = 2_000_000


class Page(HTMLParser):
    """Collects what could load something, the links, and whether tags nest."""

    VOID: ClassVar[set[str]] = {"meta", "br", "img", "hr", "input", "link"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.titles: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "srcset", "data", "poster", "xlink:href")]
        if tag == "a":
            self.links.append(given["href"])
            self.titles[given["href"]] = given.get("title") or self.titles.get(given["href"], "")
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag


@pytest.fixture(scope="module")
def text(summary, evidence):
    return html.page(summary, evidence)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_it_loads_nothing(text, page):
    assert page.loads == []
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert "@import" not in text
    assert "url(" not in text
    assert [link for link in page.links if re.match(r"[a-z]+:|//", link)] == []
    assert "://" not in text


def test_it_is_small(text):
    assert len(text.encode()) < MAX_BYTES


def test_it_says_what_worked_and_what_to_try_next(text):
    assert "<li>hidden states of the engine against the reference: mean 0.0058, limit 0.02</li>" in text
    assert "<td>1. serve with the fine-tuned drafter</td>" in text
    assert "Not measured" not in text


def test_the_decision_comes_first(text):
    order = [
        "Decision",
        "Speed-up, one user",
        "Numbers",
        "How it was measured",
        ">Steps<",
        "What worked, what failed, what to try next",
        "What this run cannot decide",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_numbers_link_to_evidence_and_its_whole_hash(text, page, summary):
    files = {one["path"]: one["sha256"] for one in summary["evidence"].values()}
    assert set(page.links) == {*files, "report.json"}
    missing = [path for path, digest in files.items() if digest not in page.titles[path] and digest not in text]
    assert missing == []
    for number, step in (("2.346", "control"), ("0.0058", "parity"), ("1.65", "cost"), ("44.9%", "control")):
        link = re.search(
            rf'<a class="n" href="([^"]+)" title="evidence of {step}, sha256 [0-9a-f]{{64}}">{number}</a>', text
        )
        assert link and link[1] == summary["evidence"][step]["path"], number


def test_plots_are_xml_with_title_and_description(text):
    plots = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(plots) == 6  # acceptance, throughput, three losses, timeline
    for plot in plots:
        tree = ElementTree.fromstring(plot)
        names = tree.attrib["aria-labelledby"].split()
        said = {child.attrib["id"]: child.text for child in tree if "id" in child.attrib}
        assert all(said[name] for name in names)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "steps",
    [[], ["preflight"], ["preflight", "environments", "target"], ["preflight", "target", "serve-base"], ["control"]],
    ids=lambda steps: "+".join(steps) or "nothing",
)
def test_an_unfinished_run_has_a_page(evidence, steps):
    some = {step: evidence[step] for step in steps}
    text = html.page(recorded.summary(some), some)
    Page(text)
    assert "undecided: the run is stopped" in text
    assert "None" not in re.sub(r"<style>.*?</style>", "", text, flags=re.S)


def test_a_missed_expectation_is_on_top(evidence):
    worse = recorded.evidence()
    for run in worse["control"]["arms"]["finetuned"]["runs"]:
        run["counters"] = {
            "verify_steps": 600,
            "proposed": 1800,
            "accepted": 500,
            "accepted_by_position": [300, 150, 50],
        }
    worse = recorded.evidence(control=worse["control"])
    text = html.page(recorded.summary(worse), worse)
    assert "Expectation missed:</strong> τ of the fine-tuned drafter 1.833, expected at least 2.3" in text


def test_text_from_evidence_is_escaped(evidence):
    hostile = {**evidence, "preflight": {**evidence["preflight"], "machine": "<script>alert(1)</script>"}}
    assert "<script>" not in html.page(recorded.summary(hostile), hostile)


def test_it_names_the_gpus_that_served(evidence):
    cards = [{"name": "NVIDIA H200"}]
    host = evidence["preflight"] | {"gpus": {"cards": cards, "driver": "580.159.04"}, "device": {"count": 1}}
    text = html.page(recorded.summary(evidence | {"preflight": host}), evidence)
    assert "on 1 x NVIDIA H200." in text
    assert "1 x NVIDIA H200, driver 580.159.04; " in text


def test_accuracy_on_samples_that_were_held_out_has_a_column_of_its_own(evidence):
    trained, held_out = [0.9, 0.8, 0.7], [0.611, 0.522, 0.433]
    some = evidence | {"finetune": evidence["finetune"] | {"accuracy": trained, "eval_accuracy": held_out}}
    text = html.page(recorded.summary(some), some)
    rows = [row for row in re.findall(r"<tr>.*?</tr>", text, re.S) if ">0.9</a>" in row or ">0.900</a>" in row]
    cells = re.findall(r'<td class="num">(.*?)</td>', rows[-1], re.S)
    assert [re.findall(r">([0-9.]+)</a>", cell) for cell in cells[-2:]] == [
        ["0.900", "0.800", "0.700"],
        ["0.611", "0.522", "0.433"],
    ]


def test_it_says_which_epoch_was_kept_and_why_the_training_ended(evidence):
    ended = {
        "epochs": 5,
        "epochs_done": 3,
        "ended": "the last 2 evaluations had no gain",
        "kept": {"step": 190, "epoch": 1},
        "eval_tau": [[190, 2.5], [380, 2.4], [570, 2.3]],
    }
    some = evidence | {"finetune": evidence["finetune"] | ended}
    text = " ".join(re.sub(r"<[^>]+>", "", html.page(recorded.summary(some), some)).split())
    assert (
        "3 of 5 epochs: the last 2 evaluations had no gain, and the weights of epoch 1 were kept; "
        "τ on the held-out samples by epoch: 2.500, 2.400, 2.300" in text
    )
    older = " ".join(re.sub(r"<[^>]+>", "", html.page(recorded.summary(evidence), evidence)).split())
    assert "2 of 2 epochs finetune" in older
