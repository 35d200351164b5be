"""A stand-in for SGLang: its own interface, its words for acceptance in every generation, and a cost for each step.

sglang_stand_in.py NAMES PIDS … --host HOST --port PORT [--speculative-num-steps K]; NAMES: a version's way to count.
It serves loading first: 503 to the first request. A verify step takes STEP_COST plain steps.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

names, pids = sys.argv[1:3]
flags = dict(zip(sys.argv[3:], sys.argv[4:], strict=False))
k = int(flags.get("--speculative-num-steps", "0"))
length = int(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "3" if k else "1"))
STEP_S, STEP_COST = 0.004, 2
NAMES = {
    "0.5.10": [("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram")],
    "0.5.11": [("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram")],
    "0.5.16": [
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
    ],
}
with open(pids, "a") as file:
    file.write(f"{os.getpid()}\n")
totals = {"generation": 0, "verify": 0, "requests": 0}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        text = f"sglang:generation_tokens_total {totals['generation']}.0\n"
        if names == "0.5.16":
            text += f"sglang:spec_verify_calls_total {totals['verify']}.0\n"
        self.answer(200, text.encode(), "text/plain")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        totals["requests"] += 1
        if totals["requests"] == 1:
            self.answer(503, b'{"error": "loading"}')
            return
        wanted, start = asked["sampling_params"]["max_new_tokens"], len(asked["input_ids"])
        if asked.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
        ids, steps = [start], 0  # the first token is the prompt's own pass
        while len(ids) < wanted:
            time.sleep(STEP_S * (STEP_COST if k else 1))
            steps += 1
            ids = [*ids, *range(start + len(ids), start + len(ids) + length)][:wanted]
            if asked.get("stream") and len(ids) < wanted:
                self.event(ids, {"finish_reason": None})
        totals["generation"] += len(ids)
        totals["verify"] += steps if k else 0
        meta = {"finish_reason": {"type": "length", "length": wanted}} | (self.spec(steps) if k and steps else {})
        if asked.get("stream"):
            self.event(ids, meta)
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self.answer(200, json.dumps(self.body(ids, meta)).encode())

    def spec(self, steps):
        histogram = [0] * (length - 1) + [steps]
        counts = {"spec_verify_ct": steps, "spec_accept_length": -1}
        for accepted, proposed, by_count in NAMES[names]:
            counts |= {accepted: steps * (length - 1), proposed: steps * k, by_count: histogram}
        return counts

    def body(self, ids, meta):
        return {"text": "", "output_ids": ids, "meta_info": {"completion_tokens": len(ids), **meta}}

    def event(self, ids, meta):
        self.wfile.write(f"data: {json.dumps(self.body(ids, meta))}\n\n".encode())
        self.wfile.flush()


ThreadingHTTPServer((flags["--host"], int(flags["--port"])), Handler).serve_forever()
