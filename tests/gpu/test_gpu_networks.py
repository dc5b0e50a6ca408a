"""CUDA kernels of networks: every kernel of a plan has one; run by the CPU, they compute what the CPU's compute."""

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import EPSILON
from gpu.fake_gpu import emulator

import forktask as ft
from cython_src import networks_for_tests as images
from cython_src import tokens_for_tests as tokens
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import check_accesses, run_serial
from forktask.cython_src.gpu import blas as gpu_blas
from forktask.cython_src.gpu import launches as gpu_launches
from forktask.cython_src.gpu.bind import GpuBoundPlan
from forktask.cython_src.gpu.launch_graph import launch_graph
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.kernels.linear import grids
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.cython_src.networks.registry import get_network, network_names
from forktask.experiments.subjects.models import options_for, parse_model

# What the networks have not: odd channels, strides of pooling, dropout in both places, a depthwise bias.
MIXED = ft.Network(
    "mixed",
    (3, 9, 9),
    (
        ft.Conv2d("conv1", 20, 3, 1),
        ft.ReLU6("relu1"),
        ft.MaxPool("pool1", 3, 2, 1),
        ft.Dropout("drop1", 0.3),
        ft.Conv2d("depthwise", 20, 3, 1, 1, groups=20),
        ft.Conv2d("conv2", 24, 3, 1, 2, groups=4),
        ft.BatchNorm("bn"),
        ft.ReLU("relu2"),
        ft.AveragePool("pool2", 2, 1),
        ft.GlobalAvgPool("pool"),
        ft.Dropout("drop2", 0.5),
        ft.Linear("linear", 5),
        ft.SoftmaxCrossEntropy(),
    ),
)
LENET = ft.Network(
    "small lenet",
    (1, 14, 14),
    (
        ft.Conv2d("conv1", 3, 5, 1),
        ft.ReLU("relu1"),
        ft.MaxPool("pool1"),
        ft.Conv2d("conv2", 4, 5, 2),
        ft.ReLU("relu2"),
        ft.MaxPool("pool2"),
        ft.Linear("fc1", 7),
        ft.ReLU("relu3"),
        ft.Linear("fc2", 4),
        ft.SoftmaxCrossEntropy(),
    ),
)
CHAIN = convolutional_classifier("small", (2, 8, 32), (5, 4), 3)
# Of Adam's eps: where a gradient is all rounding, a small one makes a whole step of it.
SMOOTH = {"eps": 0.01}
ADAM = {**SMOOTH, "optimizer": "adamw", "clip_norm": 0.5, "label_smoothing": 0.1, "weight_decay": 0.01}
OF_TOKENS = {"eps": 0.01, "optimizer": "adamw", "weight_decay": 0.1}
CASES = {
    "nchw16": (CHAIN, {"batch": 19, "layout": "nchw16", "granularity": "images=16,channels=3,rows=4"}),
    "nchw": (CHAIN, {"batch": 3, "layout": "nchw", "granularity": "images=1,channels=2,rows=4"}),
    "odd rows": (CHAIN, {"batch": 3, "layout": "nchw", "granularity": "rows=3", "fusion": "none"}),
    "chain": (
        CHAIN,
        {"batch": 19, "layout": "nchw16", "fusion": "none", "weight_gradients": "chain", "granularity": "channels=4"},
    ),
    "one block": (CHAIN, {"batch": 5, "layout": "nchw", "granularity": "images=5"}),
    "shared": (CHAIN, {"batch": 3, "layout": "nchw", "memory": "shared"}),
    "resnet18": (images.SMALL["resnet18"], {}),
    "preact_resnet18": (images.SMALL["preact_resnet18"], {"granularity": "images=1", "weight_gradients": "chain"}),
    "resnext29": (images.SMALL["resnext29_2x64d"], {"fusion": "none", "granularity": "images=2,channels=32"}),
    "mobilenet_v1": (images.SMALL["mobilenet_v1"], {"granularity": "images=2", **ADAM}),
    "mobilenet_v2": (images.SMALL["mobilenet_v2"], {"granularity": "images=2,rows=3", "optimizer": "adam", **SMOOTH}),
    "mobilenet_v2, kept maps": (
        images.SMALL["mobilenet_v2"],
        {"granularity": "images=2", "fusion": "activation,residual,statistics"},
    ),
    "branches": (images.SMALL["branches"], {"granularity": "rows=4", "frozen": "conv1"}),
    "mixed": (MIXED, {"granularity": "channels=16,rows=2", "momentum": 0.0, "dropout_seed": 5}),
    "maps of classes": (images.SMALL["maps of classes"], {"granularity": "images=1,channels=16"}),
    "dense": (images.SMALL["dense"], {"granularity": "images=1,rows=4"}),
    "starpu_cnn": (images.SMALL["starpu_cnn"], {"granularity": "images=1,channels=16"}),
    "lenet": (LENET, {"granularity": "images=16"}),
    "gpt2": (tokens.SMALL, OF_TOKENS),
    "gpt2, nothing joined": (tokens.SMALL, {**OF_TOKENS, "fusion": "none"}),
    "gpt2, one block": (
        tokens.SMALL,
        {**OF_TOKENS, "granularity": "images=3,rows=6", "clip_norm": 0.1, "decay": "matrices"},
    ),
    "gpt2, cut everywhere": (tokens.SMALL, {**OF_TOKENS, "granularity": "images=1,channels=5,rows=4,heads=1"}),
    "gpt2, chain": (tokens.SMALL, {**OF_TOKENS, "granularity": "images=1", "weight_gradients": "chain"}),
    "gpt2, computed again": (
        tokens.SMALL,
        {**OF_TOKENS, "memory": "shared", "recompute": True, "granularity": "images=2,heads=2"},
    ),
    "both ways": (tokens.BOTH_WAYS, OF_TOKENS),
    "twice tied": (tokens.TWICE_TIED, {**OF_TOKENS, "granularity": "images=1"}),
    "mobilebert": (tokens.MASKED, OF_TOKENS),
    "mobilebert, nothing joined": (
        tokens.MASKED,
        {**OF_TOKENS, "fusion": "none", "granularity": "images=1,channels=5,rows=4,heads=1"},
    ),
    "nchw16, on a device": (CHAIN, {"batch": 19, "layout": "nchw16", "granularity": "device"}),
    "resnext29, on a device": (images.SMALL["resnext29_2x64d"], {"granularity": "device"}),
    "mobilenet_v2, on a device": (
        images.SMALL["mobilenet_v2"],
        {"granularity": "device", "optimizer": "adam", **SMOOTH},
    ),
    "gpt2, on a device": (tokens.SMALL, {**OF_TOKENS, "granularity": "device", "clip_norm": 0.1}),
    "mobilebert's class": (tokens.CLASSIFIER, {**OF_TOKENS, "granularity": "images=3,rows=6"}),
}
# Networks with products that the library computes, where they fill the device.
BY_CUBLAS = ("mobilenet_v1", "mobilenet_v2", "lenet", "gpt2", "gpt2, nothing joined", "mobilebert")
# What products there are: dense and grouped convolutions, with strides, linear layers and attention.
IN_TF32 = ("resnet18", "resnext29", "gpt2, cut everywhere", "both ways", "mobilebert")


