"""Plans in the layout "nhwc": widths, loops, idle reads."""

import pytest
from cython_src.networks_for_tests import SMALL, fill

from forktask.cython_src.binding.checks import find_unused_reads, span_in_tasks
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.registry import get_network
from forktask.cython_src.plan.dependences import record_graph


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
    assert not {"nhwc_add", "nhwc_norm_statistics", "nhwc_activation"} & {*kernels}
    apart = [loop.kernel for loop in lower(get_network(name), batch=2, fusion="activation").loops]
    assert "nhwc_add" in apart and "nhwc_norm_statistics" in apart


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_input_rows_that_no_window_holds_read_no_gradient(name):
    """Check blocks of single rows where a stride of 2 skips the last row of the input."""
    plan = lower(SMALL[name], batch=1, granularity="images=1,rows=1", layout="nhwc")
    unused = find_unused_reads(plan, "cpu", initialise=fill, num_replays=1, blocks_per_loop=8)
    assert [read for read in unused if "data_gradient" in read[0]] == []


CASES = {
    "nothing joined": {"fusion": "none", "clip_norm": 0.01, "optimizer": "adamw"},
    "activations joined": {"fusion": "activation", "weight_gradients": "chain"},
    "all joined": {},
    "evaluation": {"fusion": "none", "phase": "evaluate"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["mobilenet_v2", "branches", "dense"])
def test_blocks_declare_no_idle_read(name, case):
    """Check that every declared read is used, with blocks of some rows and channels."""
    cut = "images=1,channels=16,rows=3"
    plan = lower(SMALL[name], batch=2, num_images=5, num_batches=2, layout="nhwc", granularity=cut, **CASES[case])
    assert find_unused_reads(plan, "cpu", initialise=fill, num_replays=2, blocks_per_loop=6) == []


def test_frozen_layers_stop_the_backward_pass():
    """Check which loops a network with shortcuts keeps, and which gradients it shows."""
    plan = lower(SMALL["resnet18"], batch=3, frozen="conv1,bn1,layer1")
    names = [loop.name for loop in plan.loops]
    assert "layer2.0.conv1.weight_gradient" in names and "layer2.0.conv1.data_gradient" not in names
    assert not any(name.startswith(("layer1.0.conv1.w", "bn1.gradient")) and "packed" not in name for name in names)
    for name in plan.attributes["parameters"]:
        trained = not name.startswith(("conv1", "bn1", "layer1"))
        assert trained == (f"{name}.grad" in plan.attributes["aliases"])
