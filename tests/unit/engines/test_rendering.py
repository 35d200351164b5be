"""The engine renders the prompts anew: the same tokens, or the first position where it has another one."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerie.eagle3 import rendering
from aerie.engines.adapter import adapter
from aerie.errors import AerieError

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "Hi", "input_ids": [1, 72, 105, 3]},
    {"id": "b", "messages": [{"role": "user", "content": "Yo"}], "input_ids": [1, 89, 111, 3]},
]


@dataclass
class Renders:
    """What the server says to a chat: its bytes between 1 and `end`."""

    end: list[int] = field(default_factory=lambda: [3])
    asked: list[dict[str, Any]] = field(default_factory=list)
    server: Any = None

    def tokens(self, body: dict[str, Any]) -> list[int]:
        self.asked.append(body)
        return [1, *body["messages"][-1]["content"].encode(), *self.end]


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[Renders]:
    renders = Renders()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps({"tokens": renders.tokens(body), "count": 0}).encode()
            self.send_response(200 if self.path == "/tokenize" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    launch = SimpleNamespace(adapter=adapter(request.param))
    renders.server = SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}", launch=launch)
    yield renders
    server.shutdown()
    server.server_close()


def check(folder: Path, engine: Renders, options: dict[str, Any]) -> Any:
    file = folder / "prompts.held.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return asyncio.run(rendering.check(engine.server, [file, file], options))


def test_prompts_that_render_alike_are_counted_and_the_options_sent(engine: Renders, tmp_path: Path) -> None:
    assert check(tmp_path, engine, {"thinking": False}) == {"prompts": 4, "tokens": 16}
    assert [one["messages"][-1]["content"] for one in engine.asked] == ["Hi", "Yo"] * 2
    assert {json.dumps(one["chat_template_kwargs"]) for one in engine.asked} == {'{"thinking": false}'}


def test_prompts_with_an_answer_among_their_turns_are_rendered_too(engine: Renders, tmp_path: Path) -> None:
    def row(number: int, *earlier: dict[str, str]) -> dict[str, Any]:
        last = {"role": "user", "content": f'"assistant" {number}'}
        return {"id": str(number), "messages": [*earlier, last], "input_ids": [1, *last["content"].encode(), 3]}

    turns = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
    lines = [row(number) for number in range(30)] + [row(number, *turns) for number in range(30, 60)]
    file = tmp_path / "prompts.train.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert asyncio.run(rendering.check(engine.server, [file], {}))["prompts"] == 16
    assert [len(one["messages"]) for one in engine.asked] == [1] * 8 + [3] * 8


@pytest.mark.parametrize(
    ("end", "position", "seen"),
    [([4], 3, r"\[1, 72, 105, 4\]"), ([3, 9], 4, r"\[72, 105, 3, 9\]"), ([], 3, r"\[1, 72, 105\]")],
    ids=["another-token", "one-more", "one-less"],
)
def test_the_first_position_that_differs_is_named(
    engine: Renders, tmp_path: Path, end: list[int], position: int, seen: str
) -> None:
    engine.end = end
    with pytest.raises(AerieError, match=rf"prompt a, position {position}: .*{seen} by the engine"):
        check(tmp_path, engine, {})
