"""python3 -I -S <folder with the code> VERB SPEC …, or python3 -m aerie.weights.onhost VERB SPEC …"""

import sys

from aerie.weights.onhost.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
