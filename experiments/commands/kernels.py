"""`forktask kernels`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, add_plan_options, number_from, plan_options, show, texts

HELP = "speed of single kernels on one core, beside the measured limits"
DESCRIPTION = (
    "Run kernels on one core and show the time of each, its GFLOP/s and GB/s, and the share of its limit: the longer "
    "of the times that its operations take at the measured multiply-add peak and its bytes at the bandwidth of plain "
    "loops over as many bytes. By default the loops of a network's step; with --maps the kernels of layers on maps of "
    "given sizes; with --convolutions each convolution of the network by several algorithms, with their errors. The "
    "time of a loop is the sum of each block's fastest run."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    add_plan_options(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--maps",
        type=texts,
        metavar="BxHxWxC[,...]",
        help="kernels of layers on maps; default sizes with --maps default",
    )
    what.add_argument(
        "--convolutions",
        nargs="?",
        const="",
        metavar="A[,A...]",
        help="compare algorithms of convolutions: all, or some; without names the usual ones. * marks what is taken by "
        "default: the cheapest by the cost model whose error is small enough",
    )
    parser.add_argument(
        "--by",
        choices=("loop", "kernel"),
        default=None,
        help="rows of the step: a loop each, or all loops of a kernel and phase. The limit of one that memory bounds "
        "is what plain loops take that read and write the same regions in its place; default: loop",
    )
    parser.add_argument("--kernels", type=texts, default=(), metavar="NAME[,...]", help="parts of names, with --maps")
    parser.add_argument("--instruction-set", metavar="SET", help="default: the best of this processor")
    parser.add_argument("--cpu", type=number_from(0, most=8191), help="logical CPU to pin to")
    parser.add_argument(
        "--seconds",
        type=number_from(0, float),
        help="for the step (default: 1), or for each kernel or algorithm (default: 0.05); 0: one round",
    )
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Measure loops, map kernels or convolutions, and print the table."""
    from ..machine.convolutions import compare_algorithms, format_algorithms
    from ..machine.map_kernels import DEFAULT_MAPS, format_maps, measure_maps
    from ..machine.step_kernels import format_step, measure_step

    _check_effects(arguments)
    seconds = {} if arguments.seconds is None else {"seconds": arguments.seconds}
    where = {"instruction_set": arguments.instruction_set, "cpu": arguments.cpu}
    if arguments.maps:
        maps = DEFAULT_MAPS if arguments.maps == ("default",) else arguments.maps
        show(arguments, measure_maps(maps, arguments.kernels, **seconds, **where), format_maps)
    elif arguments.convolutions is not None:
        result = compare_algorithms(
            arguments.network, plan_options(arguments), arguments.convolutions, **seconds, **where
        )
        show(arguments, result, format_algorithms)
    else:
        result = measure_step(arguments.network, plan_options(arguments), **seconds, **where)
        show(arguments, result, lambda step: format_step(step, arguments.by or "loop"))
    return 0


def _check_effects(arguments: Namespace) -> None:
    """Raise `UsageError` for an option that would change nothing."""
    from ...cython_src.errors import UsageError

    if arguments.kernels and not arguments.maps:
        raise UsageError(
            f"--kernels chooses among the kernels of --maps, got --kernels {','.join(arguments.kernels)} without it; "
            f"add --maps default, or leave it out"
        )
    if arguments.by and (arguments.maps or arguments.convolutions is not None):
        other = "--maps" if arguments.maps else "--convolutions"
        raise UsageError(f"--by is for the loops of a step, got it with {other}; leave one of them out")
