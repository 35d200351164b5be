"""The process that continues a part from a peer: what it writes, and the answers that it writes nothing of."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerie.weights.onhost import backends, piece
from aerie.weights.onhost.backends import Fault
from aerie.weights.onhost.children import Ended

BODY = b"0123456789"
Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that always gives this answer; its address. asked: the ranges that it was asked for."""
    servers = []

    def start(status: int, body: bytes, *, length: int | None = None, content_range: str = "") -> str:
        class Fixed(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                start.asked.append(self.headers["Range"])  # type: ignore[attr-defined]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                if content_range:
                    self.send_header("Content-Range", content_range)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fixed))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/x"

    start.asked = []  # type: ignore[attr-defined]
    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def continued(part: Path, have: bytes, *urls: str, wanted: int = 100, size: int = 10) -> Ended:
    part.write_bytes(have)
    argv = [sys.executable, "-I", "-S", piece.__file__, part, len(have), wanted, size, 60, *urls]
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout + done.stderr)


def test_what_follows_is_appended_and_no_more_than_wanted_is_asked_for(serve: Serve, tmp_path: Path) -> None:
    url = serve(206, BODY[4:7], content_range="bytes 4-6/10")
    assert continued(tmp_path / "part", BODY[:4], url, wanted=3).exit_code == 0
    assert (tmp_path / "part").read_bytes() == BODY[:7]
    assert serve.asked == ["bytes=4-6"]  # type: ignore[attr-defined]


def test_a_part_that_became_a_file_meanwhile_is_found_there(serve: Serve, tmp_path: Path) -> None:
    gone, there = serve(404, b""), serve(206, BODY[4:], content_range="bytes 4-9/10")
    assert continued(tmp_path / "part", BODY[:4], gone, there).exit_code == 0
    assert (tmp_path / "part").read_bytes() == BODY


def test_an_answer_without_a_range_is_a_beginning_for_who_has_nothing(serve: Serve, tmp_path: Path) -> None:
    assert continued(tmp_path / "part", b"", serve(200, BODY), wanted=3).exit_code == 0
    assert (tmp_path / "part").read_bytes() == BODY


@pytest.mark.parametrize(
    ("answer", "fault", "words"),
    [
        ({"status": 200, "body": BODY}, Fault.NO_RESUME, "does not continue"),
        ({"status": 206, "body": BODY, "content_range": "bytes 0-9/10"}, Fault.AGAIN, "the peer gives bytes 0-9/10"),
        ({"status": 206, "body": BODY, "content_range": "bytes 4-13/14"}, Fault.AGAIN, "asked for 4 to 9"),
        ({"status": 206, "body": BODY}, Fault.AGAIN, "the peer gives None"),
        ({"status": 404, "body": b""}, Fault.LESS, "HTTP 404"),
        ({"status": 416, "body": b""}, Fault.LESS, "HTTP 416"),
        ({"status": 503, "body": b""}, Fault.AGAIN, "HTTP 503"),
    ],
)
def test_nothing_is_written_of_an_answer_that_is_not_what_follows(
    answer: dict[str, object], fault: Fault, words: str, serve: Serve, tmp_path: Path
) -> None:
    found, reason = backends.fault("piece", continued(tmp_path / "part", BODY[:4], serve(**answer)))
    assert found is fault and words in reason
    assert (tmp_path / "part").read_bytes() == BODY[:4]


def test_what_came_before_the_connection_was_cut_stays(serve: Serve, tmp_path: Path) -> None:
    url = serve(206, BODY[4:7], length=6, content_range="bytes 4-9/10")
    found, reason = backends.fault("piece", continued(tmp_path / "part", BODY[:4], url))
    assert found is Fault.AGAIN and "closed the connection" in reason
    assert (tmp_path / "part").read_bytes() == BODY[:7]


def test_a_peer_that_is_gone_is_no_fault_of_this_host(tmp_path: Path) -> None:
    found, reason = backends.fault("piece", continued(tmp_path / "part", b"", "http://127.0.0.1:9/x"))
    assert found is Fault.AGAIN and "no answer" in reason
