"""A server of constant rate with the interfaces of engines: what a client measures there is known beforehand.

    python benchmarks/constant_rate.py TTFT_MS TPOT_MS [TOKENS_A_CHUNK]

Prints its port, and ends with its stdin. Tokens come at fixed times after the request, TOKENS_A_CHUNK (1) at once, as
with a drafter that is always right; /metrics counts as vLLM does. A prompt that holds "refuse" is answered with 500,
one that holds "break" is cut off after its first chunk.
"""

import asyncio
import json
import sys
from typing import Any

from aiohttp import web


class Server:
    """The routes."""

    def __init__(self, ttft_s: float, tpot_s: float, chunk: int) -> None:
        self.ttft_s, self.tpot_s, self.chunk = ttft_s, tpot_s, chunk
        self.verify_steps = 0

    def app(self) -> web.Application:
        made = web.Application()
        made.router.add_get("/v1/models", self.models)
        made.router.add_get("/version", self.version)
        made.router.add_get("/metrics", self.metrics)
        for path in ("/v1/completions", "/v1/chat/completions", "/generate"):
            made.router.add_post(path, self.generate)
        return made

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "constant", "owned_by": "vllm"}]})

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def metrics(self, request: web.Request) -> web.Response:
        if self.chunk == 1:
            return web.Response(text="# nothing drafts\n")
        drafts, steps = self.chunk - 1, self.verify_steps
        counts = {"num_drafts": steps, "num_draft_tokens": drafts * steps, "num_accepted_tokens": drafts * steps}
        lines = [
            f"# TYPE vllm:spec_decode_{name} counter\nvllm:spec_decode_{name}_total {n}" for name, n in counts.items()
        ]
        per_position = "vllm:spec_decode_num_accepted_tokens_per_pos"
        lines.append(f"# TYPE {per_position} counter")
        lines += [f'{per_position}_total{{position="{position}"}} {steps}' for position in range(drafts)]
        return web.Response(text="\n".join(lines) + "\n")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        text = json.dumps(asked)
        if "refuse" in text:
            return web.json_response({"error": "no"}, status=500)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        began, done = loop.time(), 0
        total = asked.get("max_tokens") or asked["sampling_params"]["max_new_tokens"]
        while done < total:
            new = min(self.chunk, total - done) if done else 1
            await asyncio.sleep(max(0.0, began + self.ttft_s + (done + new - 1) * self.tpot_s - loop.time()))
            done += new
            self.verify_steps += done > 1
            event = self.event(request.path, done, new, is_last=done == total)
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            if "break" in text:
                return response
        if request.path != "/generate":  # the total by itself, as `include_usage` asks for
            usage = {"prompt_tokens": 7, "completion_tokens": done, "total_tokens": 7 + done}
            await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    def event(self, path: str, done: int, new: int, *, is_last: bool) -> dict[str, Any]:
        if path == "/generate":
            reason = {"type": "length"} if is_last else None
            meta = {"prompt_tokens": 7, "completion_tokens": done, "cached_tokens": 0, "finish_reason": reason}
            if self.chunk > 1:
                steps, drafts = -(-(done - 1) // self.chunk), self.chunk - 1
                meta |= {"spec_verify_ct": steps, "spec_num_correct_drafts": drafts * steps}
                meta |= {"spec_num_proposed_drafts": drafts * steps}
                meta |= {"spec_correct_drafts_histogram": [0] * drafts + [steps]}
            return {"text": " word" * done, "meta_info": meta}
        said = {"delta": {"content": " word" * new}} if "chat" in path else {"text": " word" * new}
        usage = {"prompt_tokens": 7, "completion_tokens": done, "total_tokens": 7 + done}
        return {"choices": [{"index": 0, "finish_reason": "length" if is_last else None, **said}], "usage": usage}


async def main(ttft_ms: float, tpot_ms: float, chunk: int = 1) -> None:
    """Serve until stdin ends."""
    runner = web.AppRunner(Server(ttft_ms / 1000, tpot_ms / 1000, chunk).app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:])))
