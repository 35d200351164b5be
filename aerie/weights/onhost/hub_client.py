"""Run by the Python of the hub environment: fetches one file with the hub client. Its order is JSON on stdin."""

import json
import os
import sys


def main() -> None:
    """Bring the file to its part. What fails is the last line of stderr, without a token."""
    order = json.load(sys.stdin)
    # The client reads its settings when it is imported; from the environment, which names no secret.
    os.environ["HF_ENDPOINT"] = order["endpoint"]
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(
            repo_id=order["repository"],
            filename=order["path"],
            revision=order["revision"],
            local_dir=order["folder"],
            token=order["token"] or False,
            endpoint=order["endpoint"],
        )
    except Exception as error:  # whatever it is, another process judges it
        first = (str(error).splitlines() or [""])[0]
        sys.exit(f"Error: {type(error).__name__}: {first.replace(order['token'] or chr(0), '…')}")
    os.replace(path, order["part"])


if __name__ == "__main__":
    main()
