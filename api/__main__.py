"""The command `forktask`, also as `python -m forktask`."""

import os
import signal
import sys


def _leave(*_: object) -> None:
    """End the process at once: while modules load or the interpreter ends, an exception would be a traceback."""
    os.write(2, b"forktask: interrupted\n")
    os._exit(130)


def main() -> int:
    """Load the command line and run it; Ctrl-C before and after is as good as meanwhile."""
    usual = signal.getsignal(signal.SIGINT)  # ignored in what a shell runs in the background
    outside = _leave if usual is signal.default_int_handler else usual
    signal.signal(signal.SIGINT, outside)
    from .experiments.commands.main import main as command

    signal.signal(signal.SIGINT, usual)
    try:
        return command()
    finally:
        signal.signal(signal.SIGINT, outside)


if __name__ == "__main__":
    sys.exit(main())
