"""Runs one kernel on random data in its compiled form and in its NumPy form in double precision."""

from __future__ import annotations

import itertools

import numpy as np
from cython_src.kernels.guarded_scratch import GuardedScratch
from gpu.fake_gpu import emulator

from forktask.cython_src.binding.bind import Workers, bind
from forktask.cython_src.kernels.simd import instruction_sets
from forktask.cython_src.plan.builder import PlanBuilder, block_grid, ranges
from forktask.cython_src.plan.model import Access, Block

EPSILON = float(np.finfo(np.float32).eps)
INSTRUCTION_SETS = instruction_sets.available()
CUDA_FORMS = {"cuda": "own", "cublas": "cublas"}  # name -> what computes whole products


def run_kernel(kernel, operands, outputs, attributes, bounds, target, instruction_set=None, iteration=0):
    """Run a kernel over `bounds` (one tuple a block) on copies of `operands`; returns its outputs.

    "cuda" and "cublas" in place of an instruction set: the emulated CUDA form, products by itself or by the library.
    Outputs hold NaN (255 for integers) at the start, so that an element left out shows. Scratch memory is of the size
    that the kernel asks for and full of NaN; touching what follows ends the process.
    """
    builder = PlanBuilder("one kernel")
    for name, array in operands.items():
        builder.buffer(name, array.shape, array.dtype.name if array.dtype.kind != "f" else "float32", role="dataset")
    blocks = [Block(tuple(b), ()) for b in bounds]
    blocks[0] = Block(blocks[0].bounds, tuple(Access(2, name) for name in operands))
    builder.loop("loop", kernel, {name: name for name in operands}, blocks, attributes=attributes)
    plan = builder.build()
    if instruction_set in CUDA_FORMS:
        plan = emulator.with_cuda_kernels(plan, len(bounds), products=CUDA_FORMS[instruction_set])
        instruction_set = None
    bound = bind(plan, target=target, instruction_set=instruction_set)
    for name, array in operands.items():
        bound.arrays[name][...] = array
    scratch = GuardedScratch()
    workers = Workers(1, bound.scratch_bytes, allocate=scratch.allocate)
    scratch.fill(0xFF)
    for block in range(len(blocks)):
        if status := bound.run_task(0, block, iteration, workers):
            bound.raise_failure(workers)
            raise AssertionError(f"kernel {kernel} returned {status}")
    assert scratch.spare_is(0xFF), f"kernel {kernel} writes outside of its scratch memory"
    return {name: bound.arrays[name].copy() for name in outputs}


def cut(rng, *lengths):
    """Bounds of blocks that cut each dimension into pieces of a random size."""
    pieces = [ranges(n, int(rng.integers(1, n + 1))) for n in lengths]
    return [tuple(itertools.chain(*block)) for block in block_grid(*pieces)]


def pieces(rng, length, parts=3):
    """Ranges that cover [0, length), in up to `parts` pieces of random lengths."""
    return list(itertools.pairwise(sorted({0, length, *rng.integers(0, length + 1, parts - 1).tolist()})))


def draw(rng, *shape):
    """Normal numbers in float32."""
    return rng.standard_normal(shape).astype(np.float32)


def fill(array):
    """NaN, or the largest value of an integer dtype."""
    array[...] = np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max
    return array


def empty_map(feature_map):
    """NaN in all of a map."""
    return fill(np.empty(feature_map.shape, np.float32))


def random_map(rng, feature_map):
    """Random interior, zero halo."""
    array = np.zeros(feature_map.shape, np.float32)
    h, height, width = feature_map.halo, feature_map.height, feature_map.width
    inside = array[:, :, h : h + height, h : h + width]
    inside[...] = draw(rng, *inside.shape)
    return array


def run_maps(kernel, operands, outputs, source, target, bounds, instruction_set):
    """Run a compiled kernel that goes from one map to another; returns its outputs."""
    attributes = {**source.attributes("in"), **target.attributes("out")}
    return run_kernel(kernel, operands, outputs, attributes, bounds, "cpu", instruction_set)


def against_float64(kernel, operands, outputs, attributes, bounds, iteration=0):
    """Yield, for each instruction set and output: its name, what the compiled form left there, the result of the NumPy
    form in float64, and a text for messages."""
    expected = run_kernel(kernel, operands, outputs, attributes, bounds, "float64", iteration=iteration)
    for instruction_set in INSTRUCTION_SETS:
        got = run_kernel(kernel, operands, outputs, attributes, bounds, "cpu", instruction_set, iteration)
        for name in outputs:
            yield name, got[name], expected[name], f"{kernel} {name} {instruction_set}"


def check_linear(kernel, operands, outputs, attributes, bounds, terms, factor=0.0):
    """Check that each compiled form differs from the NumPy form in float64 by no more than rounding allows.

    `terms` products are summed for an element, so the error is below (terms + 4) * epsilon * sum of |a * b|,
    which the NumPy form computes from the absolute values; with a factor, of Winograd's algorithm, below that often the
    expected error of sums as large as the largest.
    """
    absolute = {n: np.abs(a) if a.dtype.kind == "f" else a for n, a in operands.items()}
    size = run_kernel(kernel, absolute, outputs, attributes, bounds, "float64")
    for name, got, expected, what in against_float64(kernel, operands, outputs, attributes, bounds):
        error, bound = np.abs(got - expected), (terms + 4) * EPSILON * np.abs(size[name]) + 1e-30
        if factor:
            bound = factor * np.sqrt(terms + 4) * EPSILON * np.abs(expected).max()
        np.testing.assert_array_less(error, bound, err_msg=what)
