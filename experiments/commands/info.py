"""`forktask info`, also a function."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from ..machine.info import describe_machine, format_page, machine_topics
from .arguments import add_json
from .functions import Result, call_function

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


def info(machine: str | os.PathLike[str] | None = None) -> Result:
    """Describe this machine and say whether it is fit for measuring, as `forktask info` does (about a second).

    Parameters
    ----------
    machine : path, optional
        Also measure latencies and overheads, and write them to this file, which `simulate` takes.
    """
    import pandas as pd

    from ..results.files import MACHINE, check_writable

    if machine:
        check_writable(machine, MACHINE)
    data = describe_machine()
    if machine:
        from ..simulate.measured_machine import write_machine

        write_machine(machine)
    table = pd.DataFrame(machine_topics(data).items(), columns=["topic", "text"])
    return Result(f"machine, {data['verdict']['level']} for measuring", table, format_page(data), data=data)


def call(arguments: Namespace) -> int:
    """Describe this machine. Exit code 1 with --strict on a machine that is not fit."""
    result = call_function(info, arguments)
    return 1 if arguments.strict and result.data["verdict"]["level"] == "not fit" else 0
