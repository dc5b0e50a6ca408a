"""SGD, Adam and clipping: compiled forms against their NumPy forms in float64, random shapes."""

import numpy as np
from cython_src.kernels.kernel_testing import draw, fill
from cython_src.kernels.nhwc_testing import FEW, compare, seeds
from hypothesis import given
from hypothesis import strategies as st

from forktask.cython_src.plan.builder import ranges


@FEW
@given(
    st.integers(1, 5),
    st.sampled_from([1, 9, 27, 64]),
    st.integers(1, 4),
    st.sampled_from(["all", "rows", "last"]),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_optimizers(rows, length, partials, form, summed, clipped, seed):
    """Check SGD with and without momentum, Adam and AdamW on whole gradients and on columns of others; SGD also of rows
    of weights with the biases whose gradients are the last column."""
    rng = np.random.default_rng(seed)
    row_length, columns, offset = {"all": (rows * length, rows * length, 0), "rows": (length, length + 1, 0)}.get(
        form, (1, length + 1, length)
    )
    size = rows * length if form != "last" else rows
    stride = columns if form == "all" else rows * columns
    attributes = {
        "num_partials": partials,
        "partial_stride": stride,
        "row_length": row_length,
        "row_stride": columns,
        "row_offset": offset,
    }
    blocks = ranges(size, int(rng.integers(1, size + 1)))
    base = {"gradient": draw(rng, size) if summed else fill(np.empty(size, np.float32))}
    if not summed:
        base["partials"] = draw(rng, partials, stride)
    tolerance = 20 + 4 * partials
    operands = {**base, "squares": fill(np.empty(len(blocks), np.float32))}
    numbered_blocks = [(*b, i) for i, b in enumerate(blocks)]
    compare("gradient_sum", operands, ["gradient", "squares"], attributes, numbered_blocks, tolerance + 4 * size)
    base |= {"parameter": draw(rng, size), "learning_rates": rng.uniform(0.01, 0.1, 3).astype(np.float32)}
    if clipped:
        base["scale"] = np.array([0.3], np.float32)
    attributes |= {"num_rates": 3, "weight_decay": 0.01}
    for momentum in (True, False):
        operands = {**base, "velocity": draw(rng, size)} if momentum else base
        outputs = ["gradient", "parameter", "velocity"] if momentum else ["gradient", "parameter"]
        compare("optimizer_sgd", operands, outputs, {**attributes, "momentum": 0.9}, blocks, tolerance, iteration=4)
        if form == "rows" and not (summed or clipped):
            own = {"bias": draw(rng, rows), "bias_gradient": fill(np.empty(rows, np.float32))}
            own |= {"bias_velocity": draw(rng, rows)} if momentum else {}
            whole = [(length * start, length * stop) for start, stop in ranges(rows, int(rng.integers(1, rows + 1)))]
            further = {**attributes, "momentum": 0.9}
            compare("optimizer_sgd", operands | own, [*outputs, *own], further, whole, tolerance, iteration=4)
    attributes |= {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    operands = {**base, "first_moment": draw(rng, size), "second_moment": np.abs(draw(rng, size)) + 0.1}
    outputs = ["gradient", "parameter", "first_moment", "second_moment"]
    for decoupled in (0, 1):
        of_adam = {**attributes, "decoupled": decoupled}
        compare("optimizer_adam", operands, outputs, of_adam, blocks, 4 * tolerance, iteration=10)


def test_gradient_scale():
    """Check the factor of clipping and the logged norm, clipped or not."""
    for size in (0.01, 10.0):
        operands = {
            "squares": np.full(5, size, np.float32),
            "scale": fill(np.empty(1, np.float32)),
            "norm_log": fill(np.empty(3, np.float32)),
        }
        attributes = {"num_squares": 5, "length": 3, "max_norm": 1.0}
        got = compare("gradient_scale", operands, ["scale", "norm_log"], attributes, [()], 4, iteration=4)
        np.testing.assert_allclose(got["norm_log"][1], (5 * size) ** 0.5, rtol=1e-6)
        np.testing.assert_allclose(got["scale"], min(1.0, 1 / (5 * size) ** 0.5), rtol=1e-5)
