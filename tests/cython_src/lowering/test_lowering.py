"""Whole plans of the CIFAR-10 network: against the independent float64 step, over batches, layouts and
granularities."""

import numpy as np
import pytest

from cython_src import reference
from forktask.cython_src.binding.bind import Workers, bind
from forktask.cython_src.binding.storage import Storage
from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.simd import instruction_sets
from forktask.cython_src.lowering.layouts.lanes.maps import FeatureMap
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks.layers import Convolution, Network, Softmax
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.cython_src.networks.registry import get_network

SMALL = convolutional_classifier("small", (2, 16, 24), (3, 6), 4)
RATE = 0.01


def prepare(plan, target="cpu", instruction_set=None, storage=None, seed=1):
    """Bind, initialise, fill data and tables."""
    bound = bind(plan, storage, target, instruction_set)
    if storage is None:
        initialise(bound, seed)
    rng = np.random.default_rng(seed)
    arrays = bound.arrays
    images, labels = arrays["dataset.images"], arrays["dataset.labels"]
    images[...] = rng.standard_normal(images.shape).astype(np.float32)
    labels[...] = rng.integers(0, plan.attributes["num_classes"], labels.shape)
    for row in arrays["batch_order"]:
        row[...] = rng.integers(0, len(images), len(row))
    if "learning_rates" in arrays:
        arrays["learning_rates"][...] = RATE * np.arange(1, 1 + len(arrays["learning_rates"]))
    return bound


def run(bound, iterations, order=None):
    """Run iterations in plan order, or the blocks of each loop in an order drawn at random."""
    workers = Workers(1, bound.scratch_bytes)
    for iteration in range(iterations):
        for number, loop in enumerate(bound.plan.loops):
            blocks = np.arange(loop.num_blocks) if order is None else order.permutation(loop.num_blocks)
            for block in blocks:
                if bound.run_task(number, int(block), iteration, workers):
                    bound.raise_failure(workers)
    return bound


def reference_steps(bound, network, iterations):
    """The same steps by the independent float64 form: optimiser with parameters, last step, losses, right
    answers."""
    arrays = bound.arrays
    sgd = reference.Sgd({n: arrays[n] for n in bound.plan.attributes["parameters"]}, RATE, 0.9, 1e-4)
    losses, correct = [], []
    for i in range(iterations):
        order = arrays["batch_order"][i % len(arrays["batch_order"])]
        sgd.learning_rate = arrays["learning_rates"][i % len(arrays["learning_rates"])]
        step = sgd.step(network, arrays["dataset.images"][order], arrays["dataset.labels"][order])
        losses.append(step.loss)
        correct.append(step.correct)
    return sgd, step, losses, correct


CASES = [
    (1, {}),
    (3, {"granularity": "images=1,channels=2,rows=6", "layout": "flat"}),
    (5, {"granularity": "images=2", "weight_gradients": "chain"}),
    (5, {"fusion": False, "granularity": "rows=4", "memory": "shared"}),
    (16, {}),
    (17, {"layout": "lanes", "fusion": False}),
    (17, {"layout": "lanes", "weight_gradients": "chain", "memory": "shared"}),
    (40, {"layout": "lanes", "granularity": "images=32,channels=4,rows=2"}),
    (24, {"memory": "shared"}),
    (17, {"layout": "lanes", "conv": "direct", "fusion": False}),
    (16, {"conv": "winograd"}),
    (17, {"conv": "winograd", "layout": "lanes", "weight_gradients": "chain", "memory": "shared"}),
    (40, {"conv": "winograd", "fusion": False, "granularity": "images=32,channels=4,rows=3"}),
]


