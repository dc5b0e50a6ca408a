"""The user's graphs, run: the same under every model, failures named, arrays bound in place."""

import threading

import numpy as np
import pytest
from kinds import forms_of_models, threads_of

from forktask import ITERATION, UserGraph
from forktask.cython_src.binding.bind import BlockFailure
from forktask.cython_src.errors import UsageError
from forktask.experiments.examples import own_kernel
from forktask.kernels import KERNEL_ARGS

MODELS = forms_of_models()
REPLAYED = forms_of_models("placement", has=lambda model: "placement" in model.fields)
KERNELS = """
#include "cython_src/kernels/interface/block_kernel.h"

/* Region 0 is read, region 1 written, both of two dimensions; integers: columns of each; real: a factor. */
int scale(const void *record, ptrdiff_t block, const TaskContext *context)
{
    const KernelArgs *args = record;
    const int32_t *b = args->bounds + block * args->bounds_width;
    const float *in = args->operand[0];
    float *out = args->operand[1];
    if (args->bounds_width != 8)
        return 7;
    for (int i = 0; i < b[1] - b[0]; i++)
        for (int j = 0; j < b[3] - b[2]; j++)
            out[(b[4] + i) * args->integers[1] + b[6] + j] =
                (float)args->reals[0] * in[(b[0] + i) * args->integers[0] + b[2] + j] + context->iteration;
    return 0;
}

"""


def append(target, number):
    target[...] = (31 * target + number) % 65521


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.timeout(60)
def test_taskwait_orders_everything_around_it(model):
    """Check that tasks without a common region keep the order that taskwait asks for, over iterations too."""
    order = []
    with UserGraph() as graph:
        x = graph.array("x", np.zeros(4))
        for i in range(2):
            graph.task(lambda _, i=i: order.append(i), updates=x[i])
        graph.taskwait()
        for i in range(2, 4):
            graph.task(lambda _, i=i: order.append(i), updates=x[i])
        graph.taskwait()
        graph.taskiter(20, model=model, threads=threads_of(model, 2))
    phases = np.array(order).reshape(40, 2) // 2
    assert (phases == np.arange(40)[:, None] % 2).all()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.timeout(60)
def test_a_failing_python_task_is_named(model):
    """Check that a Python task's exception is the cause of a BlockFailure, and that the graph still runs afterwards."""

    def fail(_, iteration):
        if iteration == 2 and broken:
            raise ZeroDivisionError("as planned")

    broken = [1]
    with UserGraph() as graph:
        x = graph.array("x", np.zeros(4))
        for i in range(3):
            graph.task(append, updates=x[i], args=(1,))
        graph.task(fail, updates=x[3], args=(ITERATION,))
        with pytest.raises(BlockFailure, match=r"fail\.0\[0\] failed in iteration 2") as caught:
            graph.run(8, model=model, threads=threads_of(model, 2))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        broken.clear()
        x.view[...] = 0
        graph.run(8, model=model, threads=threads_of(model, 2))
    expected = np.zeros(())
    for _ in range(8):
        append(expected, 1)
    assert x.view.tolist() == [expected] * 3 + [0]


def test_a_read_region_cannot_be_written():
    """Check that a Python task that writes what it declares as read fails."""
    with UserGraph() as graph:
        graph.task(append, reads=graph.array("x", np.zeros(4)), args=(1,))
        with pytest.raises(BlockFailure) as caught:
            graph.run(model="serial")
        assert "read-only" in str(caught.value.__cause__)


@pytest.mark.parametrize("form", ["ctypes", "address", "capsule", "cfunc"])
@pytest.mark.cc
@pytest.mark.timeout(60)
def test_compiled_kernels(form):
    """Check every form of a compiled kernel, and the record it gets, on two-dimensional regions."""
    import ctypes

    function = own_kernel.build(KERNELS, "scale")
    address = ctypes.cast(function, ctypes.c_void_p).value
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    cfunc = type("CFunc", (), {"address": address, "__call__": None})()  # what numba's cfunc looks like
    kernel = {"ctypes": function, "address": address, "capsule": make(address, None, None), "cfunc": cfunc}[form]
    source, target = np.arange(48, dtype=np.float32).reshape(6, 8), np.zeros((8, 6), np.float32)
    with UserGraph() as graph:
        x, y = graph.array("x", source), graph.array("y", target)
        for i in graph.taskloop(6, grainsize=4):
            shifted = slice(i.start + 2, i.stop + 2)
            graph.task(kernel, reads=x[i, 1:4], writes=y[shifted, 3:6], args=[8, 6, 0.5])
        for i in graph.taskloop(6, grainsize=4):
            graph.task(kernel, reads=x[i, 5:7], writes=y[slice(i.start + 2, i.stop + 2), 0:2], args=[8, 6, 2.0])
        graph.taskwait()
        assert [loop.num_blocks for loop in graph.plan().loops] == [2, 2, 1]
        graph.taskiter(4, threads=2)
    expected = np.zeros_like(target)
    expected[2:, 3:6] = 0.5 * source[:, 1:4] + 3
    expected[2:, 0:2] = 2 * source[:, 5:7] + 3
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("model", ["tasks", "tasks:taskwait=none", *REPLAYED])
@pytest.mark.timeout(60)
def test_concurrent_and_commutative_tasks_are_not_ordered(model):
    """Check that tasks of a group may run at once, or in the other order: the first waits for the second to begin."""
    together = threading.Barrier(2, timeout=20)
    second_ran = threading.Event()
    values = np.zeros(2)
    with UserGraph() as graph:
        x = graph.array("x", values)
        graph.task(lambda t: together.wait(), concurrent=x[0])
        graph.task(lambda t: together.wait(), concurrent=x[0], name="other")
        graph.run(2, model=model, threads=2)
    with UserGraph() as graph:
        x = graph.array("x", values)
        done = graph.array("done", np.zeros(2))
        graph.task(lambda d: second_ran.wait(20) or pytest.fail("the second task waits for the first"), writes=done[0])
        graph.task(lambda d, t: None, reads=done[0], commutative=x[1])
        graph.task(lambda t: second_ran.set(), commutative=x[1], name="other")
        graph.run(1, model=model, threads=2)