def make_plan(name, **more):
    network, options = CASES[name]
    own = {"batch": 3, "sequence": 6, "num_images": 5} if network.tokens else {"batch": 2, "conv": "direct"}
    options = {**own, **options, **more}
    return lower(network, **{"num_images": options["batch"] + 1, "num_batches": 2, **options}, num_iterations_logged=4)


def fill(bound):
    (tokens if "dataset.tokens" in bound.arrays else images).fill(bound)


def steps(plan, target="cpu", count=2):
    bound = bind(plan, target=target)
    fill(bound)
    run_serial(bound, count)
    return bound.arrays


@pytest.mark.parametrize("name", network_names())
def test_every_kernel_of_every_network_has_a_cuda_form(name):
    """Check that a GPU can launch the plans of a network, in all phases and options that bring other kernels; of the
    forms for larger images, which differ in size and stem, the training plan."""
    of_tokens = get_network(name).tokens is not None
    sizes = {"batch": 2, "sequence": 16} if of_tokens else {"batch": 16, "conv": "direct"}
    clipped = {"clip_norm": 1.0, "decay": "matrices"} if of_tokens else {}
    cases = [
        ("train", {}),
        ("train", {"optimizer": "adamw", **clipped}),
        ("train", {"fusion": "none"}),
        ("forward", {}),
        ("evaluate", {}),
    ]
    for phase, options in cases[:1] if name.endswith(("_64", "_224")) else cases:
        plan = lower(name, **sizes, phase=phase, granularity=f"images={sizes['batch']}", **options)
        for loop in plan.loops:
            launches = gpu_launches.launches_of(loop.kernel, loop.attributes, loop.bounds, loop.operands)
            spec = kernel_table.get(loop.kernel)
            assert all(gpu_launches.file_of(how.symbol) for how in launches)
            assert max(how.shared_bytes for how in launches) <= 48 << 10  # what a GPU gives without being asked
            assert len(spec.operands) <= gpu_launches.MAX_OPERANDS and len(spec.integers) <= gpu_launches.MAX_INTEGERS


