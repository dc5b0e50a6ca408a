"""Networks in the layout "channels" compute what the float64 reference does, which shares nothing but the network."""

import numpy as np
import pytest
from cython_src.networks_for_tests import SMALL, fill

from cython_src import reference
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import check_accesses, find_unused_reads, run_serial
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.layers import (
    BatchNorm,
    Convolution,
    Dropout,
    FullyConnected,
    GlobalPool,
    Network,
    ReLU,
    Softmax,
)
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.experiments.sampling.models import make_executor

STEPS = 3
CASES = {
    "by cost": {},
    "cut everywhere": {"granularity": "images=1,channels=16,rows=2"},
    "nothing joined": {"fusion": "none"},
    "statistics only": {"fusion": "statistics", "granularity": "images=2"},
    "residual only": {"fusion": "residual"},
    "depthwise apart": {"fusion": "activation,residual,statistics"},
    "depthwise, norm kept": {
        "fusion": "activation,residual,statistics,depthwise",
        "granularity": "images=1,channels=16",
    },
    "computed again": {"recompute": True, "memory": "shared"},
    "chain, shared memory": {"weight_gradients": "chain", "granularity": "images=1", "memory": "shared"},
}


def run(network, target, steps=STEPS, batch=3, **options):
    """Bound plan after `steps` steps, and the reference's optimiser and last step on the same data."""
    plan = lower(network, batch=batch, num_images=batch + 2, num_batches=2, **options)
    bound = bind(plan, target=target)
    fill(bound)
    arrays = bound.arrays
    truth = reference.Sgd(
        {name: arrays[name] for name in plan.attributes["parameters"]},
        0.05,
        plan.attributes["momentum"],
        plan.attributes["weight_decay"],
    )
    run_serial(bound, steps)
    losses = []
    for k in range(steps):
        chosen = arrays["batch_order"][k % 2]
        step = truth.step(
            network,
            arrays["dataset.images"][chosen],
            arrays["dataset.labels"][chosen],
            options.get("label_smoothing", 0.0),
        )
        losses.append(step.loss)
        assert arrays["correct"][k] == step.correct
    np.testing.assert_allclose(arrays["losses"][:steps], losses, rtol=1e-9 if target == "float64" else 1e-4)
    return bound, truth, step


