"""Building plans: what is refused, cells, shared memory."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktask.cython_src.errors import UsageError
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.cells import build_access_table, storage_cells
from forktask.cython_src.plan.model import Block, commutative, concurrent, read, update, write


def builder_with(**shapes):
    builder = PlanBuilder("test")
    for name, shape in shapes.items():
        builder.buffer(name, shape, role="parameter")
    return builder


def loop(builder, *blocks, name="f"):
    operands = {a.buffer: a.buffer for accesses in blocks for a in accesses}
    builder.loop(name, "k", operands, [Block((), accesses) for accesses in blocks])
    return builder


@pytest.mark.parametrize(
    ("role", "shape", "message"),
    [
        ("parmeter", (4,), "role of buffer 'x' must be one of .*parameter.*; got 'parmeter'"),
        ("parameter", (4, 0), r"shape of buffer 'x' must be positive in every dimension, got \(4, 0\)"),
    ],
)
def test_bad_buffer_is_refused(role, shape, message):
    """Check that a buffer's role and shape are validated where they are given."""
    with pytest.raises(UsageError, match=message):
        PlanBuilder("test").buffer("x", shape, role=role)


@pytest.mark.parametrize(
    ("accesses", "message"),
    [
        ((read("x", (0, 9)),), r"must lie within shape \(4, 6\)"),
        ((read("x", (2, 2)),), "hold an element"),
        ((read("x", (3, 2)),), "hold an element"),
        ((read("x", (-1, 2)),), "must lie within shape"),
        ((read("x", (0, 1), (0, 1), (0, 1)),), "at most 2 ranges, got 3"),
    ],
)
def test_bad_region_is_refused(accesses, message):
    """Check that a box must lie in its buffer, hold an element and have no more ranges than dimensions."""
    with pytest.raises(UsageError, match=message):
        loop(builder_with(x=(4, 6)), accesses).build()


def test_bad_loop_is_refused():
    """Check loops without blocks, of unknown phase, on undeclared buffers, or with accesses to no operand."""
    builder = builder_with(x=(4,), y=(4,))
    with pytest.raises(UsageError, match="at least one block"):
        builder.loop("f", "k", {}, [])
    with pytest.raises(UsageError, match="phase of loop 'f'"):
        builder.loop("f", "k", {"x": "x"}, [Block((), ())], phase="foward")
    with pytest.raises(UsageError, match="operand 'x' of loop 'f'.*'z'"):
        builder.loop("f", "k", {"x": "z"}, [Block((), ())])
    with pytest.raises(UsageError, match="access to 'y', which is no operand"):
        builder.loop("f", "k", {"x": "x"}, [Block((), (read("y"),))])


@pytest.mark.parametrize("first", [write, update])
@pytest.mark.parametrize("second", [write, update, read])
def test_blocks_of_a_loop_must_be_independent(first, second):
    """Check that a write that meets another block's access is refused, in either order, and neighbours are not."""
    for pair in ((first("x", (0, 3)), second("x", (2, 4))), (second("x", (2, 4)), first("x", (0, 3)))):
        with pytest.raises(UsageError, match="blocks 0 and 1 of loop 'f' meet in buffer 'x'"):
            loop(builder_with(x=(4,)), *[(access,) for access in pair]).build()
    loop(builder_with(x=(4,)), (first("x", (0, 2)),), (second("x", (2, 4)),)).build()


@pytest.mark.parametrize("access", [concurrent, commutative])
def test_blocks_may_meet_in_any_order_if_all_say_so(access):
    """Check that concurrent or commutative blocks of one loop may meet each other but nobody else, not even itself."""
    loop(builder_with(x=(4,)), (access("x"),), (access("x", (0, 2)),)).build()
    other = commutative if access is concurrent else concurrent
    for meets in (read, write, update, other):
        with pytest.raises(UsageError, match="blocks 0 and 1"):
            loop(builder_with(x=(4,)), (access("x"),), (meets("x"),)).build()
        with pytest.raises(UsageError, match="block 0"):
            loop(builder_with(x=(4,)), (access("x"), meets("x", (1, 2)))).build()


def test_transient_must_be_written_before_it_is_read():
    """Check that a pass may not read what it has not written, unless the buffer is carried or persistent."""
    for carried in (False, True):
        builder = PlanBuilder("test")
        builder.buffer("x", (4,), role="activation", carried=carried)
        loop(builder, (write("x", (0, 2)),), name="half")
        loop(builder, (read("x"),), name="all")
        if carried:
            builder.build()
        else:
            with pytest.raises(UsageError, match=r"all\[0\].*'x'"):
                builder.build()


