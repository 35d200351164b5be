"""The hub's process: `python -m lab.hub.server JSON` serves a hub's folder as model hubs, mirrors and stores do.

Two servers on two addresses. The hub has the listing and redirects for large files; the store has their content at
signed addresses that expire, and refuses a request that also brings a token, as object stores do. The hub's address
also has every revision as a plain folder (/files/<organization>/<name>/<revision>/, with SHA256SUMS) and as the
bucket /lab-bucket with the same keys.
"""

import http.server
import json
import os
import sys
import threading
from pathlib import Path

from .answers import HubHandler, StoreHandler
from .faults import Faults
from .handler import Handler, Serving
from .spec import Spec


def _server(handler: type[Handler], serving: Serving, place: tuple[str, int]) -> http.server.ThreadingHTTPServer:
    bound = type(handler.__name__, (handler,), {"serving": serving})
    server = http.server.ThreadingHTTPServer(place, bound, bind_and_activate=False)
    server.daemon_threads = True
    server.request_queue_size = 128
    server.server_bind()
    server.server_activate()
    return server


def main(spec: Spec) -> int:
    """Serve until stdin ends, or for good with `detach`; says its ports on stdout once it listens."""
    for cgroup in spec.cgroups:
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    folder = Path(spec.folder)
    serving = Serving(spec=spec, folder=folder, faults=Faults(folder))
    hub = _server(HubHandler, serving, (spec.hub[0], spec.hub[1]))
    store = _server(StoreHandler, serving, (spec.store[0], spec.store[1]))
    serving.store_url = f"http://{spec.store[0]}:{store.server_port}"
    sys.stdout.write(json.dumps({"hub": hub.server_port, "store": store.server_port}) + "\n")
    sys.stdout.flush()
    if spec.detach:
        if os.fork():
            return 0
        os.setsid()
        os.chdir("/")  # so that it holds no folder
    for server in (hub, store):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    if spec.detach:
        threading.Event().wait()
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(Spec(**json.loads(sys.argv[1]))))
