"""`forktask info`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, show

HELP = "this machine, its measured limits, and whether it is fit for measuring"
DESCRIPTION = (
    "Show hardware, limits and settings, measure peak, bandwidth and thread capacity (about a second), and say whether "
    "the machine is fit for measuring."
)


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser, "everything")
    parser.add_argument(
        "--machine", metavar="FILE", help="also measure latencies and overheads, and write a file for `simulate`"
    )
    parser.add_argument("--strict", action="store_true", help="exit with code 1 if the machine is not fit")


def call(arguments: Namespace) -> int:
    """Describe this machine. Exit code 1 with --strict on a machine that is not fit."""
    from ..machine.info import describe_machine, format_page

    if arguments.machine:
        from ..results.files import MACHINE, check_writable

        check_writable(arguments.machine, MACHINE)
    result = describe_machine()
    if arguments.machine:
        from ..simulate.measured_machine import write_machine

        write_machine(arguments.machine)
    show(arguments, result, format_page)
    return 1 if arguments.strict and result["verdict"]["level"] == "not fit" else 0
