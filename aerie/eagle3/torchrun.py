"""`python -m aerie.eagle3.torchrun …`: PyTorch's torchrun whose store listens on --master_addr alone.

Its own store listens on every address of the host, and whoever reaches it can stop a training or feed it (torch 2.13).
"""

import socket
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Run torchrun with sys.argv."""
    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous as static

    store = static.TCPStore

    def bound(address: str, port: int, size: int, is_master: bool, timeout: Any, **more: Any) -> Any:
        if is_master:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            more["master_listen_fd"] = socket.create_server((address, port), family=family).detach()
        return store(address, port, size, is_master, timeout, **more)

    static.TCPStore = bound
    run.main()


if __name__ == "__main__":
    main()