@pytest.mark.parametrize(
    ("name", "batch", "launches", "products", "left_with_epilogues"),
    [
        ("resnet18", 64, 185, 2, 185),
        ("mobilenet_v2", 64, 449, 2, 449),
        ("gpt2_small", 64, 112, 75, 58),
        ("gpt2", 4, 214, 147, 106),
    ],
)
def test_a_step_on_a_gpu_is_few_launches(name, batch, launches, products, left_with_epilogues):
    """Check that blocks are whole loops but for sums, all of which one launch runs; that all updates, and all packings,
    are one launch; that the library gets the loops of one product, and, where asked to, what follows these; and which
    models get such a plan."""
    model = parse_model("gpu_taskiter")
    plan = lower(name, batch=batch, **options_for(model, "auto", "auto"))
    whole = {"nhwc_conv_forward", "nhwc_conv_backward_data", "nhwc_norm_apply", "linear_forward", "attention_forward"}
    assert all(loop.num_blocks == 1 for loop in plan.loops if loop.kernel in whole)
    by_library, number, fewer, functions = [], 0, 0, []
    for loop in plan.loops:
        spec = kernel_table.get(loop.kernel)
        given, fused = (GpuBoundPlan._products(spec, loop, offers) for offers in (None, lambda product: True))
        how, less = (
            gpu_launches.launches_of(loop.kernel, loop.attributes, loop.bounds, loop.operands, products=one)
            for one in (given, fused)
        )
        by_library += given.blocks if given else ()
        number += len(how) - bool(given)
        fewer += len(how) - len(less)
        functions.append(loop.kernel if loop.kernel in gpu_launches.TOGETHER else None)
        assert given is None or loop.num_blocks == 1
    together = [len(loops) for loops in launch_graph(plan, functions).launches if len(loops) > 1]
    assert number - sum(together) + len(together) == launches and len(by_library) == products
    assert launches - fewer == left_with_epilogues
    for text in ("gpu_both", "serial"):
        assert options_for(text, "auto", "auto")["granularity"] == "auto"
    assert options_for(model, "auto", "threads=2")["granularity"] == "device"
    assert options_for(model, "auto", "images=1")["granularity"] == "images=1"


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("name", "products"),
    [
        *((name, "own") for name in CASES),
        *((name, "cublas") for name in BY_CUBLAS),
        *((name, "cublaslt") for name in ("gpt2", "gpt2, nothing joined", "mobilebert")),
        *((name, "3xtf32") for name in IN_TF32),
    ],
)
def test_two_training_steps_equal_the_reference(name, products, monkeypatch):
    """Check every array of a training plan after two steps of CUDA kernels against float64, as close as the CPU's
    kernels; matrix products by our kernels, in float32 or three times in TF32, or as cuBLAS is asked for them."""
    monkeypatch.setattr(gpu_blas, "FILLING", 0)
    plan = make_plan(name)
    expected, cpu = steps(plan, "float64"), steps(plan)
    got = steps(emulator.with_cuda_kernels(plan, 3, products=products))
    for buffer in plan.buffers.values():
        if buffer.name in plan.arena_of:
            continue
        if buffer.dtype != "float32":
            assert (got[buffer.name] == cpu[buffer.name]).all(), buffer.name
            continue
        norm = np.linalg.norm(expected[buffer.name])
        if 0 < norm < 1e-10:  # zeros but for rounding: the same number added to all keys changes no softmax
            assert np.abs(got[buffer.name]).max() < 1e-5, buffer.name
            continue
        errors = [np.linalg.norm(a[buffer.name] - expected[buffer.name]) / (norm + 1e-30) for a in (got, cpu)]
        assert errors[0] < 4 * errors[1] + 16 * EPSILON, (buffer.name, errors)


