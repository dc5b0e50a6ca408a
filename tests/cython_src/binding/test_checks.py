"""Negative controls: what the checks of the contract must find, and that they find nothing else."""

import numpy as np
import pytest
from cython_src.python_kernels import kernel

from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.cython_src.binding.checks import (
    AccessError,
    RandomOrder,
    check_accesses,
    check_orders,
    find_unused_reads,
    span_in_tasks,
)
from forktask.cython_src.errors import UsageError
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.model import Block, commutative, concurrent, read, update, write


@kernel("test.stencil", "x y", "start stop", integers="halo extra missing", reals="")
def stencil(o, a, b, iteration):
    """y = sum of x over a window; may write `extra` elements too many or leave out `missing`."""
    start, stop = b["start"], b["stop"]
    for i in range(start, min(stop + a["extra"], len(o["y"])) - a["missing"]):
        o["y"][i] = o["x"][max(0, i - a["halo"]) : i + a["halo"] + 1].sum()


@kernel("test.fails_on_large", "x y")
def fails_on_large(o, a, b, iteration):
    o["y"][0] = o["x"][0]
    return int(np.abs(o["x"]).max() > 1e6)


def stencil_plan(halo=1, declared=1, extra=0, missing=0, kind=write, dtype="float32", back=False):
    """x = data; y = sums of x over a window; with `back`, data = y, so that the next iteration depends on this one."""
    plain = {"halo": 0, "extra": 0, "missing": 0}
    builder = PlanBuilder("stencil")
    builder.buffer("data", (12,), dtype, role="parameter" if back else "dataset")
    builder.buffer("x", (12,), dtype, role="activation")
    builder.buffer("y", (12,), dtype, role="parameter")
    for name, source, target, width, attributes in (
        ("copy", "data", "x", 0, plain),
        ("stencil", "x", "y", declared, {"halo": halo, "extra": extra, "missing": missing}),
        *[("back", "y", "data", 0, plain)] * back,
    ):
        builder.loop(
            name,
            "test.stencil",
            {"x": source, "y": target},
            attributes=attributes,
            blocks=[
                Block(
                    (s, s + 3),
                    (
                        read(source, (max(0, s - width), min(12, s + 3 + width))),
                        (kind if target == "y" else write)(target, (s, s + 3)),
                    ),
                )
                for s in range(0, 12, 3)
            ],
        )
    return builder.build()


def ramp(bound):
    bound.arrays["data"][...] = np.arange(12)


def bound_plan(plan, fill=ramp):
    bound = bind(plan, target="numpy")
    fill(bound)
    return bound


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
@pytest.mark.parametrize(
    ("fault", "options"),
    [
        ("undeclared read", {"halo": 2, "declared": 1}),
        ("undeclared write", {"extra": 1}),
        ("not fully overwritten", {"missing": 1}),
    ],
)
def test_faulty_kernel_is_found(fault, options, dtype):
    """Check that each way to break the contract is named, with block, buffer and a first element that fits."""
    with pytest.raises(AccessError) as caught:
        check_accesses(stencil_plan(**options, dtype=dtype), initialise=ramp)
    error = caught.value
    assert error.fault == fault
    assert error.task_name == "stencil[0]"
    assert error.buffer == "y"
    assert error.index == {"undeclared read": (2,), "undeclared write": (3,), "not fully overwritten": (2,)}[fault]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_right_kernel_passes(dtype):
    """Check that the same kernel is found right with the regions it uses, and its reads as narrow as declared."""
    plan = stencil_plan(dtype=dtype)
    assert check_accesses(plan, initialise=ramp) == 2 * 8
    assert find_unused_reads(plan, initialise=ramp) == []


def test_update_need_not_overwrite():
    """Check that a region declared as updated may be left partly as it was."""
    assert check_accesses(stencil_plan(missing=1, kind=update), initialise=ramp) == 16


def test_failure_caused_by_poison_is_an_undeclared_read():
    """Check that a kernel that fails only on poison is reported as such, and one that fails anyway as a failure."""

    def plan(*box):
        builder = PlanBuilder("fails")
        builder.buffer("x", (4,), role="parameter")
        builder.buffer("y", (1,), role="parameter")
        builder.loop("f", "test.fails_on_large", {"x": "x", "y": "y"}, [Block((), (read("x", *box), write("y")))])
        return builder.build()

    assert check_accesses(plan()) == 2
    with pytest.raises(AccessError, match="f.0., .*failed"):
        check_accesses(plan((0, 1)))
    with pytest.raises(BlockFailure):
        check_accesses(plan(), initialise=lambda bound: bound.arrays["x"].fill(1e9))


