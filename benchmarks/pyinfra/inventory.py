"""pyinfra's inventory of the one host that the benchmark names by its environment."""

import os

hosts = [
    (
        os.environ["PEER_ADDRESS"],
        {
            "ssh_user": os.environ["PEER_USER"],
            "ssh_key": os.environ["PEER_KEY"],
            "ssh_known_hosts_file": os.environ["PEER_KNOWN_HOSTS"],
        },
    )
]
