"""A relay in front of a host's sshd that holds every byte back for a time: a network of that latency, without root.

python benchmarks/relay.py ADDRESS PORT LATENCY_MS    prints the local port that it listens on; ends with its stdin
"""

import asyncio
import sys


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Pass on what comes, each piece `delay_s` after it came; the end too."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def deliver() -> None:
        while True:
            due, part = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not part:
                break
            writer.write(part)
            await writer.drain()
        writer.close()

    task = asyncio.create_task(deliver())
    part = b"-"
    while part:
        try:
            part = await reader.read(1 << 16)
        except ConnectionError:
            part = b""
        queue.put_nowait((loop.time() + delay_s, part))
    try:
        await task
    except ConnectionError:
        pass  # the other side has gone


async def main(address: str, port: int, latency_ms: float) -> None:
    """Serve until stdin ends. latency_ms: there and back, half of it each way."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(address, port)
        half = latency_ms / 2000
        await asyncio.gather(_carry(reader, back, half), _carry(there, writer, half))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
