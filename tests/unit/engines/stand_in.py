"""A stand-in for an engine's server: the OpenAI routes, a child process of its own, and faults on request.

stand_in.py BEHAVIOUR [FILE] --host HOST --port PORT; it leaves the ids of its processes in FILE.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

behaviour, pids, port = sys.argv[1], sys.argv[2], int(sys.argv[-1])
# A grandchild in a session of its own, as far from the parent as a process can get.
child = subprocess.Popen(
    [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"],
    start_new_session=True,
)
with open(pids, "a") as file:
    file.write(f"{os.getpid()} {child.pid}\n")
if behaviour == "dies":
    sys.exit("ValueError: no such model")
if behaviour == "hangs":
    print("loading weights", flush=True)
    time.sleep(600)
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if behaviour == "loses-its-port-once" and Path(pids).read_text().count("\n") == 1:
    sys.exit("OSError: [Errno 98] Address already in use")


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
        self.answer(200, b"# no metrics\n", "text/plain")

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if behaviour == "fails-to-generate":
            self.answer(500, b'{"error": "AssertionError: Synthetic acceptance"}')
        elif not request.get("stream"):
            self.answer(200, json.dumps({"choices": [{"finish_reason": "length", "token_ids": [5]}]}).encode())
        else:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for chunk in ([7, 8], [9]):
                event = {"choices": [{"token_ids": chunk}]}
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
                if behaviour == "dies-in-a-stream":
                    print("RuntimeError: out of luck", flush=True)
                    os._exit(3)
                if behaviour == "errs-in-a-stream":
                    self.wfile.write(b'data: {"error": {"message": "EngineDeadError"}}\n\n')
                    return
                if behaviour == "falls-silent":
                    time.sleep(600)
            self.wfile.write(b'data: {"choices": []}\n\ndata: [DONE]\n\n')


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
