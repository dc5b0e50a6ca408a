"""Kernels with the channels in the lanes: their NumPy forms in float64 against PyTorch's layers and gradients.

The compiled forms are compared with these NumPy forms elsewhere, without PyTorch.
"""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import run_kernel

from forktask.cython_src.kernels.maps.channels import ChannelsMap, statistics_shape

pytestmark = pytest.mark.torch
CHANNELS = 19
CLOSE = {"rtol": 1e-10, "atol": 1e-11}


@pytest.fixture(scope="module")
def torch():
    import torch

    return torch


def filled(rng, m):
    array = np.zeros(m.shape)
    h = m.halo
    part = array[:, h : h + m.height, h : h + m.width, : m.channels]
    part[...] = rng.standard_normal(part.shape) + 1
    return array


def run(name, operands, outputs, bounds, **attributes):
    """Outputs of a kernel in float64; outputs are given as maps or shapes and hold NaN at the start."""
    arrays = {
        output: np.full(value.shape if isinstance(value, ChannelsMap) else value, np.nan)
        for output, value in outputs.items()
    }
    return run_kernel(name, {**operands, **arrays}, list(outputs), attributes, bounds, "float64")


def whole(m, *more):
    return [(0, m.batch, 0, m.height, 0, m.channels, *more)]


def natural(torch, m, array):
    return torch.tensor(m.natural()({m.name: array}).copy())


