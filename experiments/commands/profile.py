"""`forktask profile`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from ...cython_src.errors import UsageError
from .arguments import add_json, add_plan_options, plan_options, positive, show

HELP = "where a GPU's time goes: kernels, copies, calls of the driver"
DESCRIPTION = (
    "Time each kernel, copy and driver call of a training step on a GPU, and say what the timing itself costs. On the "
    "CPU, `forktask compare` gives times by layer."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--device", choices=("cpu", "gpu"), default="gpu", help="default: %(default)s")
    add_plan_options(parser, batch=16)
    parser.add_argument("--model", default="gpu_stream", help="default: %(default)s")
    parser.add_argument("--seconds", type=positive, default=0.5, help="of each measurement; default: %(default)s")
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Profile one model of a GPU."""
    if arguments.device == "cpu":
        raise UsageError("profile times the launches of a GPU, got --device cpu; forktask compare has the CPU's layers")
    from ..sampling.gpu_profile import format_profile, profile_network

    row = profile_network(arguments.network, plan_options(arguments), arguments.model, arguments.seconds)
    show(arguments, row, format_profile)
    return 0
