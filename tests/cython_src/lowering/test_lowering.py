"""Plans: layouts, cuts, FLOPs, options in words, refusals. That they compute right: tests/random_networks."""

import numpy as np
import pytest

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.simd import instruction_sets
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.lowering.options import PlanOptions, describe, format_value
from forktask.cython_src.networks.layers import Conv2d, Network, SoftmaxCrossEntropy
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.cython_src.plan.chained_sums import FORMS
from forktask.cython_src.records import fields

SMALL = convolutional_classifier("small", (2, 16, 24), (3, 6), 4)


LAYOUTS = {"nchw16": 19, "nchw": 3, "nhwc": 3}  # with a batch


@pytest.mark.parametrize(("network", "least"), [("cifar10_cnn", 4), ("resnet18", 8)])
def test_batch_of_one_has_work_for_several_threads(network, least):
    """Check that the default granularity cuts every convolution of a single image, but for the smallest of ResNet's."""
    for loop in lower(network, batch=1).loops:
        if loop.kernel.startswith("conv_") or (loop.kernel.startswith("nhwc_conv_") and loop.flops > 1e7):
            assert loop.num_blocks >= least, loop.name


def test_flops_count_direct_convolutions_of_real_images():
    """Check forward, gradient and total FLOPs of the network, which do not depend on padding or
    granularity."""
    forward = 2 * 25 * (3 * 16 * 1024 + 16 * 20 * 256 + 20 * 20 * 64) + 2 * 320 * 10
    data = 2 * 25 * (16 * 20 * 256 + 20 * 20 * 64) + 2 * 320 * 10
    sizes = (24, {"layout": "nchw16"}), (24, {"granularity": "images=1,rows=2"}), (3, {"layout": "nhwc"})
    for batch, options in ((1, {}), *sizes):
        plan = lower("cifar10_cnn", batch=batch, **options)
        flops = sum(loop.flops for loop in plan.loops if loop.phase in ("forward", "backward"))
        assert flops == pytest.approx(batch * (2 * forward + data))


def test_initialise_is_the_same_for_every_target():
    """Check that parameters depend on the seed alone."""
    plan = lower(SMALL, batch=2)
    bounds = [bind(plan), bind(plan, target="float64"), bind(plan)]
    for bound, seed in zip(bounds, (4, 4, 5), strict=True):
        initialise(bound, seed)
    for name in plan.attributes["parameters"]:
        np.testing.assert_array_equal(bounds[0].view(name), bounds[1].view(name))
    assert (bounds[0].view("fc.weight") != bounds[2].view("fc.weight")).all()


@pytest.mark.parametrize(
    ("network", "options", "named"),
    [
        ("nonsense", {}, ("network", "'nonsense'")),
        (SMALL, {"batch": 0}, ("batch", "got 0")),
        (SMALL, {"phase": "sideways"}, ("phase", "'sideways'")),
        (SMALL, {"layuot": "nchw16"}, ("'layuot'", "'layout'")),
        (SMALL, {"granularity": "images=0"}, ("granularity", "images=0")),
        (SMALL, {"batch": 16, "granularity": "images=5", "layout": "nchw16"}, ("16", "5")),
        (Network("odd", (3, 8, 8), (Conv2d("c", 4), SoftmaxCrossEntropy())), {"batch": 4}, ("end with",)),
        (SMALL, {"frozen": "layer9"}, ("frozen", "layer9")),
        ("resnet18", {"granularity": "images=1,channels=8"}, ("channels", "16")),
        ("resnet18", {"layout": "nchw16"}, ("BatchNorm",)),
        ("resnet18", {"fusion": "pooling"}, ("fusion",)),
        ("lenet5", {"layout": "nchw"}, ("padding",)),
        ("lenet5", {"sequence": 32}, ("sequence",)),
        ("lenet5", {"granularity": "heads=2"}, ("heads",)),
    ],
)
def test_bad_options_are_refused_by_name(network, options, named):
    """Check that one sentence names the option, layer or value."""
    with pytest.raises(UsageError) as caught:
        lower(network, **{"batch": 2, **options})
    assert all(word in str(caught.value) for word in named) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("network", "conv", "smallest"), [("cifar10_cnn", "direct", 15), ("cifar10_cnn", "auto", 7), (SMALL, "auto", 14)]
)
def test_layout_follows_batch_and_granularity(network, conv, smallest):
    """Check that images fill the lanes where that costs less and blocks allow it: Winograd's form bears empty lanes."""

    def layout(batch, granularity="auto"):
        return lower(network, batch=batch, phase="train", granularity=granularity, conv=conv).attributes["layout"]

    assert [layout(n) for n in (1, smallest - 1, smallest, 16, 64)] == ["nchw", "nchw", *["nchw16"] * 3]
    assert [layout(64, g) for g in ("images=4", "images=32")] == ["nchw", "nchw16"]


def test_instruction_set_can_be_chosen(monkeypatch):
    """Check FORKTASK_ISA, and that an unknown name is refused."""
    monkeypatch.setenv("FORKTASK_ISA", "generic")
    assert instruction_sets.choose() == "generic"
    monkeypatch.setenv("FORKTASK_ISA", "sse9")
    with pytest.raises(UsageError, match="FORKTASK_ISA must be"):
        instruction_sets.choose()


def test_layouts_of_other_paddings():
    """Check that channels are chosen where hardly a lane would hold an image, unless an option needs the lanes."""
    assert [lower("lenet5", batch=n).attributes["layout"] for n in (1, 2, 3, 16)] == ["nhwc"] * 2 + ["nchw16"] * 2
    for options in ({"conv": "direct"}, {"granularity": "images=16"}, {"fusion": "pooling"}):
        assert lower("lenet5", batch=1, **options).attributes["layout"] == "nchw16"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_computed_for_frozen_layers(layout):
    """Check that no loop computes a gradient or an update of a frozen first layer, or what it would need."""
    names = {loop.name for loop in lower(SMALL, batch=LAYOUTS[layout], layout=layout, frozen="conv1").loops}
    assert "conv2.weight_gradient" in names
    assert not {"conv2.data_gradient", "conv1.weight_gradient", "conv1.update"} & names


@pytest.mark.parametrize("form", ["partial", *FORMS])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_that_users_see_share_no_memory(layout, form):
    """Check that each is still there after a step in which buffers are overlaid, whatever the step ends with."""
    plan = lower(SMALL, batch=LAYOUTS[layout], layout=layout, memory="shared", weight_gradients=form)
    bound = bind(plan)
    assert plan.arena_of
    for name in plan.attributes["parameters"]:
        gradient = bound.view(f"{name}.grad")
        assert not any(np.may_share_memory(gradient, bound.arrays[tenant]) for tenant in plan.arena_of), name


def test_recomputation_takes_loops_and_spares_memory():
    """Check loops of activations that are computed again, and what they spare."""
    network = convolutional_classifier("deep", (2, 32, 32), (4, 4, 5, 5), 3)
    options = {"batch": 32, "layout": "nchw16", "memory": "shared", "fusion": "none"}
    kept, again = (lower(network, **options, recompute=recompute) for recompute in (False, True))
    assert [loop.name for loop in again.loops if loop.name.endswith(".recomputed")]
    assert sum(again.memory_bytes().values()) < sum(kept.memory_bytes().values())


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