def test_stray_pointer_is_found():
    """Check that a write to a buffer that is no operand, and one past the end of a buffer, are found."""
    stolen = {}

    @kernel("test.stray", "x")
    def stray(o, a, b, iteration):
        o["x"][...] = 1
        if "other" in stolen:
            stolen["other"][3] = 5
        if "guard" in stolen:
            past = np.lib.stride_tricks.as_strided(o["x"], (5,), o["x"].strides)
            past[4] = 9

    builder = PlanBuilder("stray")
    builder.buffer("x", (4,), role="parameter")
    builder.buffer("other", (4,), role="parameter")
    builder.loop("f", "test.stray", {"x": "x"}, [Block((), (write("x"),))])
    builder.loop("g", "test.stray", {"x": "other"}, [Block((), (write("other"),))])
    plan = builder.build()
    assert check_accesses(plan) == 4
    stolen["guard"] = True
    with pytest.raises(AccessError, match="outside buffer") as caught:
        check_accesses(plan)
    assert caught.value.task_name == plan.task_name(0)
    del stolen["guard"]
    with pytest.raises(AccessError, match="no operand"):
        check_accesses(plan, initialise=lambda bound: stolen.update(other=bound.arrays["other"]))


def test_too_narrow_region_shows_in_random_orders():
    """Check that orders catch a region that is too narrow, as the access check does."""
    plan = stencil_plan(declared=0, back=True)
    with pytest.raises(AssertionError, match="leaves other bits"):
        check_orders(bound_plan(plan), num_orders=50)
    with pytest.raises(AccessError) as caught:
        check_accesses(plan, initialise=ramp)
    assert (caught.value.task_name, caught.value.fault) == ("stencil[0]", "undeclared read")


def test_too_wide_region_is_found():
    """Check that a region that is too wide is right but slower: the span in tasks does not see it, unused reads do."""
    tight, wide = stencil_plan(back=True), stencil_plan(declared=12, back=True)
    check_orders(bound_plan(wide), num_orders=20)
    result = find_unused_reads(wide, initialise=ramp)
    assert {(name.partition("[")[0], buffer) for name, buffer, _ in result} == {("stencil", "x")}
    assert span_in_tasks(record_graph(tight.accesses)) == span_in_tasks(record_graph(wide.accesses)) == 3


def test_orders_are_legal_and_differ():
    """Check that each order has every task once an iteration and iterations overlap, unless there is a barrier."""
    plan = stencil_plan(back=True)
    bound = bound_plan(plan)
    rng = np.random.default_rng(0)
    order = RandomOrder(bound, record_graph(plan.accesses)).run(3, rng)
    assert sorted(order) == [(t, k) for t in range(plan.num_tasks) for k in range(3)]
    replays = [k for _, k in order]
    assert replays != sorted(replays)
    order = RandomOrder(bound, record_graph(plan.accesses, closed=False)).run(3, rng)
    replays = [k for _, k in order]
    assert replays == sorted(replays)


@kernel("test.add_scaled", "x y", "i")
def add_scaled(o, a, b, iteration):
    o["y"][...] += o["x"][b["i"]] / 3


@pytest.mark.parametrize("access", [concurrent, commutative])
def test_sums_in_any_order_agree_within_a_tolerance(access):
    """Check that a sum in any order differs by rounding only, is really taken in other orders, and must be declared."""
    builder = PlanBuilder("sum")
    builder.buffer("x", (20,), role="parameter")
    builder.buffer("y", (5,), role="parameter")
    builder.loop(
        "add",
        "test.add_scaled",
        {"x": "x", "y": "y"},
        [Block((i,), (read("x", (i, i + 1)), access("y"))) for i in range(20)],
    )
    plan = builder.build()

    def random(bound):
        bound.arrays["x"][...] = np.random.default_rng(0).normal(size=20)

    assert check_accesses(plan, initialise=random) == 40
    with pytest.raises(UsageError, match="not deterministic, got no tolerance"):
        check_orders(bound_plan(plan, random))
    assert check_orders(bound_plan(plan, random), num_orders=20, tolerance=1e-5) == 20
    with pytest.raises(AssertionError, match="other bits"):
        check_orders(bound_plan(plan, random), num_orders=20, tolerance=0)