@pytest.mark.parametrize(("batch", "options"), CASES)
def test_plan_equals_independent_step_in_float64(batch, options):
    """Check losses, activations, gradients and parameters of three steps of the NumPy form, to rounding in
    float64."""
    plan = lower(SMALL, batch=batch, num_images=batch + 3, num_batches=2, num_learning_rates=2, **options)
    bound = prepare(plan, "float64")
    sgd, step, losses, correct = reference_steps(bound, SMALL, 3)
    run(bound, 3)
    np.testing.assert_allclose(bound.view("losses")[:3], losses, rtol=1e-11)
    np.testing.assert_array_equal(bound.view("correct")[:3], correct)
    for name, value in sgd.parameters.items():
        np.testing.assert_allclose(bound.view(name), value, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(bound.view(f"{name}.grad"), step.gradients[name], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(bound.view(f"{name}.momentum"), sgd.velocities[name], rtol=1e-8, atol=1e-12)
    if options.get("memory") != "shared":  # overlaid activations do not outlive the step
        for name, value in step.activations.items():
            if name in plan.attributes["aliases"]:
                np.testing.assert_allclose(bound.view(name), value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("instruction_set", instruction_sets.available())
@pytest.mark.parametrize(("batch", "options"), CASES)
def test_compiled_plan_equals_float64(batch, options, instruction_set):
    """Check three compiled steps against the NumPy form in float64.

    A relative error of epsilon times the longest sum (batch x pixels, about 2^14 here) would be the bound for
    one layer if errors never cancelled; they do, and their root is taken, times the depth of the step.
    Weights and images are drawn so that no unit lies close enough to zero, or to its neighbour in a pooling
    window, to be decided by it.
    """
    plan = lower(SMALL, batch=batch, num_images=batch + 3, num_batches=2, num_learning_rates=2, **options)
    expected, got = run(prepare(plan, "float64"), 3), run(prepare(plan, "cpu", instruction_set), 3)
    tolerance = np.finfo(np.float32).eps * np.sqrt(batch * 16 * 24) * 16
    np.testing.assert_allclose(got.view("losses")[:3], expected.view("losses")[:3], rtol=tolerance, atol=tolerance)
    # p - 1 of a sure answer cancels: its rounding error is that of p, 1 / batch in the gradient of a logit.
    cancellation = max(1.0, 1 / batch / np.abs(expected.view("fc.grad")).max())
    for name in plan.attributes["parameters"]:
        for view in (name, f"{name}.grad"):
            scale = np.abs(expected.view(view)).max()
            if view.endswith(".grad"):
                scale *= cancellation
            np.testing.assert_allclose(got.view(view), expected.view(view), rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize(("batch", "options"), CASES)
def test_bits_do_not_depend_on_order_or_memory(batch, options):
    """Check that weights and losses have the same bits whatever the order of blocks, and with overlaid
    memory."""
    results = []
    for memory, order in (("full", None), ("full", np.random.default_rng(5)), ("shared", np.random.default_rng(6))):
        plan = lower(SMALL, batch=batch, num_images=batch + 3, **{**options, "memory": memory})
        bound = run(prepare(plan), 3, order)
        names = [*plan.attributes["parameters"], "losses"]
        results.append(b"".join(np.ascontiguousarray(bound.view(n)).tobytes() for n in names))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("batch", [1, 5, 8, 16, 24, 100])
def test_network_of_the_study_runs_at_any_batch(batch):
    """Check loss and gradients of one step of the CIFAR-10 network at the default granularity."""
    plan = lower("cifar10_cnn", batch=batch)
    bound = prepare(plan)
    _, step, losses, correct = reference_steps(bound, get_network("cifar10_cnn"), 1)
    run(bound, 1)
    assert bound.view("losses")[0] == pytest.approx(losses[0], rel=1e-5)
    assert bound.view("correct")[0] == correct[0]
    for name in plan.attributes["parameters"]:
        scale = np.abs(step.gradients[name]).max()
        np.testing.assert_allclose(bound.view(f"{name}.grad"), step.gradients[name], rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("batch", [1, 16, 19])
@pytest.mark.parametrize("fusion", [True, False])
def test_inference_gives_probabilities(batch, fusion):
    """Check probabilities and predictions against the independent form, with parameters shared through
    storage."""
    storage = Storage()
    train = bind(lower(SMALL, batch=4, prefix="train."), storage)
    initialise(train, 3)
    plan = lower(SMALL, batch=batch, phase="forward", fusion=fusion)
    bound = run(prepare(plan, storage=storage), 1)
    arrays = bound.arrays
    order = arrays["batch_order"][0]
    parameters = {n: arrays[n] for n in plan.attributes["parameters"]}
    step = reference.forward(SMALL, parameters, arrays["dataset.images"][order], arrays["dataset.labels"][order])
    np.testing.assert_allclose(bound.view("probabilities"), step.activations["softmax"], atol=1e-5)
    np.testing.assert_array_equal(bound.view("predictions"), step.activations["softmax"].argmax(axis=1))
    loops = {loop.layer for loop in plan.loops}
    assert loops >= ({"conv1", "pool2", "fc", "softmax"} if not fusion else {"conv1", "conv2", "fc", "softmax"})
    assert all(loop.phase in ("load", "forward") for loop in plan.loops)


def test_batch_of_one_has_work_for_several_threads():
    """Check that the default granularity cuts every convolution of batch 1 into at least four blocks."""
    plan = lower("cifar10_cnn", batch=1)
    for loop in plan.loops:
        if loop.kernel.startswith("conv_"):
            assert loop.num_blocks >= 4, loop.name


def test_flops_count_direct_convolutions_of_real_images():
    """Check forward, gradient and total FLOPs of the network, which do not depend on padding or
    granularity."""
    forward = 2 * 25 * (3 * 16 * 1024 + 16 * 20 * 256 + 20 * 20 * 64) + 2 * 320 * 10
    data = 2 * 25 * (16 * 20 * 256 + 20 * 20 * 64) + 2 * 320 * 10
    for batch, options in ((1, {}), (24, {"layout": "lanes"}), (24, {"granularity": "images=1,rows=2"})):
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


def test_odd_sides_are_computed_with_channels_in_the_lanes():
    """Check that a chain is lowered where pooling would halve a side to a fraction, which other layouts refuse."""
    assert lower(convolutional_classifier("odd", (3, 6, 6), (4, 4), 2), batch=4).attributes["layout"] == "channels"


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        ("nonsense", {}, "network must be one of"),
        (SMALL, {"batch": 0}, "batch must be a whole number of at least 1; got 0"),
        (SMALL, {"phase": "sideways"}, "phase must be one of"),
        (SMALL, {"layuot": "lanes"}, "did you mean 'layout'"),
        (SMALL, {"granularity": "images=0"}, "granularity must be"),
        (SMALL, {"granularity": "pixels=3"}, "granularity must be"),
        (SMALL, {"batch": 16, "granularity": "images=5", "layout": "lanes"}, "multiple of 16"),
        (Network("odd", (3, 8, 8), (Convolution("c", 4), Softmax())), {"batch": 4}, "must end with"),
    ],
)
def test_bad_input_is_said_in_one_sentence(network, options, message):
    """Check the message of each kind of bad argument."""
    with pytest.raises(UsageError, match=message):
        lower(network, **options)


@pytest.mark.parametrize(
    ("network", "conv", "smallest"), [("cifar10_cnn", "direct", 15), ("cifar10_cnn", "auto", 7), (SMALL, "auto", 14)]
)
def test_layout_follows_batch_and_granularity(network, conv, smallest):
    """Check that images fill the lanes where that costs less and blocks allow it: Winograd's form bears empty lanes."""

    def layout(batch, granularity="auto"):
        return lower(network, batch=batch, phase="train", granularity=granularity, conv=conv).attributes["layout"]

    assert [layout(n) for n in (1, smallest - 1, smallest, 16, 64)] == ["flat", "flat", *["lanes"] * 3]
    assert [layout(64, g) for g in ("images=4", "images=32")] == ["flat", "lanes"]


def test_instruction_set_can_be_chosen(monkeypatch):
    """Check FORKTASK_ISA, and that an unknown name is refused."""
    monkeypatch.setenv("FORKTASK_ISA", "generic")
    assert instruction_sets.choose() == "generic"
    monkeypatch.setenv("FORKTASK_ISA", "sse9")
    with pytest.raises(UsageError, match="FORKTASK_ISA must be"):
        instruction_sets.choose()
    assert get_network("cifar10_cnn").parameter_shapes()["conv2.weight"] == (20, 16, 5, 5)


@pytest.mark.parametrize("width", [2, 4, 6, 8, 10, 12, 14, 18, 20, 30, 32])
def test_units_stay_within_the_plane(width):
    """Check that the last unit of the flat layout, moved by the last tap, ends before the plane does."""
    for height in (2, 8, 14):
        flat = FeatureMap("map", 1, 1, height, width, 1, 2)
        units = -(-(height * flat.pitch - (flat.pitch - width)) // 16)
        assert 16 * units + 4 * flat.pitch + 4 <= flat.rows * flat.pitch


@pytest.mark.parametrize("layout", ["lanes", "flat"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_and_smoothed_labels_equal_their_formulas(layout, optimizer):
    """Check parameters after three steps, gradients from the reference."""
    plan = lower(
        SMALL, batch=4, num_images=4, layout=layout, optimizer=optimizer, label_smoothing=0.1, weight_decay=0.1
    )
    bound = prepare(plan, "float64")
    arrays = bound.arrays
    parameters = {name: arrays[name].copy() for name in plan.attributes["parameters"]}
    moments = {name: [np.zeros_like(p), np.zeros_like(p)] for name, p in parameters.items()}
    run(bound, 3)
    chosen = arrays["batch_order"][0]
    for t in (1, 2, 3):
        step = reference.forward_backward(
            SMALL, parameters, arrays["dataset.images"][chosen], arrays["dataset.labels"][chosen], label_smoothing=0.1
        )
        for name, p in parameters.items():
            g, (m, s) = step.gradients[name].copy(), moments[name]
            if optimizer == "adamw":
                p *= 1 - 0.01 * 0.1
            else:
                g += 0.1 * p
            m += 0.1 * (g - m)
            s += 0.001 * (g**2 - s)
            p -= 0.01 * m / (1 - 0.9**t) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8)
    assert arrays["losses"][2] == pytest.approx(step.loss, rel=1e-9)
    for name, expected in parameters.items():
        np.testing.assert_allclose(arrays[name], expected, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(bound.view(f"{name}.grad"), step.gradients[name], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(("layout", "batch"), [("lanes", 19), ("flat", 3)])
def test_frozen_layers_stay_where_lanes_hold_images_or_pixels(layout, batch):
    """Check that a frozen convolution keeps its parameters, that the others move as ever, and that no loop computes a
    gradient for it."""
    plan = lower(SMALL, batch=batch, layout=layout, frozen="conv1")
    frozen, free = prepare(plan), prepare(lower(SMALL, batch=batch, layout=layout))
    initial = {name: frozen.view(name).copy() for name in plan.attributes["parameters"]}
    run(frozen, 1)
    run(free, 1)
    names = [loop.name for loop in plan.loops]
    assert "conv2.weight_gradient" in names
    assert not {"conv2.data_gradient", "conv1.weight_gradient", "conv1.update"} & set(names)
    for name, value in initial.items():
        expected = value if name.startswith("conv1") else free.view(name)
        np.testing.assert_array_equal(frozen.view(name), expected)


@pytest.mark.parametrize("conv", ["direct", "winograd"])
def test_recomputation_leaves_the_bits(conv):
    """Check that activations which are computed again give the same weights and losses, in less memory."""
    options = {"batch": 32, "layout": "lanes", "memory": "shared", "fusion": "none", "conv": conv}
    network = convolutional_classifier("deep", (2, 32, 32), (4, 4, 5, 5), 3)
    kept, again = lower(network, **options), lower(network, **options, recompute=True)
    assert [loop.name for loop in again.loops if loop.name.endswith(".again")]
    results = [run(prepare(plan), 3) for plan in (kept, again)]
    for name in (*kept.attributes["parameters"], "losses"):
        np.testing.assert_array_equal(results[0].view(name), results[1].view(name))


def test_each_fusion_is_a_switch_of_its_own():
    """Check which kernels of LeNet-5 join ReLU and pooling, and that its loss is the same to rounding."""
    losses = []
    for fusion, joined in (
        ("none", set()),
        ("activation", {"fc_relu"}),
        ("pooling", {"conv"}),
        ("all", {"fc_relu", "conv"}),
    ):
        plan = lower("lenet5", batch=16, layout="lanes", conv="direct", fusion=fusion)
        kernels = {loop.kernel for loop in plan.loops}
        assert ("fc_relu_forward" in kernels) == ("fc_relu" in joined)
        assert ("conv_relu_pool" in kernels) == ("conv" in joined)
        losses.append(run(prepare(plan), 2).view("losses")[:2].copy())
    for loss in losses:
        np.testing.assert_allclose(loss, losses[0], rtol=1e-5)
