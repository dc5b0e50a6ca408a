"""Kernels of whole networks touch what their blocks declare and need it; graphs are as wide as that."""

import dataclasses

import pytest

from forktask.cython_src.binding.checks import AccessError, check_accesses, find_unused_reads, span_in_tasks
from forktask.cython_src.kernels.convolution.specs import COMPARED
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.model import READ
from forktask.experiments.subjects.subject import fill_dataset

CASES = {
    "nchw16": {"batch": 32, "granularity": "images=16"},
    "nchw16, channels and rows": {"batch": 16, "granularity": "images=16,channels=8,rows=8"},
    "one image, channels and rows": {"batch": 1, "granularity": "images=1,channels=8,rows=16"},
    "nchw": {"batch": 3, "granularity": "images=2", "layout": "nchw"},
    "nchw16, not full": {"batch": 20, "layout": "nchw16"},
    "chain": {"batch": 32, "granularity": "images=16", "weight_gradients": "chain"},
    "no fusion": {"batch": 32, "granularity": "images=16", "fusion": "none"},
    "no fusion, nchw": {"batch": 2, "granularity": "images=1,channels=4", "fusion": "none", "layout": "nchw"},
    "direct": {"batch": 32, "granularity": "images=16", "conv": "direct"},
    "winograd, channels and rows": {"batch": 16, "granularity": "images=16,channels=7,rows=4", "conv": "winograd"},
    "if_blocked, channels": {"batch": 16, "granularity": "images=16,channels=7", "conv": "if_blocked"},
    "pad, chain, no fusion": {"batch": 16, "conv": "pad", "weight_gradients": "chain", "fusion": "none"},
    "winograd, no fusion": {"batch": 16, "conv": "winograd", "fusion": "none"},
    "forward": {"batch": 16, "phase": "forward"},
    "evaluate": {"batch": 16, "phase": "evaluate"},
}


def fill(bound):
    initialise(bound, 0)
    fill_dataset(bound, 0)


@pytest.mark.parametrize(
    ("network", "case"),
    [
        *(("cifar10_cnn", case) for case in CASES if not any(algorithm in case for algorithm in COMPARED)),
        *(("lenet5", case) for case in CASES if any(algorithm in case for algorithm in COMPARED)),
    ],
)
def test_kernels_touch_and_need_what_they_declare(network, case):
    """Check accesses on poisoned memory, and that no declared read is idle, on a sample of each loop's blocks."""
    plan = lower(network, **CASES[case])
    options = {"initialise": fill, "num_replays": 1, "blocks_per_loop": 2}
    check_accesses(plan, "cpu", **options)
    assert find_unused_reads(plan, "cpu", **options) == []


GRID = {"batch": 4, "granularity": "images=2,channels=8,rows=16", "layout": "nchw"}


@pytest.mark.parametrize("weight_gradients", ["partial", "chain"])
def test_the_graph_is_as_wide_as_its_formula(weight_gradients):
    """Check the longest chain of a step, that only loading hides behind the step before, and that edges grow with the
    tasks."""
    spans, edges = [], []
    for batch in (4, 8):
        plan = lower("cifar10_cnn", **{**GRID, "batch": batch}, weight_gradients=weight_gradients)
        graph = record_graph(plan.accesses)
        spans.append(span_in_tasks(graph))
        edges.append(graph.num_edges)
        assert span_in_tasks(graph, 2) < 2 * spans[-1] and graph.num_edges < 16 * plan.num_tasks
    print(spans, edges)
    assert edges[1] < 2.2 * edges[0] and (spans[0] == spans[1]) == (weight_gradients == "partial")


def test_shared_memory_adds_edges():
    """Check that shared buffers take less memory, and that the graph has more edges then."""
    full, shared = (lower("cifar10_cnn", **GRID, memory=memory) for memory in ("full", "shared"))
    assert sum(shared.memory_bytes().values()) < sum(full.memory_bytes().values())
    assert record_graph(shared.accesses).num_edges > record_graph(full.accesses).num_edges


def without_access(plan, number, dropped):
    """The plan with one access of the first block of a loop left out."""
    loop = plan.loops[number]
    first = loop.blocks[0]
    accesses = tuple(a for i, a in enumerate(first.accesses) if i != dropped)
    blocks = (dataclasses.replace(first, accesses=accesses), *loop.blocks[1:])
    loops = list(plan.loops)
    loops[number] = dataclasses.replace(loop, blocks=blocks)
    return dataclasses.replace(plan, loops=tuple(loops))


def test_missing_accesses_are_found():
    """Negative control: leave out one access of a compiled block in each loop; that block must be named."""
    plan = lower("cifar10_cnn", batch=1, granularity="images=1,channels=8,rows=16")
    for number, loop in enumerate(plan.loops):
        accesses = loop.blocks[0].accesses
        buffers = [access.buffer for access in accesses]
        alone = [i for i, buffer in enumerate(buffers) if buffers.count(buffer) == 1]  # no other access may cover it
        dropped = alone[number % len(alone)]
        with pytest.raises(AccessError) as caught:
            check_accesses(without_access(plan, number, dropped), "cpu", initialise=fill, num_replays=1)
        assert caught.value.task_name == f"{loop.name}[0]", (accesses[dropped], caught.value)
        reads = accesses[dropped].kind == READ
        assert caught.value.fault in ({"undeclared read", "failed"} if reads else {"undeclared write"})
