"""Both ends of a network: images and labels come in, probabilities or a loss go out."""

from __future__ import annotations

import math

from ...networks.layers import Softmax
from ...plan.model import ranges, read, update, write
from . import block_sizes
from .state import FeatureMap, Lowering, Vector
from .units import Unit


def load(low: Lowering) -> str:
    o, b = low.options, low.builder
    target = FeatureMap("input", low.batch, *low.spec.input_shape, low.halo("input"), image=True)
    b.buffer(target.name, target.shape, role="input")
    low.maps["input"] = target
    low.aliases["input"] = target.natural()
    images = b.buffer(f"{o.prefix}dataset.images", (o.num_images, *low.spec.input_shape), role="dataset")
    all_labels = b.buffer(f"{o.prefix}dataset.labels", (o.num_images,), "int32", role="dataset")
    order = b.buffer(f"{o.prefix}batch_order", (o.num_batches, low.batch), "int32", role="table")
    labels = b.buffer("labels", (low.batch, 1), "int32", role="input")
    size = math.prod(low.spec.input_shape)
    blocks = []
    for n in ranges(low.batch, block_sizes.pixel_blocks(o.granularity, low.batch, 1)[0]):
        accesses = read(images), read(all_labels), read(order), target.write(n), write(labels, n)
        blocks.append(({"n0": n[0], "n1": n[1]}, accesses, 0.0, 8.0 * (n[1] - n[0]) * size))
    operands = {
        "images": images,
        "dataset_labels": all_labels,
        "batch_order": order,
        "output": target.name,
        "labels": labels,
    }
    low.loop(
        "load",
        "channels_load_images",
        operands,
        blocks,
        Unit(Softmax("input"), (), "input"),
        "load",
        **target.attributes("out"),
        batch=low.batch,
        num_batches=o.num_batches,
        num_images=o.num_images,
    )
    return labels


def softmax(low: Lowering, logits: Vector, unit: Unit) -> None:
    b, prefix, classes = low.builder, low.options.prefix, logits.channels
    probabilities = b.buffer(f"{prefix}probabilities", (low.batch, classes), role="log")
    predictions = b.buffer(f"{prefix}predictions", (low.batch,), "int32", role="log")
    low.aliases["softmax"] = lambda arrays: arrays[probabilities]
    blocks = []
    for n in low.image_blocks():
        accesses = logits.read(n), write(probabilities, n), write(predictions, n)
        blocks.append(({"g0": n[0], "g1": n[1]}, accesses, 0.0, 8.0 * classes * (n[1] - n[0])))
    operands = {"logits": logits.name, "probabilities": probabilities, "predictions": predictions}
    low.loop("softmax", "softmax", operands, blocks, unit, "forward", classes=classes, lanes=1, batch=low.batch)


def loss(low: Lowering, logits: Vector, labels: str, unit: Unit, phase: str) -> Vector:
    """Append loss and answers; returns the gradient of the logits."""
    b, o, classes = low.builder, low.options, logits.channels
    gradient = low.new_vector(f"{unit.sources[0]}.gradient", classes)
    b.buffer(gradient.name, gradient.shape, role="gradient")
    losses = b.buffer("image_losses", (low.batch,), role="temporary")
    correct = b.buffer("image_correct", (low.batch,), "int32", role="temporary")
    log = b.buffer(f"{o.prefix}losses", (o.num_iterations_logged,), role="log")
    correct_log = b.buffer(f"{o.prefix}correct", (o.num_iterations_logged,), "int32", role="log")
    blocks = []
    for n in low.image_blocks():
        accesses = (logits.read(n), read(labels, n), gradient.write(n), write(losses, n), write(correct, n))
        blocks.append(({"g0": n[0], "g1": n[1]}, accesses, 0.0, 8.0 * classes * (n[1] - n[0])))
    operands = {
        "logits": logits.name,
        "labels": labels,
        "gradient": gradient.name,
        "losses": losses,
        "correct": correct,
    }
    low.loop(
        "softmax",
        "softmax_loss",
        operands,
        blocks,
        unit,
        phase,
        classes=classes,
        lanes=1,
        batch=low.batch,
        label_smoothing=o.label_smoothing,
    )
    accesses = read(losses), read(correct), update(log), update(correct_log)
    operands = {"losses": losses, "correct": correct, "loss_log": log, "correct_log": correct_log}
    low.loop(
        "loss",
        "loss_sum",
        operands,
        [({}, accesses, 0.0, 8.0 * low.batch)],
        unit,
        phase,
        groups=low.batch,
        batch=low.batch,
        length=o.num_iterations_logged,
        check_finite=b.attributes["check_finite"],
    )
    return gradient
