"""Kernels keep to the scratch memory that their KernelSpec asks for, and need it."""

from dataclasses import replace

import pytest
from cython_src.networks_for_tests import fill

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import AccessError, check_accesses
from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels import kernel_table
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.layers import Conv2d, Linear, Network, SoftmaxCrossEntropy
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, write

END = Linear("linear", 2), SoftmaxCrossEntropy()


def test_size_is_that_of_the_loop_that_takes_most():
    """Check the arguments of `scratch_bytes`, and that the plan's size is the largest of its loops."""
    seen = []

    def size(attributes, bounds, operands):
        seen.append((dict(attributes), {name: column.tolist() for name, column in bounds.items()}, set(operands)))
        return 8 * int((bounds["stop"] - bounds["start"]).max()) * attributes["width"]

    def nothing(operands, attributes, bounds, iteration):
        operands["x"][bounds["start"] : bounds["stop"]] = 0

    builder = PlanBuilder("sizes", kernels={"own": own_kernel(nothing, size)})
    builder.buffer("x", (12,), role="parameter")
    for width in (3, 1):
        blocks = [Block(stretch, (write("x", stretch),)) for stretch in ((0, 5), (5, 12))]
        builder.loop(f"width {width}", "own", {"x": "x"}, blocks, attributes={"width": width})
    plan = builder.build()
    assert kernel_table.scratch_bytes(plan) == bind(plan, target="numpy").scratch_bytes == 8 * 7 * 3
    assert seen[0] == ({"width": 3}, {"start": [0, 5], "stop": [5, 12]}, {"x"})


def own_kernel(reference, size):
    return KernelSpec("own", ("x", "y?"), ("width",), (), ("start", "stop"), reference, scratch_bytes=size)


def test_access_check_finds_scratch_memory_that_is_too_small():
    """Check that a kernel's own size counts, though another one of the plan takes more."""
    network = convolutional_classifier("small", (3, 8, 8), (6,), 10)
    plan = lower(network, batch=16, layout="nchw16")
    spec = kernel_table.get("fc_backward_data")
    assert check_accesses(plan, "cpu", initialise=fill)

    def short(attributes, bounds, operands):
        return spec.scratch_bytes(attributes, bounds, operands) - 64

    operands = tuple(f"{name}?" if name in spec.optional else name for name in spec.operands)
    own = {spec.name: replace(spec, operands=operands, scratch_bytes=short)}
    plan = replace(plan, attributes={**plan.attributes, "kernels": own})
    assert kernel_table.scratch_bytes(plan) > 4 * 6 * 4 * 4 * 16
    with pytest.raises(AccessError, match="kernel 'fc_backward_data' asks for 6080 bytes") as caught:
        check_accesses(plan, "cpu", initialise=fill)
    assert (caught.value.buffer, caught.value.index, caught.value.fault) == ("scratch", (6080,), "outside buffer")


@pytest.mark.parametrize(
    ("layer", "width", "layout", "most", "got"),
    [
        (Conv2d("conv", 4, 17, 8), 20, "nhwc", 15, 17),
        (Conv2d("conv", 16400, 1, 0), 4, "nhwc", 16384, 16400),
        (Conv2d("conv", 4), 260, "nchw16", 256, 260),
        (Conv2d("conv", 4), 260, "nchw", 256, 260),
    ],
)
def test_what_kernels_have_no_memory_for_is_refused(layer, width, layout, most, got):
    """Check the limits of arrays of a fixed size, which the kernels' modules give."""
    network = Network("large", (3, 4, width), (layer, *END))
    with pytest.raises(UsageError, match=f"at most {most} .*, got {got}"):
        lower(network, batch=16, layout=layout)
