"""`forktask kernels`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...cython_src.errors import UsageError
from .arguments import add_device, add_json, add_plan_options, number_from, plan_options, show

GPU_MODEL = "gpu_stream"
HELP = "speed of a step's kernels on one core, beside the measured limits, or their times on a GPU"
DESCRIPTION = (
    "Run the loops of a network's step on one core and show the time of each, its GFLOP/s and GB/s, and the share of "
    "its limit: the longer of the times that its operations take at the measured multiply-add peak and its bytes at "
    "the bandwidth of a triad over as many bytes. The time of a loop is the sum of each block's fastest run. With "
    "--device gpu, time each kernel, copy and driver call of a model's step on a GPU, and say what the timing itself "
    "costs."
)


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_options(parser)
    add_device(parser)
    parser.add_argument("--model", help=f"whose step on a GPU is timed; default: {GPU_MODEL}")
    parser.add_argument(
        "--by",
        choices=("loop", "kernel"),
        default="loop",
        help="rows: a loop each, or all loops of a kernel and phase; default: %(default)s",
    )
    parser.add_argument("--instruction-set", metavar="SET", help="default: the best of this processor")
    parser.add_argument("--cpu", type=number_from(0, most=8191), help="logical CPU to pin to")
    parser.add_argument("--seconds", type=number_from(0, float), default=1.0, help="0: one round; default: %(default)g")
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Measure the loops, or what a GPU does, and print the table."""
    if arguments.device == "gpu":
        from ..sampling.gpu_profile import format_profile, profile_network

        for name, default in (("by", "loop"), ("instruction_set", None), ("cpu", None)):
            if getattr(arguments, name) != default:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} is for kernels on a core, got it with --device gpu; leave it out")
        model, seconds = arguments.model or GPU_MODEL, arguments.seconds
        show(arguments, profile_network(arguments.network, plan_options(arguments), model, seconds), format_profile)
        return 0
    if arguments.model:
        raise UsageError(f"--model is for kernels on a GPU, got {arguments.model!r}; add --device gpu or leave it out")
    from ..sampling.step_kernels import format_step, measure_step

    where = {"instruction_set": arguments.instruction_set, "cpu": arguments.cpu}
    result = measure_step(arguments.network, plan_options(arguments), arguments.seconds, **where)
    show(arguments, result, lambda step: format_step(step, arguments.by))
    return 0
