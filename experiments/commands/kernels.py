"""`forktask kernels`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, add_plan_options, number_from, plan_options, show

HELP = "speed of a step's kernels on one core, beside the measured limits"
DESCRIPTION = (
    "Run the loops of a network's step on one core and show the time of each, its GFLOP/s and GB/s, and the share of "
    "its limit: the longer of the times that its operations take at the measured multiply-add peak and its bytes at "
    "the bandwidth of plain loops over as many bytes. The time of a loop is the sum of each block's fastest run."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_plan_options(parser)
    parser.add_argument(
        "--by",
        choices=("loop", "kernel"),
        default="loop",
        help="rows: a loop each, or all loops of a kernel and phase. The limit of one that memory bounds is what plain "
        "loops take that read and write the same regions in its place; default: %(default)s",
    )
    parser.add_argument("--instruction-set", metavar="SET", help="default: the best of this processor")
    parser.add_argument("--cpu", type=number_from(0, most=8191), help="logical CPU to pin to")
    parser.add_argument("--seconds", type=number_from(0, float), default=1.0, help="0: one round; default: %(default)g")
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Measure the loops, and print the table."""
    from ..machine.step_kernels import format_step, measure_step

    where = {"instruction_set": arguments.instruction_set, "cpu": arguments.cpu}
    result = measure_step(arguments.network, plan_options(arguments), arguments.seconds, **where)
    show(arguments, result, lambda step: format_step(step, arguments.by))
    return 0
