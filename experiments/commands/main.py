"""The command `forktask`: each subcommand is a module here, which declares its arguments and calls one room."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from importlib import import_module

from ...cython_src.errors import UsageError
from ..machine.build_info import BUILD

# Modules here, in the order of the help page. Each has HELP, DESCRIPTION, `add_arguments(parser)` and
# `call(arguments)`; these two functions import what is slow to import.
COMMANDS: tuple[str, ...] = (
    "info",
    "compare",
    "run",
    "status",
    "report",
    "plot",
    "simulate",
    "peers",
    "train",
    "study",
    "infer",
    "generate",
    "trace",
    "metg",
    "graph",
    "networks",
    "memory",
    "tune",
    "kernels",
    "profile",
    "gate",
    "scaling_power",
)


class Parser(argparse.ArgumentParser):
    """Parser whose arguments are declared when it is first used, and whose errors are one sentence."""

    declare: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(self, args=None, namespace=None):
        declare, self.declare = self.declare, None
        if declare is not None:
            declare(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str):
        said = re.sub(r"^argument (--[\w-]+): (?=must |takes )", r"\1 ", message)
        raise UsageError(f"{said}; see {self.prog} --help")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser with all subcommands."""
    parser = Parser(
        prog="forktask",
        description="Fork-join against task-based execution of deep-learning training.",
        epilog="Start with `forktask info`, then `forktask compare`. `forktask COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"forktask {BUILD['version']}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        module = import_module(f".{name}", __package__)
        command = subparsers.add_parser(name.replace("_", "-"), help=module.HELP, description=module.DESCRIPTION)
        command.declare = module.add_arguments
        command.set_defaults(run=module.call)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit code 0: done; 2: bad input, said in one sentence; 130: interrupted."""
    parser = make_parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help(sys.stderr)
        return 2
    try:
        arguments = parser.parse_args(argv)
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
