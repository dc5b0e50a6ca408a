"""Forms of convolution that are compared with the direct one, images in the vector lanes."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import EPSILON, INSTRUCTION_SETS, cut, fill, random_map, run_kernel
from cython_src.networks_for_tests import fill as fill_plan

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.convolution.algorithms import COMPARED
from forktask.cython_src.kernels.maps.lanes import LanesMap
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.plan.builder import ranges
from forktask.experiments.sampling.models import make_executor

# Rows of the result: fewer than a strip of "pad", more, and no multiple of a tile.
SIZES = [(2, 2), (6, 14), (18, 6), (34, 10)]


def problem(seed):
    """Random map, weights and blocks; the padding is the map's halo."""
    rng = np.random.default_rng(seed)
    height, width = SIZES[seed % len(SIZES)]
    halo = int(rng.integers(0, 3))
    source = LanesMap("source", 2, int(rng.integers(1, 5)), height + 4 - 2 * halo, width + 4 - 2 * halo, 16, halo)
    return rng, source, (int(rng.integers(1, 9)), height, width)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("seed", range(8))
def test_every_form_has_the_direct_forms_bits(seed, instruction_set):
    """Check the forward pass and the data gradient, alone and fused with pooling, cut at random."""
    rng, source, (channels, height, width) = problem(seed)
    halo = int(rng.integers(0, 3))
    weights = rng.standard_normal((channels, source.channels, 5, 5)).astype(np.float32)
    for kernel in ("forward", "relu_pool", "backward_data", "backward_data_unpool"):
        pooled, spread = kernel == "relu_pool", kernel.endswith("unpool")
        size = (height // 2, width // 2) if pooled else (2 * height, 2 * width) if spread else (height, width)
        target = LanesMap("target", 2, channels, *size, 16, halo)
        operands = {"gradient" if "data" in kernel else "input": random_map(rng, source), "weight": weights}
        if "data" in kernel:
            operands["weight"] = np.ascontiguousarray(weights.swapaxes(0, 1))
        else:
            operands["bias"] = rng.standard_normal(channels).astype(np.float32)
        operands["output"] = fill(np.empty(target.shape, np.float32))
        outputs = ["output"]
        if pooled:
            operands["index"] = fill(np.empty((2, channels, *size, 16), np.uint8))
            outputs.append("index")
        elif spread:
            operands["index"] = rng.integers(0, 5, (2, channels, height, width, 16)).astype(np.uint8)
        attributes = {**source.attributes("in"), **target.attributes("out")}
        bounds = cut(rng, 2, channels, height // 2 if pooled else height)
        expected = run_kernel(f"conv_{kernel}", operands, outputs, attributes, bounds, "cpu", instruction_set)
        for algorithm in COMPARED:
            got = run_kernel(
                f"conv_algorithm_{kernel}",
                operands,
                outputs,
                {**attributes, "algorithm": COMPARED.index(algorithm)},
                bounds,
                "cpu",
                instruction_set,
            )
            for name in outputs:
                np.testing.assert_array_equal(got[name], expected[name], err_msg=f"{kernel} {algorithm} {name}")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("algorithm", COMPARED)
def test_weight_gradients_equal_the_float64_form(algorithm, seed):
    """Check weights and bias within rounding, written and added to, for each instruction set."""
    rng, source, (channels, height, width) = problem(seed)
    gradient = LanesMap("gradient", 2, channels, height, width, 16, int(rng.integers(0, 3)))
    accumulate = seed % 2
    shape = (1, channels, 25 * source.channels + 1)
    operands = {
        "gradient": random_map(rng, gradient),
        "input": random_map(rng, source),
        "output": rng.standard_normal(shape).astype(np.float32) if accumulate else fill(np.empty(shape, np.float32)),
    }
    attributes = {
        **gradient.attributes("dy"),
        **source.attributes("in"),
        "accumulate": accumulate,
        "algorithm": COMPARED.index(algorithm),
    }
    bounds = [(0, 0, 2, *c) for c in ranges(channels, int(rng.integers(1, channels + 1)))]
    name = "conv_algorithm_backward_weights"
    expected = run_kernel(name, operands, ["output"], attributes, bounds, "float64")["output"]
    absolute = {n: np.abs(a) for n, a in operands.items()}
    size = run_kernel(name, absolute, ["output"], attributes, bounds, "float64")["output"]
    for instruction_set in INSTRUCTION_SETS:
        got = run_kernel(name, operands, ["output"], attributes, bounds, "cpu", instruction_set)
        error = np.abs(got["output"] - expected)
        # Sums of so many products, and of as many partial sums.
        assert (error <= (32 * height * width + 2) * EPSILON * size + 1e-30).all(), instruction_set
        assert error.max() <= 1e-5 * size.max(), instruction_set


@pytest.mark.parametrize("algorithm", COMPARED)
def test_networks_train_by_every_algorithm(algorithm):
    """Check losses and gradients of two steps against the direct algorithm, and what is noted; a group is not full."""
    results = []
    for conv in ("direct", algorithm):
        plan = lower("lenet5", batch=20, conv=conv)
        assert plan.attributes["layout"] == "lanes"
        assert set(plan.attributes["convolutions"].values()) == {conv}
        bound = bind(plan)
        fill_plan(bound)
        with make_executor("serial", 1) as executor:
            executor.prepare(bound)
            executor.run(2)
        results.append((bound.arrays["losses"][:2].copy(), bound.view("conv1.weight.grad").copy()))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5)
    np.testing.assert_allclose(results[1][1], results[0][1], atol=1e-4 * np.abs(results[0][1]).max())


def test_forms_need_whole_groups_of_images():
    """Check that images in the rows of pixels have no such forms, and that the sentence says so."""
    with pytest.raises(UsageError, match="in layout 'flat', got 'im2col'; use one of them, or layout 'auto'"):
        lower("cifar10_cnn", batch=3, conv="im2col", layout="flat")
