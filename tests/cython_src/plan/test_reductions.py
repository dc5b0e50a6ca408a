"""Reductions: what they compute, that order and executor do not matter, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forktask.cython_src.binding.bind import Workers, bind
from forktask.cython_src.binding.checks import check_accesses, check_orders
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, register
from forktask.cython_src.plan import reductions
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, reduction, update, write
from forktask.forkjoin.executor import SerialExecutor


def _fold(operands, attributes, bounds, iteration):
    """Add a number that depends on the block and the iteration to out[o0:o1]."""
    operands["out"][bounds["o0"] : bounds["o1"]] += 1 + (bounds["seed"] * 7 + iteration * 3) % 11 / 8


def _copy(operands, attributes, bounds, iteration):
    operands["out"][bounds["o0"] : bounds["o1"]] = operands["in"][bounds["o0"] : bounds["o1"]]


for spec in (
    KernelSpec("test_fold", ("out",), (), (), ("seed", "o0", "o1"), _fold),
    KernelSpec("test_reduction_copy", ("out", "in"), (), (), ("o0", "o1"), _copy),
):
    register(spec)


def random_reduction_plan(seed, groups=None, plain=False):
    """Loops that reduce into regions of `x`, between loops that read or overwrite parts.

    plain: the same as a chain of updates, block after block.
    """
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    builder = PlanBuilder(f"reduction{seed}")
    builder.buffer("x", (size,), "float64", role="statistic")
    builder.buffer("y", (size,), "float64", role="statistic")
    builder.reduction_groups(int(rng.integers(1, 6)) if groups is None else groups)
    for number in range(int(rng.integers(1, 6))):
        what = rng.choice(["reduce", "reduce", "read", "write"])
        cut = tuple(sorted(rng.choice(size + 1, 2, replace=False).tolist()))
        if what == "reduce":
            blocks = []
            for b in range(int(rng.integers(1, 12))):
                box = tuple(sorted(rng.choice(size + 1, 2, replace=False).tolist()))
                access = update("x", box) if plain else reduction("x", box)
                blocks.append(Block((100 * number + b, *box), (access,)))
            for k, part in enumerate([[b] for b in blocks] if plain else [blocks]):
                builder.loop(f"reduce{number}.{k}", "test_fold", {"out": "x"}, part)
        else:
            out, source = ("y", "x") if what == "read" else ("x", "y")
            builder.loop(
                f"{what}{number}",
                "test_reduction_copy",
                {"out": out, "in": source},
                [Block(tuple(cut), (read(source, cut), write(out, cut)))],
            )
    return builder.build()


def run_serial(plan, iterations=3):
    bound = bind(plan, target="numpy")
    bound.arrays["x"][:] = 1.5
    with SerialExecutor(1) as executor:
        executor.prepare(bound)
        executor.run(iterations)
    return {name: bound.arrays[name].copy() for name in ("x", "y")}


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_reductions_equal_a_chain_of_updates(seed):
    """Check values against the plain order of all blocks, to rounding."""
    result, expected = run_serial(random_reduction_plan(seed)), run_serial(random_reduction_plan(seed, plain=True))
    for name, array in result.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-12)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_all_legal_orders_give_the_same_bits(seed):
    """Check random orders of the closed graph, with edges from the last reductions to the next iteration's reads."""
    plan = random_reduction_plan(seed)
    assert plan.deterministic
    bound = bind(plan, target="numpy")
    bound.arrays["x"].fill(1.5)
    check_orders(bound, num_replays=3, num_orders=3, seed=seed)


def test_blocks_touch_what_the_lowered_plan_declares():
    """Check the lowered plan itself: copies filled before use, combined where declared, nothing else touched."""
    for seed in range(12):
        check_accesses(random_reduction_plan(seed), initialise=lambda bound: bound.arrays["x"].fill(1.5))


@pytest.mark.parametrize("dtype", reductions.REDUCTION_DTYPES)
def test_compiled_kernels_equal_numpy(dtype):
    """Check filling and combining in C, over boxes of arrays of one to five dimensions."""
    rng = np.random.default_rng(1)
    for shape in ((7,), (4, 5), (3, 4, 5), (2, 3, 4, 5), (2, 2, 3, 4, 3)):
        box = tuple(sorted(rng.choice(n + 1, 2, replace=False).tolist()) for n in shape[: rng.integers(0, 5)])
        builder = PlanBuilder("combine")
        builder.buffer("x", shape, dtype, role="statistic")
        builder.loop(
            "reduce",
            "test_fold",
            {"out": "x"},
            [Block((b, 0, shape[0]), (reduction("x", *map(tuple, box)),)) for b in range(3)],
        )
        plan = builder.build()
        results = []
        for target in ("cpu", "numpy"):
            bound = bind(plan, target=target)
            values = np.random.default_rng(2)
            for name in ("x", *(reductions.copy_name("x", i) for i in range(3))):
                bound.arrays[name][...] = values.integers(0, 100, shape)
            workers = Workers(1, 0)
            bound.run_task(2, 0, 0, workers)
            bound.run_task(0, 1, 0, workers)
            results.append([a.copy() for a in bound.arrays.values()])
        for a, b in zip(*results, strict=True):
            np.testing.assert_array_equal(a, b)
        assert plan.loops[0].kernel == "reduction_fill" and plan.loops[2].kernel == "reduction_combine"


def test_groups_bound_the_copies_and_loops():
    """Check that 10 blocks in 4 groups make 4 copies, combined in their order, and 3 rounds of independent blocks; and
    that one group makes none."""

    def plan(groups):
        builder = PlanBuilder("groups")
        builder.buffer("x", (1,), "float64", role="statistic")
        builder.reduction_groups(groups)
        builder.loop("r", "test_fold", {"out": "x"}, [Block((b, 0, 1), (reduction("x"),)) for b in range(10)])
        return builder.build()

    assert [(loop.name, loop.num_blocks) for loop in plan(4).loops] == [
        ("r.fill.x", 4),
        ("r.0", 4),
        ("r.1", 3),
        ("r.2", 3),
        ("r.combine.x", 1),
    ]
    assert [*plan(4).loops[-1].operands.values()] == ["x", *(reductions.copy_name("x", k) for k in range(4))]
    assert [loop.num_blocks for loop in plan(1).loops] == [1] * 10
    assert set(plan(1).buffers) == {"x"}
