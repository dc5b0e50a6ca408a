"""Kernels say what they touch and what they cost; plans take it from them."""

import importlib
from pathlib import Path

import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, registered
from forktask.cython_src.plan.builder import PlanBuilder, ranges
from forktask.cython_src.plan.model import read, write

# Plans themselves write the loops of these: of reductions, synthetic graphs, copies for measuring.
WITHOUT_REGIONS = {"reduction_fill", "reduction_combine", "hash_chain", "replica", "walk"}


def row_sums(**declared):
    return KernelSpec("row_sums", ("x", "y"), bounds=("n0", "n1"), reference=lambda *given: None, **declared)


def plan_of(blocks, *specs):
    builder = PlanBuilder("sums")
    builder.buffer("x", (6, 5), role="parameter")
    builder.buffer("y", (6,), "float64")
    for spec in specs:
        builder.loop("sums", spec, {"x": "x", "y": "y"}, blocks)
    return builder.build()


def touched(attributes, bounds, shapes):
    assert shapes == {"x": (6, 5), "y": (6,)}
    return read("x", bounds["n"]), write("y", bounds["n"])


def test_every_kernel_of_networks_says_what_it_touches():
    """Check that lowering has no kernel whose regions stand elsewhere."""
    with pytest.raises(UsageError, match="no_kernel"):
        kernel_table.get("no_kernel")  # after a look into all modules
    package = {name: spec for name, spec in registered().items() if not name.startswith(("task_bench", "test."))}
    assert {name for name in WITHOUT_REGIONS if name in package} == WITHOUT_REGIONS
    silent = {name for name, spec in package.items() if spec.regions is None and spec.address is not None}
    assert silent == WITHOUT_REGIONS


@pytest.mark.parametrize("named", [False, True])
def test_blocks_are_those_of_the_description(named):
    """Check regions, and costs with and without a description of their own."""
    bounds = [{"n0": start, "n1": stop} for start, stop in ranges(6, 4)] if named else ranges(6, 4)
    (loop,) = plan_of(bounds, row_sums(regions=touched)).loops
    assert [block.bounds for block in loop.blocks] == [(0, 4), (4, 6)]
    assert loop.blocks[1].accesses == (read("x", (4, 6)), write("y", (4, 6)))
    assert [(block.flops, block.bytes) for block in loop.blocks] == [(0.0, 4 * 4 * 5 + 4 * 8), (0.0, 2 * 4 * 5 + 2 * 8)]
    given = row_sums(regions=touched, cost=lambda attributes, bounds, shapes: (5.0 * bounds["n1"], 7.0))
    assert [(block.flops, block.bytes) for block in plan_of(bounds, given).loops[0].blocks] == [
        (20.0, 7.0),
        (30.0, 7.0),
    ]


def test_bad_descriptions_are_refused():
    """Check that the message names a kernel without regions, and one whose name another kernel of the plan has."""
    with pytest.raises(UsageError, match="row_sums"):
        plan_of(ranges(6, 4), row_sums())
    with pytest.raises(UsageError, match="'row_sums' twice"):
        plan_of(ranges(6, 4), row_sums(regions=touched), row_sums(regions=touched))


def test_the_kernels_of_specs_are_registered():
    """Check that each kernel that the build declares arguments of is registered with these, and has an address."""
    result = {}
    for file in Path(kernel_table.__file__).parent.glob("*/specs.py"):
        result |= importlib.import_module(f"forktask.cython_src.kernels.{file.parent.name}.specs").KERNELS
    assert len(result) > 80
    for name, spec in result.items():
        registered = kernel_table.get(name)
        assert registered.address
        for names in ("operands", "integers", "reals", "bounds"):
            assert tuple(n.rstrip("?") for n in getattr(spec, names)) == getattr(registered, names), name
