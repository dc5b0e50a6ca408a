"""The exact tier sees each thing that may not happen."""

import copy
import json
import re

import pytest
from programs import run_python

from experiments.scaling import graphs
from forktask.experiments.scaling import exact
from forktask.experiments.subjects import subject
from forktask.experiments.subjects.models import parse_model, parse_models

GRAPH = {"tasks": 4, "edges": 3, "cross_edges": 4, "joins": 0, "loops": {"f": {"blocks": 4, "edges": 7}}}


def fact(model="taskiter", threads=2, **changes):
    """A row of which nothing can be said against."""
    return {
        "model": parse_model(model),
        "threads": threads,
        "deterministic": True,
        "records": model in ("taskiter", "taskgraph"),
        "hashes": {"x": "1", "y": "2"},
        "graph": copy.deepcopy(GRAPH),
        "recordings": int(model in ("taskiter", "taskgraph")),
        "recordings_in_runs": 0,
        "threads_seen": threads,
        "threads_possible": threads,
        "allocations_per_pass": 0.0,
        **changes,
    }


@pytest.mark.parametrize(
    "change, said",
    [
        ({"hashes": {"x": "1", "y": "3"}}, "taskiter on 2 threads leaves other bits than serial on 1 thread in y"),
        ({"recordings_in_runs": 3}, "must not record in a run, recorded 3 times in the runs"),
        ({"recordings": 0}, "must record its graph when it is prepared, recorded 0 times"),
        ({"records": False}, "must not record when it is prepared, recorded 1 times"),
        ({"threads_seen": 1}, "must run blocks on 2 threads, the event log has 1"),
        ({"allocations_per_pass": 2.0}, "must not allocate in a step, calls malloc 2 times"),
        ({"failure": "crash", "message": "killed by SIGSEGV\nmore"}, r"did not run \(crash\): killed by SIGSEGV"),
    ],
)
def test_each_failure_is_said(change, said):
    """Check that each fault of one model gives one sentence."""
    result = exact.failures([fact("serial", 1), fact(**change)], GRAPH)
    assert len(result) == 1 and re.search(said, result[0])


def test_allocations_of_others_are_not_ours():
    """Check that outside references and libgomp's team of one may allocate, our own runtimes may not."""
    for model, threads, may in (
        ("openmp_tasks:taskwait=loop", 2, True),
        ("forkjoin", 1, True),
        ("forkjoin", 2, False),
        ("forkjoin:region=persistent", 1, False),
        ("tasks", 1, False),
    ):
        assert exact.may_allocate(parse_model(model), threads) == may


def test_graph_changes_name_the_loop():
    """Check that another graph than the baseline's is described by counts and loops."""
    stored = copy.deepcopy(GRAPH)
    stored["edges"] = 5
    stored["loops"] = {"f": {"blocks": 4, "edges": 9}, "g": {"blocks": 1, "edges": 0}}
    result = [line.partition(": ")[2] for line in exact.failures([fact("serial", 1)], stored)]
    assert result == ["edges 5 -> 3", "loop f: edges 9 -> 7", "loop g is gone"]


def test_allocations_are_a_slope():
    """Check that what a run costs whatever its length does not count, and that a disturbed try is repeated."""
    calls = [0]

    def run(passes, per_pass=0):
        calls[0] += 5 + per_pass * passes

    assert exact.allocations_per_pass(run, lambda: calls[0]) == 0
    assert exact.allocations_per_pass(lambda n: run(n, 3), lambda: calls[0]) == 3
    extra = iter([0, 7, 0, 0, 0, 0])

    def disturbed(passes):
        calls[0] += 5 + next(extra)

    assert exact.allocations_per_pass(disturbed, lambda: calls[0]) == 0


@pytest.mark.malloc_count
def test_malloc_is_counted():
    """Check that the preloaded library sees malloc, calloc, realloc and aligned forms, and no more than there are."""
    program = (
        "import ctypes, json\nfrom forktask.experiments.scaling.exact import malloc_counter\n"
        "count, c = malloc_counter(), ctypes.CDLL(None)\n"
        "f = c.malloc; f.restype = ctypes.c_void_p\n"
        "before = count()\nidle = count() - before\n"
        "before = count()\nfor i in range(1000): f(16)\none = count() - before\n"
        "p = ctypes.c_void_p()\nbefore = count()\n"
        "for i in range(1000): c.calloc(1, 8), c.posix_memalign(ctypes.byref(p), 64, 64), c.realloc(None, 8)\n"
        "print(json.dumps([idle, one, count() - before]))\n"
    )
    done = run_python(program, variables={"LD_PRELOAD": str(exact.counter_library())}, check=True)
    idle, one, three = json.loads(done.stdout)
    # Python itself calls malloc now and then.
    assert idle == 0 and 1000 <= one < 1010 and 3000 <= three < 3030
    assert exact.malloc_counter() is None


def test_facts_of_a_graph():
    """Check real processes: same bits, threads seen, graph recorded once; blocks in Python are not counted."""
    rows = exact.facts_of(subject.describe(graphs.means, {"grain": 16}), parse_models(["forkjoin", "taskiter"]), [2])
    assert [(r["model"], r["threads"]) for r in rows] == [("serial", 1), ("forkjoin", 2), ("taskiter", 2)]
    assert exact.failures(rows, rows[0]["graph"]) == []
    assert rows[2]["recordings"] == 1 and rows[2]["recordings_in_runs"] == 0 and rows[2]["threads_seen"] == 2
    assert "Python" in rows[0]["allocations_unknown"]
    assert rows[0]["graph"]["loops"] == {"smooth.0": {"blocks": 3, "edges": 3}, "add.0": {"blocks": 3, "edges": 6}}


@pytest.mark.parametrize(
    "function, arguments, said",
    [
        (graphs.compiled, {}, None),
        (graphs.compiled, {"width": 1}, "on 2 threads must run 2 blocks at once, ran 1 at most"),
        (graphs.in_python, {"waits": True}, None),
        (graphs.in_python, {}, "ran 1 at most; no two calls of _count.0 ran at once: Python functions hold the GIL"),
    ],
)
def test_blocks_that_run_at_once(function, arguments, said):
    """Check that independent blocks are seen to run at once, chains and Python that holds the GIL are not."""
    rows = exact.overlaps_of(subject.describe(function, arguments), parse_models(["forkjoin", "taskiter"]), 2, 2)
    lines = exact.overlap_failures(rows, 2)
    assert len(lines) == (0 if said is None else 2), lines
    assert all(said in line for line in lines)


def test_random_results_are_seen():
    """Check that a graph that computes something else each time fails, naming the array."""
    rows = exact.facts_of(subject.describe(graphs.random, {}), parse_models(["forkjoin"]), [1])
    assert any("leaves other bits" in line and "values" in line for line in exact.failures(rows, None))
