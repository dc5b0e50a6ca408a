"""`forktask scaling-power`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import MOST_SECONDS, add_fields, add_json, add_plan_options, given, number_from, show

HELP = "measure false alarms and power of the clock tier of scaling tests"
DESCRIPTION = (
    "Run whole clock tests of a model against itself, and against itself made slower, and count their verdicts. Rows "
    "are appended to the file; the same command goes on."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    from ..scaling.power import PowerSettings

    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--file", metavar="FILE", help="JSON Lines, appended to")
    what.add_argument(
        "--simulate",
        type=number_from(1, most=100_000),
        metavar="N",
        help="measure nothing: N tests with random numbers for each noise and ratio, 60 rounds at most",
    )
    add_plan_options(parser, batch=16)
    add_fields(parser, PowerSettings)
    parser.add_argument(
        "--seconds", type=number_from(0, float, MOST_SECONDS), metavar="S", help="begin no further test after this long"
    )
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Measure or simulate, and print rates."""
    from pathlib import Path

    from ...cython_src.errors import UsageError
    from ...cython_src.lowering.options import PlanOptions
    from ..scaling.power import PowerSettings, format_simulated, format_tables, measure_power, simulated

    settings = PowerSettings(**given(arguments, PowerSettings))
    options = given(arguments, PlanOptions)
    PlanOptions(**options)  # raises; rows hold what was asked for only
    if arguments.simulate is not None:
        if options:
            flag = next(iter(options)).replace("_", "-")
            raise UsageError(f"--simulate measures no plan, got --{flag}; leave it out")
        show(arguments, simulated(arguments.simulate, settings.at_most), format_simulated)
        return 0
    plan = {"network": arguments.network, **options}
    show(arguments, measure_power(plan, settings, Path(arguments.file), arguments.seconds), format_tables)
    return 0
