"""Options of plans: what a row of results says of them, in records and in words."""

import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.lowering.options import Granularity, PlanOptions, describe, format_value
from forktask.cython_src.records import fields


def test_differences_from_the_defaults_are_named():
    """Check the names and values in words, that defaults are silent, and that known fields can be left out."""
    options = PlanOptions(batch=16, conv="winograd", weight_gradients="chain", memory="shared", recompute=True)
    assert describe(PlanOptions()) == ""
    assert describe(options, leave_out=("batch",)) == (
        "weight_gradients chain, memory shared, conv winograd, recompute true"
    )
    assert describe(options).startswith("batch 16, ")
    assert describe(PlanOptions(betas=(0.5, 0.99), momentum=0.5)) == "momentum 0.5, betas 0.5,0.99"


@pytest.mark.parametrize(("network", "batch"), [("cifar10_cnn", 64), ("resnet18", 4), ("gpt2", 4)])
def test_loops_have_more_blocks_for_more_threads(network, batch):
    """Check each layout: "auto" is for eight threads, and a plan for 64 has a block for each where there is work."""
    auto, eight, many = (lower(network, batch=batch, granularity=text) for text in ("auto", "threads=8", "threads=64"))
    assert [loop.num_blocks for loop in auto.loops] == [loop.num_blocks for loop in eight.loops]
    assert many.num_tasks > 1.5 * eight.num_tasks
    assert max(loop.num_blocks for loop in many.loops) >= 64


@pytest.mark.parametrize("text", ["threads=0", "threads=4,images=16", "images=16,threads=4", "threads="])
def test_threads_are_asked_for_alone(text):
    """Check the sentence about a granularity that is for threads and sizes."""
    with pytest.raises(UsageError, match="granularity must be 'auto', 'device' or give threads, or some of images"):
        Granularity.parse(text)


@pytest.mark.parametrize("field", fields(PlanOptions), ids=lambda field: field.name)
def test_values_are_written_as_they_are_read(field):
    """Check that a default in words parses to itself."""
    assert field.parse(format_value(field.default)) == field.default


def test_six_products_are_for_wide_linear_layers_of_tokens():
    """Check that linear loops of GPT-2 have the attribute, forward and backward, that the plan says it, that a network
    without such layers is refused, and that the option is off."""
    plan = lower("gpt2_small", batch=1, sequence=8, products="bf16x6")
    taken = [loop.attributes.get("bf16x6") for loop in plan.loops if loop.kernel.startswith("linear_")]
    assert taken and all(taken)
    assert plan.attributes["products"] == "bf16x6"
    assert not any("bf16x6" in loop.attributes for loop in lower("gpt2_small", batch=1, sequence=8).loops)
    with pytest.raises(UsageError, match="products must be 'float32' unless .* got 'bf16x6' for 'lenet5'"):
        lower("lenet5", products="bf16x6")


def test_fusion_is_written_in_one_way():
    """Check that true and false, which stood for all and none, are refused."""
    with pytest.raises(UsageError, match="fusion must be a text; got False"):
        PlanOptions(fusion=False)