def close(actual, expected, tolerance):
    """Within `tolerance` of the largest element."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(np.abs(expected).max(), 1e-3))


@pytest.mark.parametrize(
    ("name", "case"),
    [
        (name, case)
        for i, name in enumerate(SMALL)
        for k, case in enumerate(CASES)
        if not k or name in ("branches", "dense") or i % 4 == k % 4 or (k > 4 and "mobilenet" in name)
    ],
)
def test_three_steps_equal_the_reference(name, case):
    """Check losses, right answers, all parameters, gradients, statistics and activations after three steps."""
    network = SMALL[name]
    bound, truth, step = run(network, "float64", **CASES[case])
    for parameter, expected in truth.parameters.items():
        close(bound.arrays[parameter], expected, 1e-9)
        close(bound.view(f"{parameter}.grad"), step.gradients[parameter], 1e-9)
    for statistic, expected in step.statistics.items():
        close(bound.arrays[statistic], expected, 1e-9)
    shown = bound.plan.attributes["aliases"]
    if "memory" not in CASES[case]:
        for layer, expected in step.activations.items():
            if layer in shown and layer != "softmax":
                close(bound.view(layer), expected, 1e-9)
    assert {"input", network.layers[-2].name} <= set(shown)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_input_rows_that_no_window_holds_read_no_gradient(name):
    """Check gradients, and accesses, where blocks are single rows and a stride of 2 skips the last row of the input."""
    network, options = SMALL[name], {"granularity": "images=1,rows=1", "layout": "channels"}
    bound, truth, step = run(network, "float64", steps=1, **options)
    for parameter in truth.parameters:
        close(bound.view(f"{parameter}.grad"), step.gradients[parameter], 1e-9)
    plan = lower(network, batch=1, **options)
    check_accesses(plan, "cpu", initialise=fill, num_replays=1, blocks_per_loop=8)
    unused = find_unused_reads(plan, "cpu", initialise=fill, num_replays=1, blocks_per_loop=8)
    assert [read for read in unused if "data_gradient" in read[0]] == []


@pytest.mark.parametrize("memory", ["full", "shared"])
def test_evaluation_uses_running_statistics(memory):
    """Check loss and probabilities after training, on other data in the same storage."""
    network = SMALL["mobilenet_v2"]
    bound, truth, step = run(network, "float64", steps=2)
    for phase in ("evaluate", "forward"):
        plan = lower(network, batch=2, phase=phase, prefix=f"{phase}.", num_images=4, memory=memory)
        other = bind(plan, bound.storage, target="float64")
        arrays = other.arrays
        arrays[f"{phase}.dataset.images"][...] = np.random.default_rng(1).normal(size=(4, 3, 8, 8))
        arrays[f"{phase}.dataset.labels"][...] = [1, 2, 3, 4]
        arrays[f"{phase}.batch_order"][...] = [3, 1]
        run_serial(other, 1)
        images, labels = arrays[f"{phase}.dataset.images"][[3, 1]], np.array([4, 2])
        expected = reference.forward(network, truth.parameters, images, labels, step.statistics, training=False)
        if phase == "evaluate":
            assert arrays["evaluate.losses"][0] == pytest.approx(expected.loss, rel=1e-9)
        else:
            close(arrays["forward.probabilities"], expected.activations["softmax"], 1e-9)


def test_label_smoothing_equals_the_reference():
    """Check the loss and a gradient."""
    bound, _, step = run(SMALL["mobilenet_v1"], "float64", steps=2, label_smoothing=0.1)
    close(bound.view("conv1.weight.grad"), step.gradients["conv1.weight"], 1e-9)


def optimised(network, steps, optimizer, batch=3, **options):
    """Parameters after steps of a formula of their own, gradients from the reference."""
    plan = lower(network, batch=batch, num_images=batch, optimizer=optimizer, weight_decay=0.1, **options)
    bound = bind(plan, target="float64")
    fill(bound, rate=0.01)
    arrays = bound.arrays
    parameters = {name: arrays[name].copy() for name in plan.attributes["parameters"]}
    first = {name: np.zeros_like(p) for name, p in parameters.items()}
    second = {name: np.zeros_like(p) for name, p in parameters.items()}
    run_serial(bound, steps)
    statistics = None
    chosen = arrays["batch_order"][0]
    for t in range(1, steps + 1):
        images, labels = arrays["dataset.images"][chosen], arrays["dataset.labels"][chosen]
        step = reference.forward_backward(network, parameters, images, labels, statistics)
        statistics = step.statistics
        norm = np.sqrt(sum((step.gradients[name] ** 2).sum() for name in parameters))
        limit = options.get("clip_norm", 0)
        scale = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        if limit:
            assert arrays["gradient_norms"][t - 1] == pytest.approx(norm, rel=1e-9)
        for name, p in parameters.items():
            g = step.gradients[name] * scale
            if optimizer == "adamw":
                p *= 1 - 0.01 * 0.1
            else:
                g = g + 0.1 * p
            if optimizer == "sgd":
                first[name] = 0.9 * first[name] + g
                p -= 0.01 * first[name]
                continue
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            p -= 0.01 * first[name] / (1 - 0.9**t) / (np.sqrt(second[name] / (1 - 0.999**t)) + 1e-8)
    return bound, parameters


CHAIN = convolutional_classifier("chain", (2, 16, 24), (3, 6), 4)


@pytest.mark.parametrize(
    ("network", "optimizer", "options"),
    [
        (SMALL["mobilenet_v1"], "adam", {}),
        (SMALL["mobilenet_v1"], "adamw", {"weight_gradients": "chain", "granularity": "images=1"}),
        (SMALL["mobilenet_v1"], "sgd", {"clip_norm": 0.1}),
        (SMALL["mobilenet_v1"], "adamw", {"clip_norm": 0.5, "granularity": "images=1,channels=16"}),
        (CHAIN, "sgd", {"clip_norm": 0.1, "layout": "lanes", "batch": 19}),
        (CHAIN, "adamw", {"clip_norm": 0.5, "layout": "lanes", "batch": 19, "weight_gradients": "chain"}),
        (CHAIN, "adam", {"clip_norm": 0.1, "layout": "flat", "granularity": "images=1,channels=2"}),
    ],
)
def test_optimisers_and_clipping_equal_their_formulas(network, optimizer, options):
    """Check all parameters after three steps, partial sums and chains, with and without clipping, in each layout."""
    bound, parameters = optimised(network, 3, optimizer, **options)
    for name, expected in parameters.items():
        close(bound.arrays[name], expected, 1e-8)


def test_frozen_layers_stay_and_stop_the_backward_pass():
    """Check that frozen parameters keep their values, that trained ones move as ever, and that no loop computes what
    nobody needs."""
    network = SMALL["resnet18"]
    start = bind(lower(network, batch=3, num_images=5, num_batches=2), target="float64")
    fill(start)
    plan = lower(network, batch=3, num_images=5, num_batches=2, frozen="conv1,bn1,layer1")
    bound = bind(plan, target="float64")
    fill(bound)
    run_serial(bound, 1)
    names = [loop.name for loop in plan.loops]
    assert "layer2.0.conv1.weight_gradient" in names and "layer2.0.conv1.data_gradient" not in names
    assert not any(name.startswith(("layer1.0.conv1.w", "bn1.gradient")) and "packed" not in name for name in names)
    run_serial(start, 1)
    for name in plan.attributes["parameters"]:
        moved = not name.startswith(("conv1", "bn1", "layer1"))
        assert moved == (f"{name}.grad" in plan.attributes["aliases"])
        initial = bind(lower(network, batch=3, num_images=5, num_batches=2), target="float64")
        break
    fill(initial)
    for name in plan.attributes["parameters"]:
        moved = not name.startswith(("conv1", "bn1", "layer1"))
        close(bound.arrays[name], (start if moved else initial).arrays[name], 1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"conv": "fast"}, "conv must be one of"),
        ({"fusion": "activations"}, "fusion must be all, none or some of"),
        ({"optimizer": "lion"}, "optimizer must be one of"),
        ({"label_smoothing": 1.0}, "label_smoothing must be in"),
        ({"granularity": "images=1,channels=8"}, "multiple of 16"),
        ({"frozen": "layer9"}, "frozen"),
        ({"layout": "lanes"}, "got BatchNorm"),
        ({"fusion": "pooling"}, "fusion may name"),
    ],
)
def test_bad_options_are_refused(options, message):
    """Check that each wrong option gives one sentence."""
    from forktask.cython_src.errors import UsageError

    with pytest.raises(UsageError, match=message):
        lower(SMALL["resnet18"], batch=2, **options)


@pytest.mark.parametrize("target", ["float64", "cpu"])
def test_dropout_masks_maps_and_vectors_and_their_gradients(target):
    """Check the share of zeros, that masks change with the iteration, and all gradients given the masks; evaluation
    leaves dropout out."""
    network = Network(
        "dropped",
        (3, 8, 8),
        (
            Convolution("conv1", 16, 3, 1),
            ReLU("relu"),
            Dropout("drop1", 0.25),
            Convolution("conv2", 32, 3, 1, bias=False),
            BatchNorm("bn"),
            ReLU("relu2"),
            GlobalPool("pool"),
            Dropout("drop2", 0.5),
            FullyConnected("linear", 10),
            Softmax(),
        ),
    )
    plan = lower(network, batch=8, num_images=8, momentum=0.0, weight_decay=0.0, dropout_seed=5)
    bound = bind(plan, target=target)
    fill(bound, rate=0.0)
    arrays = bound.arrays
    seen = []
    for iteration in (0, 1):
        with make_executor("serial", 1) as executor:
            executor.prepare(bound)
            executor.run(1, first_iteration=iteration)
        masks = {}
        for name, source, rate in (("drop1", "relu", 0.25), ("drop2", "pool", 0.5)):
            x, y = np.array(bound.view(source), np.float64), np.array(bound.view(name), np.float64)
            kept = (y != 0) | (x == 0)
            assert abs(1 - kept[x != 0].mean() - rate) < 0.1
            masks[name] = kept / (1 - rate)
        seen.append(masks)
        parameters = {name: arrays[name] for name in plan.attributes["parameters"]}
        chosen = arrays["batch_order"][0]
        step = reference.forward_backward(
            network, parameters, arrays["dataset.images"][chosen], arrays["dataset.labels"][chosen], masks=masks
        )
        tolerance = 1e-9 if target == "float64" else 1e-4
        assert arrays["losses"][iteration] == pytest.approx(step.loss, rel=tolerance)
        for name in parameters:
            close(bound.view(f"{name}.grad"), step.gradients[name], tolerance)
    assert (seen[0]["drop1"] != seen[1]["drop1"]).any()
    evaluation = bind(
        lower(network, batch=8, phase="evaluate", prefix="e.", num_images=8), bound.storage, target=target
    )
    for name in ("dataset.images", "dataset.labels", "batch_order"):
        evaluation.arrays[f"e.{name}"][...] = arrays[name]
    run_serial(evaluation, 1)
    statistics = {name: arrays[name] for name in network.statistic_shapes()}
    expected = reference.forward(
        network,
        parameters,
        arrays["dataset.images"][chosen],
        arrays["dataset.labels"][chosen],
        statistics,
        training=False,
    )
    assert evaluation.arrays["e.losses"][0] == pytest.approx(expected.loss, rel=tolerance)
