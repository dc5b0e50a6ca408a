"""Memory of plans: what is shared, what is new, what overlaps."""

import os

import numpy as np
import pytest

from forktask.cython_src.binding.storage import Storage
from forktask.cython_src.errors import UsageError
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update, write


def plan(memory="full", shape=(5, 3), dtype="float32"):
    builder = PlanBuilder("test")
    builder.buffer("w", shape, dtype, role="parameter")
    builder.buffer("labels", (4,), "int32", role="dataset")
    for name, length in (("a", 30), ("b", 20), ("c", 10)):
        builder.buffer(name, (length,), role="temporary")
    builder.loop("a", "k", {"w": "w", "y": "a"}, [Block((), (read("w"), write("a")))])
    builder.loop("b", "k", {"x": "a", "y": "b"}, [Block((), (read("a"), write("b")))])
    builder.loop("c", "k", {"x": "b", "y": "c"}, [Block((), (read("b"), write("c")))])
    return builder.build(memory)


def test_persistent_buffers_are_shared_and_transient_ones_are_not():
    """Check that two bindings see the same parameters and have activations of their own."""
    storage = Storage()
    first, second = storage.arrays_for(plan()), storage.arrays_for(plan())
    assert first["w"] is second["w"] is storage.arrays["w"]
    assert not np.shares_memory(first["a"], second["a"])
    assert "a" not in storage.arrays


@pytest.mark.parametrize("memory", ["full", "shared"])
@pytest.mark.parametrize("float_dtype", [None, "float64"])
def test_arrays_are_aligned_zeroed_and_typed(memory, float_dtype):
    """Check alignment, content, shape and dtype, also in float64, where integers stay what they are."""
    for name, array in Storage().arrays_for(plan(memory), float_dtype).items():
        assert array.ctypes.data % 64 == 0, name
        assert array.flags.c_contiguous and array.flags.writeable
        assert not array.any()
        assert array.dtype == ("int32" if name == "labels" else float_dtype or "float32")


def test_buffers_of_an_arena_share_memory():
    """Check that exactly the tenants of one arena overlap, from its first byte."""
    lowered = plan("shared")
    assert lowered.arena_of == {"a": 0, "c": 0}
    arrays = Storage().arrays_for(lowered)
    assert np.shares_memory(arrays["a"], arrays["c"])
    assert arrays["a"].ctypes.data == arrays["c"].ctypes.data
    assert not np.shares_memory(arrays["a"], arrays["b"])


def test_other_shape_or_dtype_is_refused():
    """Check that a storage that holds a buffer of another shape or dtype says so."""
    storage = Storage()
    storage.arrays_for(plan())
    with pytest.raises(UsageError, match=r"buffer 'w' has shape \(5, 3\).*needs \(5, 4\)"):
        storage.arrays_for(plan(shape=(5, 4)))
    with pytest.raises(UsageError, match="use a new storage"):
        storage.arrays_for(plan(), "float64")


def test_guards_notice_writes_outside():
    """Check that a byte before or behind a buffer is noticed and named, and that guards can be filled anew."""
    storage = Storage(guard_bytes=64)
    arrays = storage.arrays_for(plan())
    storage.fill_guards(7)
    assert storage.broken_guard() is None
    for array in arrays.values():
        array.fill(1)
    assert storage.broken_guard() is None
    flat = np.lib.stride_tricks.as_strided(arrays["w"].reshape(-1), (16,), (4,))
    flat[15] = 2
    assert storage.broken_guard() == ("w", 60)
    storage.fill_guards(7)
    assert storage.broken_guard() is None
    assert arrays["w"].ctypes.data % 64 == 0


def cut_plan(memory="full"):
    """Two loops of six blocks over rows, the second the other way round, and one of one block."""
    builder = PlanBuilder("cut")
    for name in "xy":
        builder.buffer(name, (6, 4), role="temporary")
    builder.buffer("w", (6,), role="parameter")
    rows = [(k, k + 1) for k in range(6)]
    builder.loop("x", "k", {"y": "x"}, [Block((), (write("x", row),)) for row in rows])
    builder.loop("y", "k", {"x": "x", "y": "y"}, [Block((), (update("x", r), write("y", r))) for r in reversed(rows)])
    builder.loop("w", "k", {"x": "x", "w": "w"}, [Block((), (read("x"), update("w", (2, 6))))])
    return builder.build(memory)


@pytest.mark.parametrize("memory", ["full", "shared"])
def test_memory_touched_by_homes_is_zeroed_and_shared_as_any(memory):
    """Check content and sharing with homes, and that a second plan leaves persistent buffers alone."""
    homes = sorted(os.sched_getaffinity(0))
    storage = Storage(homes=homes, guard_bytes=64)
    arrays = storage.arrays_for(cut_plan(memory))
    assert not any(array.any() for array in arrays.values())
    arrays["w"][:] = 3
    again = storage.arrays_for(cut_plan(memory))
    assert again["w"] is arrays["w"] and (again["w"] == 3).all() and not again["x"].any()
    assert sorted(os.sched_getaffinity(0)) == homes
