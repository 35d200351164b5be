"""See main."""

import sys

from aerie.extensions.onhost.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
