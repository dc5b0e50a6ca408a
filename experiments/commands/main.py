"""The command `forktask`: each subcommand is a module with `add_parser(subparsers)` and a function it sets as `run`."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from ... import __version__
from ...cython_src.errors import UsageError

# Modules that add subcommands, in the order of the help page. Heavy imports belong inside their functions.
COMMAND_MODULES: tuple[str, ...] = (
    "machine.info",
    "sweep.run",
    "commands.report",
    "peers.peers",
    "training.train",
    "training.infer",
    "metg.metg",
    "commands.networks",
    "sampling.memory",
    "sweep.tune",
    "machine.convolutions",
    "sampling.gpu_profile",
    "scaling.gate",
    "scaling.power",
)


def make_parser() -> argparse.ArgumentParser:
    """The parser with all subcommands."""
    parser = argparse.ArgumentParser(
        prog="forktask",
        description="Fork-join against task-based execution of deep-learning training.",
        epilog="Start with `forktask info`, then `forktask compare`. `forktask COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"forktask {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMAND_MODULES:
        import_module(f"..{module}", __package__).add_parser(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit code 0: done; 2: bad input, said in one sentence; 130: interrupted."""
    parser = make_parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help(sys.stderr)
        return 2
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except UsageError as error:
        print(f"forktask: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("forktask: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141


if __name__ == "__main__":
    sys.exit(main())
