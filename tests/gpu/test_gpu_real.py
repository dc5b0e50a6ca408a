"""On a real GPU: what the fake device proves, once more, and what only a GPU can show.

Everything here skips with a reason where there is no GPU; `make test-gpu` runs it where there is one.
"""

import numpy as np
import pytest
from cython_src.tokens_for_tests import CLASSIFIER, MASKED, SMALL
from cython_src.tokens_for_tests import fill as fill_tokens
from gpu import test_gpu_models
from gpu.test_gpu_models import persistent

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import run_serial
from forktask.cython_src.gpu import blas as gpu_blas
from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.gpu.bind import GpuBoundPlan, device_storage
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks import gpt2, mobilenet_v2, preact_resnet18, resnet18, resnext29_2x64d
from forktask.forkjoin.gpu_transfers import GpuHostLoadExecutor
from forktask.tasking.gpu_both import GpuBothExecutor

STEPS, BATCH = 5, 16
MODELS = {
    **test_gpu_models.MODELS,
    "host load": (GpuHostLoadExecutor, {"copies": "synchronous"}),
    "host load, prefetch": (GpuHostLoadExecutor, {}),
}
PLANS = {
    "nchw16": {"layout": "nchw16"},
    "nchw": {"layout": "nchw"},
    "one block a loop": {"layout": "nchw16", "granularity": "images=16,channels=32,rows=32"},
    "chain": {"layout": "nchw", "weight_gradients": "chain", "granularity": "images=4"},
    "unfused": {"layout": "nchw16", "fusion": "none"},
    "shared": {"layout": "nchw", "memory": "shared"},
}