def gradient_of(torch, m, array, function):
    """Input, result and function that gives the input's gradient for the result's."""
    x = natural(torch, m, array).requires_grad_()
    y = function(x)

    def backward(dy):
        y.backward(dy)
        return x.grad

    return y.detach(), backward


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "halo"),
    [(3, 1, 1, 0), (3, 2, 1, 1), (2, 2, 0, 0), (5, 2, 2, 1), (7, 1, 3, 3), (3, 2, 0, 0)],
)
def test_windows_equal_pytorch(torch, kernel, stride, padding, halo):
    """Check depthwise convolution, maximum and average pooling, with all gradients."""
    functional = torch.nn.functional
    rng = np.random.default_rng(kernel)
    large = ChannelsMap("large", 2, CHANNELS, 9, 8, halo)
    small = ChannelsMap("small", 2, CHANNELS, *((n + 2 * padding - kernel) // stride + 1 for n in (9, 8)), 1)
    window = {"kernel": kernel, "stride": stride, "padding": padding}
    forward = {**large.attributes("in"), **small.attributes("out"), **window}
    backward = {**small.attributes("in"), **large.attributes("out"), **window, "accumulate": 0}
    x, dy = filled(rng, large), filled(rng, small)
    weight, bias = rng.standard_normal((CHANNELS, 1, kernel, kernel)), rng.standard_normal(CHANNELS)

    def check(m, array, expected):
        np.testing.assert_allclose(natural(torch, m, array), expected, **CLOSE)

    tensors = [torch.tensor(a, requires_grad=True) for a in (weight, bias)]
    y, gradient = gradient_of(
        torch, large, x, lambda t: functional.conv2d(t, *tensors, stride, padding, groups=CHANNELS)
    )
    operands = {"input": x, "weight": weight, "bias": bias}
    got = run("channels_depthwise_forward", operands, {"output": small}, whole(small, 0), **forward, activation=0)
    check(small, got["output"], y)
    dx = gradient(natural(torch, small, dy))
    operands = {"gradient": dy, "weight": weight}
    got = run("channels_depthwise_backward_data", operands, {"output": large}, whole(large), **backward)
    check(large, got["output"], dx)
    got = run(
        "channels_depthwise_backward_weights",
        {"gradient": dy, "input": x},
        {"output": (1, CHANNELS, kernel**2), "bias_output": (1, CHANNELS)},
        whole(small, 0),
        **small.attributes("gradient"),
        **large.attributes("in"),
        **window,
        accumulate=0,
    )
    np.testing.assert_allclose(got["output"].reshape(weight.shape), tensors[0].grad, **CLOSE)
    np.testing.assert_allclose(got["bias_output"][0], tensors[1].grad, **CLOSE)
    if padding > kernel // 2:
        return
    for name, function in (("max", functional.max_pool2d), ("average", functional.avg_pool2d)):
        y, gradient = gradient_of(torch, large, x, lambda t, f=function: f(t, kernel, stride, padding))
        index = {"index": np.zeros((2, small.height, small.width, small.pitch), np.uint8)} if name == "max" else {}
        arrays = {"input": x, "output": np.full(small.shape, np.nan), **index}
        got = run_kernel(f"channels_{name}_pool", arrays, ["output", *index], forward, whole(small), "float64")
        check(small, got["output"], y)
        index = {"index": got["index"]} if index else {}
        operands = {"gradient": dy, **index}
        got = run(f"channels_{name}_pool_backward", operands, {"output": large}, whole(large), **backward)
        check(large, got["output"], gradient(natural(torch, small, dy)))


@pytest.mark.parametrize("activation", [0, 1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_norm_equals_pytorch(torch, activation, training):
    """Check normalisation with residual and activation, running statistics, and, in training, all gradients."""
    functional = torch.nn.functional
    rng = np.random.default_rng(activation)
    source, other, target = (ChannelsMap(n, 3, CHANNELS, 5, 4, h) for n, h in (("z", 0), ("r", 1), ("y", 2)))
    z, residual, dy = filled(rng, source), filled(rng, other), filled(rng, target)
    affine = {"weight": rng.standard_normal(CHANNELS), "bias": rng.standard_normal(CHANNELS)}
    running = {"running_mean": rng.standard_normal(CHANNELS), "running_var": rng.uniform(1, 2, CHANNELS)}
    norm = torch.nn.BatchNorm2d(CHANNELS, dtype=torch.float64).train(training)
    with torch.no_grad():
        for name, value in {**affine, **running}.items():
            getattr(norm, name).copy_(torch.tensor(value))
    tz, tr = (natural(torch, m, a).requires_grad_() for m, a in ((source, z), (other, residual)))
    act = (lambda t: t, functional.relu, functional.relu6)[activation]
    ty = act(norm(tz) + tr)
    ty.backward(natural(torch, target, dy))

    vectors = {n: np.full(32, np.nan) for n in ("scale", "shift", *(("mean", "inv_std") if training else ()))}
    cut = [(0, 16), (16, CHANNELS)]
    if training:
        partials = run(
            "channels_norm_statistics",
            {"input": z},
            {"partials": statistics_shape(2, 32)},
            [(0, 2, 0, 5, 0), (2, 3, 0, 5, 1)],
            **source.attributes("in"),
        )["partials"]
        sizes = {"channels": CHANNELS, "num_partials": 2, "count": 60, "eps": 1e-5, "momentum": 0.1}
        got = run_kernel(
            "channels_norm_finish",
            {"partials": partials, **affine, **running, **vectors},
            [*vectors, *running],
            sizes,
            cut,
            "float64",
        )
        for name in running:
            np.testing.assert_allclose(got[name], getattr(norm, name), **CLOSE)
    else:
        sizes = {"channels": CHANNELS, "eps": 1e-5}
        got = run_kernel(
            "channels_norm_evaluate", {**affine, **running, **vectors}, list(vectors), sizes, cut, "float64"
        )
    vectors = {n: got[n] for n in vectors}
    halos = {"residual_halo": 1, "out_halo": 2, "activation": activation}
    operands = {"input": z, "scale": vectors["scale"], "shift": vectors["shift"], "residual": residual}
    y = run("channels_norm_apply", operands, {"output": target}, whole(source), **source.attributes("in"), **halos)[
        "output"
    ]
    np.testing.assert_allclose(natural(torch, target, y), ty.detach(), **CLOSE)
    if not training:
        return

    halos = {"gradient_halo": 2, "activations_halo": 2, "activation": activation}
    shared = {"gradient": dy, "input": z, "mean": vectors["mean"]}
    if activation:
        shared["activations"] = y
    partials = run(
        "channels_norm_backward_statistics",
        {**shared, "inv_std": vectors["inv_std"]},
        {"partials": (1, 2, 32)},
        [(0, 3, 0, 5, 0)],
        **source.attributes("in"),
        **halos,
    )["partials"]
    outputs = {"gradient_weight": (1, CHANNELS), "gradient_bias": (1, CHANNELS), "coefficients": (3, 32)}
    got = run(
        "channels_norm_backward_finish",
        {"partials": partials, "weight": affine["weight"], "inv_std": vectors["inv_std"]},
        outputs,
        cut,
        channels=CHANNELS,
        num_partials=1,
        count=60,
    )
    np.testing.assert_allclose(got["gradient_weight"][0], norm.weight.grad, **CLOSE)
    np.testing.assert_allclose(got["gradient_bias"][0], norm.bias.grad, **CLOSE)
    operands = {**shared, "coefficients": got["coefficients"]}
    halos |= {"out_halo": 0, "branch_halo": 1, "accumulate_branch": 0}
    got = run(
        "channels_norm_backward_apply",
        operands,
        {"output": source, "branch": other},
        whole(source),
        **source.attributes("in"),
        **halos,
    )
    np.testing.assert_allclose(natural(torch, source, got["output"]), tz.grad, **CLOSE)
    np.testing.assert_allclose(natural(torch, other, got["branch"]), tr.grad, **CLOSE)


@pytest.mark.parametrize("name", ["sgd", "sgd without momentum", "adam", "adamw"])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_optimizers_equal_pytorch(torch, name, max_norm):
    """Check four steps, with and without clipping by the norm."""
    rng = np.random.default_rng(0)
    size, rate, decay = 20, 0.1, 0.01
    parameter = rng.standard_normal(size)
    state = {"first_moment": np.zeros(size), "second_moment": np.zeros(size)}
    if name.startswith("sgd"):
        state = {} if "without" in name else {"velocity": np.zeros(size)}
    tensor = torch.tensor(parameter.copy(), requires_grad=True)
    optimizer = {
        "sgd": lambda p: torch.optim.SGD(p, rate, momentum=0.9, weight_decay=decay),
        "sgd without momentum": lambda p: torch.optim.SGD(p, rate, weight_decay=decay),
        "adam": lambda p: torch.optim.Adam(p, rate, weight_decay=decay),
        "adamw": lambda p: torch.optim.AdamW(p, rate, weight_decay=decay),
    }[name]([tensor])
    flat = {"num_partials": 2, "partial_stride": 25, "row_length": 4, "row_stride": 5, "row_offset": 0}
    attributes = {**flat, "num_rates": 1, "weight_decay": decay, "momentum": 0.9}
    kernel = "optimizer_sgd"
    if not name.startswith("sgd"):
        kernel = "optimizer_adam"
        attributes |= {"decoupled": int(name == "adamw"), "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
        del attributes["momentum"]
    for iteration in range(4):
        partials = rng.standard_normal((2, 5, 5))
        tensor.grad = torch.tensor(partials.sum(axis=0)[:, :4].reshape(-1))
        operands = {"partials": partials, "gradient": np.zeros(size)}
        if max_norm:
            torch.nn.utils.clip_grad_norm_([tensor], max_norm)
            got = run_kernel(
                "gradient_sum",
                {**operands, "squares": np.zeros(1)},
                ["gradient", "squares"],
                flat,
                [(0, size, 0)],
                "float64",
            )
            factor = run_kernel(
                "gradient_scale",
                {"squares": got["squares"], "scale": np.zeros(1)},
                ["scale"],
                {"num_squares": 1, "length": 1, "max_norm": max_norm},
                [()],
                "float64",
            )
            operands = {"gradient": got["gradient"], "scale": factor["scale"]}
        optimizer.step()
        operands |= {"parameter": parameter, **state, "learning_rates": np.array([rate])}
        outputs = ["parameter", *state]
        got = run_kernel(kernel, operands, outputs, attributes, [(0, 7), (7, size)], "float64", iteration=iteration)
        parameter, state = got["parameter"], {n: got[n] for n in state}
        np.testing.assert_allclose(parameter, tensor.detach(), **CLOSE)


def test_loss_equals_pytorch(torch):
    """Check cross-entropy with label smoothing and its gradient."""
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((6, 10, 1)), rng.integers(0, 10, (6, 1)).astype(np.int32)
    tensor = torch.tensor(logits[..., 0], requires_grad=True)
    loss = torch.nn.functional.cross_entropy(tensor, torch.tensor(labels[:, 0]).long(), label_smoothing=0.1)
    loss.backward()
    operands = {
        "logits": logits,
        "labels": labels,
        "gradient": np.zeros_like(logits),
        "losses": np.zeros(6),
        "correct": np.zeros(6, np.int32),
    }
    attributes = {"classes": 10, "lanes": 1, "batch": 6, "label_smoothing": 0.1}
    got = run_kernel("softmax_loss", operands, ["gradient", "losses"], attributes, [(0, 6)], "float64")
    np.testing.assert_allclose(got["losses"].sum() / 6, loss.item(), **CLOSE)
    np.testing.assert_allclose(got["gradient"][..., 0], tensor.grad, **CLOSE)