@pytest.mark.cxx
@pytest.mark.parametrize("products", ["own", "cublas", "tf32"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nchw", {}),
        ("chain", {}),
        *(
            (name, {"granularity": "images=1,channels=16,rows=4"})
            for name in ("resnet18", "preact_resnet18", "branches", "mixed", "dense")
        ),
        *(("gpt2", {"granularity": "images=1,rows=4", **o}) for o in ({}, {"fusion": "none"}, {"phase": "evaluate"})),
    ],
)
def test_kernels_touch_what_they_declare(name, options, products, monkeypatch):
    """Check the CUDA kernels' accesses: undeclared reads do not matter, undeclared writes do not happen."""
    monkeypatch.setattr(gpu_blas, "FILLING", 0)
    plan = emulator.with_cuda_kernels(make_plan(name, **options), products=products)
    assert check_accesses(plan, "cpu", initialise=fill, num_replays=1, blocks_per_loop=1) > len(plan.loops) / 2


@pytest.mark.cxx
@pytest.mark.parametrize("name", ["nchw", "mixed", "gpt2, one block"])
def test_results_do_not_depend_on_the_order_of_threads_or_blocks(name, monkeypatch):
    """Check that CUDA blocks and threads may run in any order, also those that have parts of one sum: all buffers are
    bit-identical for two more seeds."""
    monkeypatch.setattr(grids, "PART_TERMS", grids.STEP)
    plan = make_plan(name)
    runs = [steps(emulator.with_cuda_kernels(plan, seed), count=1) for seed in range(3)]
    for buffer in plan.buffers:
        for other in runs[1:]:
            assert runs[0][buffer].tobytes() == other[buffer].tobytes(), buffer


@pytest.mark.cxx
@pytest.mark.parametrize("phase", ["forward", "evaluate"])
@pytest.mark.parametrize("network", [CHAIN, images.SMALL["mobilenet_v2"], tokens.SMALL], ids=lambda n: n.name)
def test_inference_equals_the_cpu(network, phase):
    """Check answers, losses and hits of the CUDA kernels against the CPU's."""
    sizes = {"sequence": 6} if network.tokens else {"conv": "direct", "num_batches": 2}
    batch = 21 if network is CHAIN else 3
    plan = lower(network, batch=batch, phase=phase, num_images=30, num_iterations_logged=4, **sizes)
    cpu, got = steps(plan), steps(emulator.with_cuda_kernels(plan))
    for buffer in plan.buffers.values():
        np.testing.assert_allclose(got[buffer.name], cpu[buffer.name], rtol=1e-4, atol=1e-4, err_msg=buffer.name)