# Heads of more features than a tile has.
WIDE = gpt2.network("wide", num_layers=1, features=144, heads=2, vocabulary=300, positions=12)
NETWORKS = {
    "resnet18": (resnet18.network("small_resnet", 16, 10, width=32, blocks=(1, 2)), {}),
    "preact_resnet18": (preact_resnet18.network("small_preact", 16, 10, width=16, blocks=(1, 1)), {"fusion": "none"}),
    "resnext29": (
        resnext29_2x64d.network("small_resnext", 16, 10, width=32, blocks=(1, 1)),
        {"weight_gradients": "chain"},
    ),
    "mobilenet_v2": (
        mobilenet_v2.network("small_mobile", 16, 10, width=32, stages=((1, 16, 1, 1), (6, 24, 2, 2)), last=64),
        {"optimizer": "adamw", "eps": 0.01, "clip_norm": 1.0, "label_smoothing": 0.1},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def gpu():
    return gpu_device.default_gpu()


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    """Let the library have the products of small networks too."""
    monkeypatch.setattr(gpu_blas, "FILLING", 0)


pytestmark = pytest.mark.gpu


def make_plan(network="cifar10_cnn", **options):
    sizes = {"num_images": 64, "num_batches": 4, "num_iterations_logged": 8, "num_learning_rates": 3}
    return lower(network, batch=BATCH, **sizes, **{"conv": "direct", **options})


def fill(bound):
    initialise(bound, 1)
    rng = np.random.default_rng(2)
    arrays = bound.arrays
    arrays["dataset.images"][...] = rng.standard_normal(arrays["dataset.images"].shape)
    arrays["dataset.labels"][...] = rng.integers(0, 10, 64)
    arrays["batch_order"][...] = rng.permutation(64).reshape(4, 16)
    arrays["learning_rates"][...] = [0.02, 0.01, 0.005]


def make_network_plan(name):
    network, own = NETWORKS[name]
    return make_plan(network, **own)


def run(gpu, plan, model, kind="pageable", products="cublas", steps=STEPS):
    executor, settings = MODELS[model]
    if "launch" in settings and not gpu.has_pdl:
        pytest.skip("launch=pdl is for sm_90 or newer")
    bound = GpuBoundPlan(plan, device_storage(gpu, kind), gpu, products)
    fill(bound)
    with executor(**settings) as running:
        running.prepare(bound)
        running.run(2)
        running.run(steps - 2, 2)
    arrays = persistent(bound)
    bound.close()
    return arrays


def assert_close(arrays, cpu, tolerance=2e-4):
    for name, array in arrays.items():
        if array.dtype == np.float32:
            error = np.linalg.norm(array - cpu[name]) / (np.linalg.norm(cpu[name]) + 1e-30)
            assert error < tolerance, f"{name}: {error:.1e}"


def on_cpu(plan):
    bound = bind(plan)
    fill(bound)
    run_serial(bound, STEPS)
    return bound.arrays


@pytest.mark.parametrize("name", PLANS)
def test_numbers_are_the_cpus(gpu, name):
    """Check five training steps of each kind of plan against the CPU's kernels, within rounding."""
    plan = make_plan(**PLANS[name])
    assert_close(run(gpu, plan, "stream"), on_cpu(plan))


@pytest.mark.parametrize("name", ["nchw16", "chain"])
@pytest.mark.parametrize("model", MODELS)
def test_models_agree_bit_for_bit(gpu, model, name):
    """Check that every model leaves the same bits as a single stream."""
    plan = make_plan(**PLANS[name])
    expected, got = run(gpu, plan, "stream"), run(gpu, plan, model, "pinned")
    for buffer in expected:
        assert got[buffer].tobytes() == expected[buffer].tobytes(), buffer


@pytest.mark.parametrize("products", ["cublas", "own", "3xtf32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_numbers_of_networks_are_the_cpus(gpu, name, products):
    """Check two training steps of small forms of the networks against float64, within rounding."""
    plan = make_network_plan(name)
    bound = bind(plan, target="float64")
    fill(bound)
    run_serial(bound, 2)
    got = run(gpu, plan, "stream", products=products, steps=2)
    for parameter in plan.attributes["parameters"]:
        np.testing.assert_allclose(got[parameter], bound.arrays[parameter], rtol=2e-3, atol=2e-4, err_msg=parameter)
    np.testing.assert_allclose(got["losses"][:2], bound.arrays["losses"][:2], rtol=1e-4)


@pytest.mark.parametrize("products", ["cublas", "tf32", "3xtf32", "own"])
@pytest.mark.parametrize(
    "model",
    ["tasks, three streams, no taskwait", "taskgraph", "taskiter", "taskiter, four streams", "host load, prefetch"],
)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_models_agree_bit_for_bit_on_networks(gpu, name, model, products):
    """Check that launches of blocks, several streams and captured graphs leave the bits of a single stream, whoever
    computes the matrix products."""
    plan = make_network_plan(name)
    expected, got = (run(gpu, plan, m, "pinned", products=products) for m in ("stream", model))
    for buffer in expected:
        assert got[buffer].tobytes() == expected[buffer].tobytes(), buffer


@pytest.mark.parametrize("products", ["cublas", "cublaslt", "own", "3xtf32"])
@pytest.mark.parametrize("network", [SMALL, MASKED, CLASSIFIER, WIDE], ids=lambda network: network.name)
def test_networks_of_tokens(gpu, network, products):
    """Check two AdamW steps of transformers against float64 within rounding, and that models leave the same bits."""
    options = {"optimizer": "adamw", "eps": 0.01, "clip_norm": 1.0, "granularity": "images=1,heads=2"}
    plan = lower(network, batch=3, sequence=12, num_images=5, num_batches=2, num_iterations_logged=4, **options)
    exact = bind(plan, target="float64")
    fill_tokens(exact)
    run_serial(exact, 2)
    result, form = [], (products, "kernel") if products != "cublaslt" else ("cublas", "cublaslt")
    for model in ("stream", "tasks, three streams, no taskwait", "taskgraph", "taskiter, four streams"):
        executor, settings = MODELS[model]
        bound = GpuBoundPlan(plan, device_storage(gpu, "pinned"), gpu, *form)
        fill_tokens(bound)
        with executor(**settings) as running:
            running.prepare(bound)
            running.run(2)
        result.append(persistent(bound))
        bound.close()
    for name in ("losses", *plan.attributes["parameters"]):
        np.testing.assert_allclose(result[0][name], exact.arrays[name], rtol=2e-3, atol=2e-4, err_msg=name)
        assert len({arrays[name].tobytes() for arrays in result}) == 1, name


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_loops_divided_between_host_and_device(gpu, name):
    """Check the losses of steps of which a part of each loop runs on the host."""
    plan = make_network_plan(name)
    bound = GpuBoundPlan(plan, device_storage(gpu, "pinned"), gpu)
    fill(bound)
    with GpuBothExecutor() as executor:
        executor.prepare(bound)
        executor.run(STEPS)
    losses, expected = bound.arrays["losses"][:STEPS], on_cpu(plan)["losses"][:STEPS]
    np.testing.assert_allclose(losses, expected, rtol=1e-2)
    bound.close()