@st.composite
def boxes_on_a_buffer(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    boxes = []
    for _ in range(draw(st.integers(1, 5))):
        box = []
        for n in shape[: draw(st.integers(0, len(shape)))]:
            start = draw(st.integers(0, n - 1))
            box.append((start, draw(st.integers(start + 1, n))))
        boxes.append(tuple(box))
    return shape, boxes


def slices(box):
    return tuple(slice(*r) for r in box)


@settings(max_examples=150)
@given(boxes_on_a_buffer(), boxes_on_a_buffer())
def test_regions_on_an_arena_meet_exactly_if_they_share_memory(first, second):
    """Check storage cells against elements: two boxes share a cell exactly if they share an element of the arena."""
    builder = PlanBuilder("test")
    for name, (shape, boxes) in (("x", first), ("y", second)):
        builder.buffer(name, shape, role="temporary")
        for box in boxes:
            loop(builder, (write(name, *box),), name=f"{name}{box}")
    table, cuts, first_cell = build_access_table(builder._buffers, builder._loops)
    table = storage_cells(builder._buffers, table, cuts, first_cell, {"x": 0, "y": 0})
    assert table.list_cells.max() < table.num_cells
    regions = []
    for name, (shape, boxes) in (("x", first), ("y", second)):
        element = np.arange(np.prod(shape)).reshape(shape)
        regions += [(name, element[slices(box)]) for box in boxes]
    cells = [
        set(table.list_cells[table.list_offsets[w] : table.list_offsets[w + 1]].tolist()) for w in table.access_list
    ]
    for ((_, a), p), ((_, b), q) in itertools.combinations(zip(regions, cells, strict=True), 2):
        assert bool(p & q) == bool(np.intersect1d(a, b).size)


def chain_plan(memory, lengths=(8, 6, 8, 4), dtypes=("float32",) * 4, carried=()):
    """Buffers written and read one after the other: every second one may share memory."""
    builder = PlanBuilder("chain")
    names = [f"b{i}" for i in range(len(lengths))]
    for name, n, dtype in zip(names, lengths, dtypes, strict=True):
        builder.buffer(name, (n,), dtype, role="temporary", carried=name in carried)
    builder.buffer("out", (1,), role="parameter")
    builder.loop("start", "k", {"y": "b0"}, [Block((), (write("b0"),))])
    for x, y in itertools.pairwise([*names, "out"]):
        builder.loop(f"{x} to {y}", "k", {"x": x, "y": y}, [Block((), (read(x), write(y)))])
    return builder.build(memory)


def lifetimes_meet(plan, a, b):
    spans = []
    for name in (a, b):
        where = [i for i, loop in enumerate(plan.loops) if name in loop.operands.values()]
        spans.append((where[0], where[-1]))
    return spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1]


@pytest.mark.parametrize("lengths", [(8, 6, 8, 4), (4, 8, 6, 8)])
def test_sharing_keeps_live_buffers_apart(lengths):
    """Check that tenants of one arena never live at the same time, and that memory is saved."""
    full, shared = chain_plan("full", lengths), chain_plan("shared", lengths)
    assert full.arena_of == {}
    assert set(shared.arena_of) == {"b0", "b1", "b2", "b3"}
    for a, b in itertools.combinations(shared.arena_of, 2):
        if shared.arena_of[a] == shared.arena_of[b]:
            assert not lifetimes_meet(shared, a, b)
    assert full.memory_bytes() == {"temporary": 4 * 26, "parameter": 4}
    assert shared.memory_bytes() == {"arena": 4 * (8 + 6), "parameter": 4}
    assert shared.attributes["memory"] == "shared"


def test_sharing_leaves_out_what_outlives_the_pass():
    """Check that carried and persistent buffers keep memory of their own."""
    assert "b2" not in chain_plan("shared", carried=("b2",)).arena_of
    assert "out" not in chain_plan("shared").arena_of


def test_sharing_keeps_dtypes_apart():
    """Check that integers never share with floats, whose size differs when the plan is bound to float64."""
    plan = chain_plan("shared", dtypes=("float32", "float32", "int32", "float32"))
    assert plan.arena_of == {"b0": 0, "b3": 0}
