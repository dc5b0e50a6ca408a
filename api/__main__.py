"""The command `forktask`, also as `python -m forktask`."""

import os
import signal
import sys


def _leave(*_: object) -> None:
    """End the process at once: while modules load or the interpreter ends, an exception would be a traceback."""
    os.write(2, b"forktask: interrupted\n")
    os._exit(130)


def _open_closed_streams() -> None:
    """Open the null device for standard streams that the caller closed (`2>&-`).

    Otherwise the next file would get the number of one of them, and what libraries write there as its content.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def main() -> int:
    """Load the command line and run it; Ctrl-C works alike before, during and after."""
    _open_closed_streams()
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
