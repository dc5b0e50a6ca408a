"""The user's graphs: what is recorded becomes a plan that says the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forktask  # noqa: F401  its interface adds checks of arguments to the classes
from forktask.cython_src.binding.checks import AccessError, check_accesses, check_orders
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.user_graph import ITERATION, TaskRecorder
from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.model import COMMUTATIVE, CONCURRENT, READ, UPDATE, WRITE

KEYWORDS = {READ: "reads", WRITE: "writes", UPDATE: "updates", CONCURRENT: "concurrent", COMMUTATIVE: "commutative"}


def nothing(*regions):
    """A kernel that touches nothing."""


def reachable(graph):
    """Matrix: is there a path from one node to another within an iteration?"""
    paths = np.zeros((graph.num_nodes, graph.num_nodes), dtype=bool)
    source, target, token = graph.edges()
    paths[source[token == 0], target[token == 0]] = True
    for k in range(graph.num_nodes):
        paths |= np.outer(paths[:, k], paths[k])
    return paths


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 7), st.integers(1, 8)),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60)
def test_tasks_are_ordered_as_their_regions_say(tasks):
    """Check that conflicting tasks have a path in program order, others none, however tasks are grouped into loops."""
    recorder = TaskRecorder()
    arrays = [recorder.array(name, np.zeros(8)) for name in "ab"]
    touched = []  # for each task: (array, element) -> kind
    for regions in tasks:
        elements = {}
        keywords = {word: [] for word in KEYWORDS.values()}
        for kind, which, start, stop in regions:
            mine = {(which, e) for e in range(start, max(stop, start + 1))}
            if not mine & elements.keys():  # regions of one task do not overlap
                elements |= dict.fromkeys(mine, kind)
                keywords[KEYWORDS[kind]].append(arrays[which][start : max(stop, start + 1)])
        touched.append(elements)
        recorder.task(nothing, **keywords)
    plan = recorder.plan()  # the builder checks that blocks of a loop are independent
    assert plan.num_tasks == len(tasks)
    order = np.argsort([block.bounds[0] for loop in plan.loops for block in loop.blocks])  # of recording
    paths = reachable(record_graph(plan.accesses, closed=False))[np.ix_(order, order)]
    conflict = np.zeros((len(tasks), len(tasks)), dtype=bool)
    for later in range(len(tasks)):
        for earlier in range(later):
            conflict[earlier, later] = any(
                not (kind == touched[earlier][e] and kind in (READ, CONCURRENT, COMMUTATIVE))
                for e, kind in touched[later].items()
                if e in touched[earlier]
            )
    wanted = conflict.copy()
    for k in range(len(tasks)):
        wanted |= np.outer(wanted[:, k], wanted[k])
    assert np.array_equal(paths, wanted)
    assert len(plan.loops) <= num_runs(recorder, conflict)


def num_runs(recorder, conflict):
    """Loops that consecutive tasks would form."""
    runs, first = 1, 0
    arrays = [tuple(region.array.name for _, region in task.regions) for task in recorder._items]
    for task in range(1, len(arrays)):
        if arrays[task] != arrays[task - 1] or conflict[first:task, task].any():
            runs, first = runs + 1, task
    return runs


def sizes(recorder):
    """Number of tasks of each loop."""
    return [loop.num_blocks for loop in recorder.plan().loops]


def test_the_order_of_recording_does_not_cut_loops():
    """Check that a tiled product has a loop for each k, recorded in any nesting of its loops."""
    n = 4
    for order in ("ijk", "kij", "ikj"):
        recorder = TaskRecorder()
        a, b, c = (recorder.array(name, np.zeros((n, n, 2))) for name in "abc")
        for place in np.ndindex(n, n, n):
            i, j, k = (place[order.index(axis)] for axis in "ijk")
            recorder.task(nothing, reads=[a[i, k], b[k, j]], updates=c[i, j])
        assert sizes(recorder) == [n * n] * n


def test_reductions_keep_their_loops_and_bits():
    """Check that tasks on an array that is reduced into form the loops of consecutive tasks, so that sums round as in
    the order of recording."""
    recorder = TaskRecorder()
    x, total = recorder.array("x", np.zeros(8)), recorder.array("total", np.zeros(2))
    for i in range(4):
        recorder.task(nothing, reads=x[i], reduction=total[0])
        recorder.task(print, reads=x[i], updates=x[i + 4])
    assert sizes(recorder) == [1, 4, 1, 1, 1]


@pytest.mark.parametrize(
    "key, box, shape",
    [
        (slice(0, 4), ((0, 4),), (4, 6)),
        (slice(-3, -1), ((5, 7),), (2, 6)),
        (3, ((3, 4),), (6,)),
        (np.int64(3), ((3, 4),), (6,)),
        ((slice(2), slice(1, 3)), ((0, 2), (1, 3)), (2, 2)),
        ((Ellipsis, 5), ((0, 8), (5, 6)), (8,)),
        ((7, -6), ((7, 8), (0, 1)), ()),
        ((slice(None), slice(None)), (), (8, 6)),
        (Ellipsis, (), (8, 6)),
    ],
)
def test_regions_are_those_of_numpy(key, box, shape):
    """Check that a slice gives the box it means, and the view that NumPy would give, always as an array."""
    region = TaskRecorder().array("x", np.zeros((8, 6)))[key]
    assert region.box == box
    view = region.array.view[region.index]
    assert isinstance(view, np.ndarray) and view.shape == shape


@pytest.mark.parametrize(
    "key, words",
    [
        (slice(0, 9), "within"),
        (slice(4, 4), "hold an element"),
        (8, "within"),
        (slice(0, 4, 2), "step 1"),
        ((0, 0, 0), "at most 2"),
        ([1, 2], "ranges and numbers"),
        (True, "ranges and numbers"),
        (np.zeros(8, bool), "ranges and numbers"),
    ],
)
def test_bad_regions_are_refused(key, words):
    """Check the sentences for regions that are no box within the array."""
    with pytest.raises(UsageError, match=words):
        TaskRecorder().array("x", np.zeros((8, 6)))[key]


def test_arrays_may_not_overlap():
    """Check that memory is wrapped once, under one name."""
    recorder = TaskRecorder()
    memory = np.zeros(8)
    recorder.array("x", memory[:4])
    recorder.array("y", memory[4:])
    with pytest.raises(UsageError, match="share memory"):
        recorder.array("z", memory[3:5])
    with pytest.raises(UsageError, match="is in the graph already"):
        recorder.array("x", np.zeros(2))
    with pytest.raises(UsageError, match="taskwait"):
        recorder.array("taskwait", np.zeros(2))


def test_bad_tasks_are_refused():
    """Check the sentences for kernels, regions and arguments of the wrong kind."""
    recorder = TaskRecorder()
    x = recorder.array("x", np.zeros(8))
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    fixed = recorder.array("fixed", frozen)
    recorder.task(nothing, reads=fixed)
    for keywords, words in (
        ({"kernel": "axpy"}, "kernel must be"),
        ({"kernel": 0}, "must be positive"),
        ({"kernel": nothing, "reads": [frozen]}, "reads of task"),
        ({"kernel": nothing, "reads": TaskRecorder().array("x", np.zeros(8))}, "its own graph"),
        ({"kernel": nothing, "writes": fixed}, "read-only"),
        ({"kernel": 4096, "reads": x, "args": ["a"]}, "must be numbers"),
        ({"kernel": 4096, "reads": [x] * 24}, "23 regions"),
    ):
        with pytest.raises(UsageError, match=words):
            recorder.task(**keywords)
    with pytest.raises(UsageError, match="step 1"):
        list(recorder.taskloop(range(0, 8, 2), grainsize=2))
    with pytest.raises(UsageError, match="grainsize"):
        list(recorder.taskloop(8, grainsize=0))
    with pytest.raises(UsageError, match="must have a task"):
        TaskRecorder().plan()
    recorder.task(nothing, concurrent=x[0:4], updates=x[2:6])
    with pytest.raises(UsageError, match="both as concurrent"):
        recorder.plan()


def test_changed_arrays_are_refused():
    """Check that an array whose shape or memory changed after it was wrapped is not run on."""
    for change, words in (
        (lambda a: setattr(a, "shape", (2, 4)), "shape"),
        (lambda a: a.resize(1_000_000, refcheck=False), "memory address|shape"),
        (lambda a: setattr(a, "dtype", np.int64), "dtype"),
        (lambda a: a.setflags(write=False), "writeable"),
    ):
        recorder = TaskRecorder()
        array = np.zeros(8)
        recorder.task(nothing, reads=recorder.array("x", array))
        recorder.bind()
        change(array)
        with pytest.raises(UsageError, match=words):
            recorder.bind()


def add_number(source, target, number):
    target[...] = source + number


def add_to_what_is_there(source, target, number):
    target += source + number


@pytest.mark.parametrize("kernel, right", [(add_number, True), (add_to_what_is_there, False)])
def test_the_checks_of_plans_work_on_user_graphs(kernel, right):
    """Check that `check_accesses` passes a right declaration and names the task whose write is an update."""
    recorder = TaskRecorder()
    x, y = recorder.array("x", np.ones((4, 2))), recorder.array("y", np.zeros((4, 2)))
    for i in range(4):
        recorder.task(kernel, reads=x[i], writes=y[i], args=(ITERATION,))
    if right:
        assert check_accesses(recorder.plan(), "cpu") == 8
        check_orders(recorder.bind())
    else:
        with pytest.raises(AccessError, match=r"add_to_what_is_there\.0\[0\], buffer 'y'.*declare an update"):
            check_accesses(recorder.plan(), "cpu")
