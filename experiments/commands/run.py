"""`forktask run`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_device_of_file
from .sweeping import add_output, measure_and_report, print_expected

HELP = "run a sweep described in a TOML file"
DESCRIPTION = "Run a sweep described in a TOML file, or one of those shipped with forktask."


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    from ..sweep.configuration import AXES, Measure, config_folder
    from ..sweep.configuration import fields as keys

    parser.epilog = (
        f"Shipped: {', '.join(sorted(p.stem for p in config_folder().glob('*.toml')))}. Keys of [grid]: "
        f"{', '.join(AXES)}; of [measure]: {', '.join(f.name for f in keys(Measure))}."
    )
    parser.add_argument("file", metavar="FILE", help="a TOML file, or the name of a shipped one")
    add_device_of_file(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the grid, the environment and the expected duration"
    )
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than cores")
    add_output(parser)


def call(arguments: Namespace) -> int:
    """Measure, and print tables; with --dry-run print what would be measured."""
    from ..sweep.configuration import find_configuration

    configuration = find_configuration(arguments.file).on(arguments.device)
    if arguments.oversubscribe:
        configuration = configuration.with_measure(oversubscribe=True)
    return (print_expected if arguments.dry_run else measure_and_report)(configuration, arguments)
