"""The fastest algorithm of each convolution on this machine, measured where it is asked for and kept in the user's
cache."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Literal

import numpy as np

from ...cython_src.binding.bind import BoundPlan, Workers, bind
from ...cython_src.kernels.convolution.algorithms import (
    DIRECTIONS,
    check_algorithms,
    loops_with_choice,
    read_algorithms,
)
from ...cython_src.kernels.convolution.specs import ALGORITHMS
from ...cython_src.kernels.simd import instruction_sets
from ...cython_src.lowering.lower import lower
from ...cython_src.lowering.options import PlanOptions
from ...cython_src.networks.layers import Conv2d, GlobalAvgPool, Linear, Network, SoftmaxCrossEntropy
from ..machine.build_info import BUILD
from ..machine.environment import cpu_model
from ..results.files import cache_folder, keep_cached, read_cached
from ..results.folder import short_id
from ..tables.numbers import plural
from ..tables.progress import say

CACHE = "algorithms"  # folder below the user's cache folder
MEASURED = "measured"  # value of the option `algorithms` that stands for what is measured
BUDGET_S = 1.0  # of the measurements for a plan
LEAST_TURNS = 3
MOST_IMAGES = 16  # that are computed; times of more are extrapolated
COLD_BYTES = 1 << 24  # read before each measurement: in a step, other loops have used the L2 cache
HOPELESS = 1.5  # what takes so many times as long as another algorithm, the first time, is not timed again
CLEARLY = 0.95  # another algorithm than that by cost takes at most this part of its time


def settled(text: str, plans: Iterable[tuple[str | Network, PlanOptions]]) -> str:
    """Return the value of the plan option `algorithms` that a text stands for: "measured", or names of shapes. Raises
    `UsageError`: a shape that is in none of the plans, or what `read_algorithms` refuses."""
    if text == MEASURED:
        return measured_algorithms(plans)
    if named := read_algorithms(text):
        check_algorithms(named, {shape for each in plans for shape in loops_with_choice(lower(*each))})
    return text


def measured_algorithms(plans: Iterable[tuple[str | Network, PlanOptions]]) -> str:
    """Return the value of the plan option `algorithms` with which all loops of some plans have their fastest algorithm.

    A loop is named where another algorithm than that by cost is clearly faster. What was measured on this kind of
    processor by this version before is not measured again; what a second per plan is not enough for stays by cost.
    """
    file = f"{short_id([BUILD, cpu_model(), instruction_sets.choose()])}.json"
    found = read_cached(CACHE, file, dict[str, Literal[ALGORITHMS]], {})
    known, named = dict(found), {}
    for network, options in plans:
        loops = loops_with_choice(lower(network, options)) if options.conv == "auto" else {}
        sizes = dict.fromkeys(shape.partition(":")[2] for shape in loops if shape not in known)
        stop = time.monotonic() + BUDGET_S
        for number, size in enumerate(sizes):
            share = (stop - time.monotonic()) / (len(sizes) - number)
            known |= _fastest(*map(int, size.split("x")), share)
        left = sum(shape not in known for shape in loops)
        if sizes:
            say(
                f"algorithms of {plural(len(loops), 'shape')} of convolutions measured, kept in {cache_folder(CACHE)}"
                + (f"; {left} not, for want of time, and by cost" if left else "")
            )
        named |= {shape: known[shape] for shape, by_cost in loops.items() if known.get(shape, by_cost) != by_cost}
    if known != found:
        keep_cached(CACHE, file, known)
    return ",".join(f"{shape}={algorithm}" for shape, algorithm in named.items())


def _fastest(batch: int, inputs: int, outputs: int, height: int, width: int, seconds: float) -> dict[str, str]:
    """Return the algorithms of a convolution's loops by shape, timed in turns on this thread; none where there is no
    time for some turns."""
    layers = (
        Conv2d("before", inputs, 1, 0),
        Conv2d("conv", outputs, 3, 1),
        GlobalAvgPool("pool"),
        Linear("linear", 2),
        SoftmaxCrossEntropy(),
    )
    network, images = Network("one", (inputs, height, width), layers), min(batch, MOST_IMAGES)
    stop = time.monotonic() + seconds
    by_cost = loops_with_choice(lower(network, batch=batch, layout="nhwc"))
    candidates: dict[str, dict[str, Callable[[], float]]] = {shape: {} for shape in by_cost}
    for name in ALGORITHMS:
        bound = bind(lower(network, batch=images, conv=name, layout="nhwc"))
        for array in bound.arrays.values():
            array[...] = 0
        workers = Workers(1, bound.scratch_bytes)
        for shape, timed in candidates.items():
            timed[name] = partial(_time_of, bound, workers, shape.partition(":")[0], batch / images)
    cold = np.ones(COLD_BYTES // 8)
    warm = {shape: {name: run() for name, run in timed.items()} for shape, timed in candidates.items()}
    times = {
        shape: {name: [] for name, time_s in some.items() if time_s < HOPELESS * min(some.values())}
        for shape, some in warm.items()
    }
    turns, begun = 0, time.monotonic()
    while turns < LEAST_TURNS or time.monotonic() + (time.monotonic() - begun) / turns < stop:
        for shape, some in times.items():
            for name, values in some.items():
                cold.sum()
                values.append(candidates[shape][name]())
        turns += 1
        if time.monotonic() + (time.monotonic() - begun) / turns * (LEAST_TURNS - turns) > stop:
            return {}
    result = {}
    for shape, usual in by_cost.items():
        medians = {name: median(values) for name, values in times[shape].items()}
        best = min(medians, key=medians.__getitem__)
        result[shape] = best if medians[best] < CLEARLY * medians.get(usual, math.inf) else usual
    return result


def _time_of(bound: BoundPlan, workers: Workers, direction: str, more: float) -> float:
    """Run the loops of "conv" in a direction; return their seconds for so many times the images: those of packed
    weights do not depend on images."""
    total = 0.0
    for number, loop in enumerate(bound.plan.loops):
        packs = loop.kernel == "nhwc_conv_pack"
        own = ("forward", "data")[loop.attributes["direction"]] if packs else DIRECTIONS.get(loop.kernel)
        if loop.layer == "conv" and own == direction:
            start = time.perf_counter()
            for block in range(loop.num_blocks):
                bound.run_task(number, block, 0, workers)
            total += (time.perf_counter() - start) * (1 if packs else more)
    return total
