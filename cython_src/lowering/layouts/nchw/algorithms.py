"""Algorithms of the convolutions of the layouts "nchw16" and "nchw": which there are, and the cheapest by cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....kernels.convolution.algorithms import ERROR_LIMIT, RELATIVE_ERROR
from ....kernels.convolution.nchw_convolution import POINTS
from ....kernels.convolution.nchw_convolution import TILE as WINOGRAD_TILE
from ....kernels.convolution.specs import COMPARED, NCHW16_FORMS
from ....kernels.maps.nchw import KERNEL
from ....kernels.simd.instruction_sets import LANES
from ...options import Granularity
from ...state import Lowering

TAPS = KERNEL * KERNEL
CONVOLUTIONS = ("auto", "direct", "winograd", *COMPARED)  # of the layout "nchw16"; "nchw" has the first two


def direct_cost(channels_in: int, channels_out: int, height: int, width: int) -> int:
    """Return the multiply-adds of vectors that a convolution of sixteen images takes directly; height and width
    are those of the result."""
    return TAPS * channels_in * channels_out * height * width


def winograd_cost(channels_in: int, channels_out: int, height: int, width: int) -> int:
    """Return the time of a convolution of sixteen images by Winograd's algorithm, in the unit of `direct_cost`.

    To transform a tile takes as long as 700 multiply-adds for a channel of the input, 530 for one of the output
    (fitted to the forward passes of the CIFAR-10 network, AVX-512).
    """
    tiles = math.ceil(height / WINOGRAD_TILE) * math.ceil(width / WINOGRAD_TILE)
    return tiles * (POINTS * channels_in * channels_out + 700 * channels_in + 530 * channels_out)


def choose_convolution(channels_in: int, channels_out: int, height: int, width: int) -> str:
    """Return the cheaper algorithm for a convolution in the layout "nchw16" whose error is within the limit, "direct"
    or "winograd": with few channels on both sides the transforms outweigh the products saved."""
    shape = (channels_in, channels_out, height, width)
    if RELATIVE_ERROR["winograd"] > ERROR_LIMIT:
        return "direct"
    return "winograd" if winograd_cost(*shape) < direct_cost(*shape) else "direct"


def choose_lanes(
    batch: int, granularity: Granularity, convolutions: Sequence[tuple[int, int, int, int]], conv: str
) -> int:
    """Return what the lanes should hold: images (16) or pixels (1), by cost and if blocks can be cut as asked.

    A last group of images that is not full wastes lanes. Narrow rows of the layout "nchw" run on through the halo,
    its loads cross cache lines, and it sums lanes more often: together some 10 % of a step. And it has the direct
    algorithm alone; `convolutions` are arguments of `choose_convolution`.
    """
    if granularity.images % LANES:
        return 1
    pixels = 1.1 * batch / LANES * sum(direct_cost(*shape) for shape in convolutions)
    costs = {"direct": direct_cost, "winograd": winograd_cost}
    images = math.ceil(batch / LANES) * sum(
        costs[choose_convolution(*shape) if conv == "auto" else conv](*shape) for shape in convolutions
    )
    return LANES if images <= pixels else 1


def chosen_algorithm(low: Lowering, channels_in: int, channels_out: int, height: int, width: int) -> str:
    """Return the algorithm of a pass of a convolution."""
    if low.layout.lanes == 1:
        return "direct"
    if low.options.conv == "auto":
        return choose_convolution(channels_in, channels_out, height, width)
    return low.options.conv


def kernel_name(algorithm: str, what: str) -> str:
    """Return the name of the kernel that computes a part of a convolution by an algorithm."""
    return f"{'winograd' if algorithm == 'winograd' else 'conv'}_{what}"


def algorithm_attributes(algorithm: str) -> dict[str, int]:
    """Return further attributes of the kernels of an algorithm."""
    return {"algorithm": NCHW16_FORMS.index(algorithm)} if algorithm in COMPARED else {}