@pytest.mark.parametrize("model", ["tasks", "taskgraph:placement=stealing", "taskiter:placement=stealing"])
@pytest.mark.timeout(60)
def test_a_thread_does_not_wait_for_a_lock_while_others_are_ready(model):
    """Check that a commutative task whose region is taken goes back: the holder waits for all tasks that are ready."""
    left, held = threading.Semaphore(0), threading.Event()
    values = np.zeros(30)

    def hold(t):
        held.set()
        for _ in range(4):
            assert left.acquire(timeout=20)

    with UserGraph() as graph:
        x = graph.array("x", values)
        graph.task(hold, commutative=x[0], name="commutative0")
        # Only then the others: a lock is looked at before it is taken, and two that start at once may both see it free.
        graph.task(lambda t: held.wait(20), updates=x[9], name="wait")
        for i in range(1, 3):
            graph.task(lambda *t: None, commutative=x[0], reads=x[9], name=f"commutative{i}")
        for i in range(4):  # few enough that an eager creator makes all before it runs one
            graph.task(lambda t: left.release(), updates=x[1 + i], name=f"other{i}")
        graph.run(1, model=model, threads=2)


def test_tasks_can_be_added_between_runs():
    """Check that a graph is recorded anew after it grew, and replayed where it did not."""
    with UserGraph() as graph:
        x = graph.array("x", np.zeros(2, np.int64))
        graph.task(append, updates=x[0], args=(3,))
        graph.run(2, threads=2)
        bound = graph.bind()
        graph.run(1, threads=2)
        assert graph.bind() is bound
        graph.task(append, updates=x[1], args=(3,))
        graph.run(3, threads=2)
        assert x.view[0] != x.view[1] != 0
        x.view[1] = 0
        graph.run(0, model="serial")
        with pytest.raises(UsageError, match="negative"):
            graph.run(-1)


@pytest.mark.numba
@pytest.mark.timeout(120)
def test_numba_kernels():
    """Check the form that the documentation gives for numba."""
    import numba
    from numba.extending import intrinsic

    @intrinsic
    def pointer(context, address):
        def make(target, builder, signature, values):
            return builder.inttoptr(values[0], target.get_value_type(signature.return_type))

        return numba.types.voidptr(address), make

    record_type = numba.types.CPointer(numba.from_dtype(KERNEL_ARGS))

    @numba.cfunc(numba.types.int32(record_type, numba.types.intp, numba.types.voidptr))
    def axpy(record, block, context):
        args = numba.carray(record, 1)[0]
        bounds = numba.carray(pointer(args.bounds), (args.num_blocks, args.bounds_width), np.int32)[block]
        x = numba.carray(pointer(args.operand[0]), (bounds[1],), np.float64)
        y = numba.carray(pointer(args.operand[1]), (bounds[3],), np.float64)
        alpha = numba.carray(pointer(args.reals), (1,), np.float64)[0]
        for i in range(bounds[1] - bounds[0]):
            y[bounds[2] + i] += alpha * x[bounds[0] + i]
        return 0

    with UserGraph() as graph:
        x, y = graph.array("x", np.arange(100.0)), graph.array("y", np.ones(100))
        for i in graph.taskloop(100, grainsize=30):
            graph.task(axpy, reads=x[i], updates=y[i], args=[2.0])
        assert [(loop.name, loop.num_blocks) for loop in graph.plan().loops] == [("axpy.0", 4)]
        graph.taskiter(3, threads=2)
    assert np.array_equal(y.view, 1 + 6 * x.view)
