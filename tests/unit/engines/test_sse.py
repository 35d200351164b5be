"""What the client of a stream does with connections that lie idle between two measurements."""

import asyncio

import pytest

from aerie.engines import sse

STREAM = b'data: {"n": 1}\n\ndata: [DONE]\n\n'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(STREAM), STREAM)


class Server:
    """Answers one request on a connection and is about to close it when the next one comes, as uvicorn after 5 s."""

    def __init__(self) -> None:
        self.connections = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        writer.write(ANSWER)
        await writer.drain()
        await reader.read(1)  # the next request, or the client's close
        writer.close()


@pytest.mark.parametrize(("kept_s", "is_lost"), [(0.05, False), (15.0, True)], ids=["ours", "aiohttp's-own"])
def test_a_connection_that_the_server_is_about_to_close_is_not_used(monkeypatch, kept_s, is_lost):
    import aiohttp

    monkeypatch.setattr(sse, "KEEP_S", kept_s)
    server = Server()

    async def twice() -> list[object]:
        listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
        answers: list[object] = []
        async with listening, sse.session(60) as opened:
            for pause_s in (0.0, 0.5):
                await asyncio.sleep(pause_s)
                answers.append([event async for _, event in sse.events(opened, url, {})])
        return answers

    if is_lost:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            asyncio.run(twice())
    else:
        assert asyncio.run(twice()) == [[{"n": 1}], [{"n": 1}]]
    assert server.connections == 1 + (not is_lost)


def test_it_is_shorter_than_any_servers():
    assert sse.KEEP_S <= 5 / 2  # vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE and uvicorn's own
