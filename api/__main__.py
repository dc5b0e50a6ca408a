"""`python -m forktask`: the command `forktask`."""

import sys

from .experiments.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
