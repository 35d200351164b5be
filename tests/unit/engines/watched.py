"""A stand-in for a served model that hangs on request: a front end and two ranks, each a process of its own.

watched.py PORT FILE; what FILE says at the start is how it behaves: serves, deaf (answers its health page and nothing
else), stalls (never ready), holds (leaves a process behind when it is ended).
"""

import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

port, behaviour = int(sys.argv[1]), Path(sys.argv[2]).read_text()
IDLE = "import time; time.sleep(600)"
# The name comes first, as engines set the titles of their workers.
ranks = [subprocess.Popen([f"VLLM::Worker_TP{rank}", "-c", IDLE], executable=sys.executable) for rank in (0, 1)]
# Its ranks are not reaped: as in a front end that does not look after them, a dead one stays a zombie.
print("loading", flush=True)
while behaviour == "stalls":
    time.sleep(600)
tokens = 0


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        self.answer(f'vllm:generation_tokens_total{{model="m"}} {tokens}\nvllm:num_requests_running 0\n')

    def do_POST(self):
        global tokens
        if behaviour == "deaf":
            time.sleep(600)
        tokens += 4
        self.answer("{}")


server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
server.daemon_threads = True
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever()
if behaviour != "holds":
    for rank in ranks:
        rank.kill()
