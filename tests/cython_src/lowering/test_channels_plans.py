"""Plans in the layout "channels": accesses, widths, models."""

import numpy as np
import pytest
from cython_src.networks_for_tests import SMALL, fill

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import check_accesses, check_orders, span_in_tasks
from forktask.cython_src.kernels.simd import instruction_sets
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.registry import get_network
from forktask.cython_src.plan.dependences import record_graph
from forktask.experiments.sampling.models import make_executor
from forktask.experiments.sampling.subject import result_hashes

CASES = {
    "by cost": {},
    "cut everywhere": {"granularity": "images=1,channels=16,rows=2", "weight_gradients": "chain"},
    "nothing joined": {"fusion": "none", "clip_norm": 1.0, "optimizer": "adamw"},
}
# Each case with half of the networks: every kernel and option comes, in a third of the time.
PAIRS = [(name, case) for i, name in enumerate(SMALL) for k, case in enumerate(CASES) if (i + k) % 2 == 0]


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize(("name", "case"), PAIRS[::2])
def test_kernels_touch_what_they_declare(name, case, target):
    """Check accesses on poisoned memory, on a sample of each loop's blocks."""
    plan = lower(SMALL[name], batch=2, num_images=3, num_iterations_logged=4, **CASES[case])
    check_accesses(plan, target, initialise=fill, num_replays=1, blocks_per_loop=1 if target == "numpy" else 2)


@pytest.mark.parametrize("instruction_set", instruction_sets.available())
@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_compiled_kernels_equal_the_float64_form(name, case, instruction_set):
    """Check losses and all gradients of three steps within float32's rounding."""
    plan = lower(SMALL[name], batch=5, num_images=7, num_batches=2, momentum=0.5, **CASES[case])
    truth, bound = bind(plan, target="float64"), bind(plan, instruction_set=instruction_set)
    for each in (truth, bound):
        fill(each, rate=1e-3)
        with make_executor("serial", 1) as executor:
            executor.prepare(each)
            executor.run(3)
    np.testing.assert_allclose(bound.arrays["losses"][:3], truth.arrays["losses"][:3], rtol=2e-4)
    for parameter in plan.attributes["parameters"]:
        expected = truth.view(f"{parameter}.grad")
        tolerance = 1e-2 * np.abs(expected).max() + 1e-5
        np.testing.assert_allclose(bound.view(f"{parameter}.grad"), expected, rtol=0, atol=tolerance, err_msg=parameter)


MODELS = (
    "forkjoin",
    "forkjoin:region=persistent:schedule=dynamic",
    "tasks:taskwait=none",
    "taskgraph",
    "taskiter:placement=stealing",
    "taskiter:placement=partitioned",
)


@pytest.mark.parametrize(
    ("name", "case"), [("resnet18", "by cost"), ("mobilenet_v1", "cut everywhere"), ("branches", "nothing joined")]
)
def test_every_model_leaves_the_same_bits(name, case):
    """Check weights, losses and running statistics after four steps on 1 to 8 threads."""
    plan = lower(SMALL[name], batch=3, num_images=5, num_batches=2, **CASES[case])

    def after_four_steps(spec, threads):
        bound = bind(plan)
        fill(bound, rate=1e-3)
        with make_executor(spec, threads) as executor:
            executor.prepare(bound)
            executor.run(4)
        statistics = b"".join(bound.arrays[n].tobytes() for n, b in plan.buffers.items() if b.role == "statistic")
        return result_hashes(bound), statistics

    expected = after_four_steps("serial", 1)
    assert expected[0]["finite"]
    for spec in MODELS:
        for threads in (1, 2, 5, 8) if spec.startswith("task") else (1, 2, 8):
            assert after_four_steps(spec, threads) == expected, f"{spec} on {threads} threads"


@pytest.mark.parametrize("memory", ["full", "shared"])
def test_random_orders_equal_serial(memory):
    """Check that random legal orders, iterations overlapping, leave the serial run's bits."""
    plan = lower(SMALL["preact_resnet18"], batch=2, num_images=3, memory=memory, granularity="images=1,channels=16")
    bound = bind(plan)
    fill(bound, rate=1e-3)
    check_orders(bound, num_orders=5, num_replays=2)


def test_the_graph_of_resnet18_is_as_wide_as_it_should_be():
    """Check that no region is so wide that it serialises: the longest path has a few tasks for each layer."""
    plan = lower(get_network("resnet18"), batch=16)
    graph = record_graph(plan.accesses, closed=True)
    # Twenty convolutions with a norm each: pack, convolution, sums, norm; and back: sums, norm, data gradient.
    assert span_in_tasks(graph) <= 20 * 7 + 12
    assert graph.num_edges < 12 * plan.num_tasks
    assert plan.num_tasks > 8 * len(plan.loops)


@pytest.mark.parametrize("name", ["resnet18", "preact_resnet18", "resnext29_2x64d", "mobilenet_v2"])
def test_sums_and_statistics_have_no_loops_of_their_own(name):
    """Check that shortcuts are added, forward and back, and norms' sums are taken, where a map is written anyway."""
    kernels = [loop.kernel for loop in lower(get_network(name), batch=2).loops]
    assert not {"channels_add", "channels_norm_statistics", "channels_activation"} & {*kernels}
    apart = [loop.kernel for loop in lower(get_network(name), batch=2, fusion="activation").loops]
    assert "channels_add" in apart and "channels_norm_statistics" in apart


def test_batch_one_has_enough_blocks():
    """Check that a single image keeps eight threads busy in every convolution."""
    plan = lower(get_network("resnet18"), batch=1)
    for loop in plan.loops:
        if loop.kernel.startswith("channels_conv_") and loop.flops > 1e7:
            assert loop.num_blocks >= 8, loop.name
