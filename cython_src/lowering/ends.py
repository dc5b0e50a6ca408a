"""Both ends of a network of images: samples and labels come in, probabilities or a loss go out."""

from __future__ import annotations

import math

from ..networks.layers import Layer
from ..plan.model import read, update, write
from .state import Ends, ImageMap, Lowering, group_bounds


def load(low: Lowering) -> str:
    """Append the loop that gathers a batch; return the buffer of its labels."""
    b, data = low.builder, low.data
    target = low.maps["input"] = low.keep(low.layout.activation(low, "input", "input"), "input")
    low.aliases["input"] = target.natural()
    images = b.buffer(f"{data.prefix}dataset.images", (data.num_images, *low.spec.input_shape), role="dataset")
    all_labels = b.buffer(f"{data.prefix}dataset.labels", (data.num_images,), "int32", role="dataset")
    order = b.buffer(f"{data.prefix}batch_order", (data.num_batches, low.batch), "int32", role="table")
    labels = b.buffer("labels", (low.groups, low.layout.lanes), "int32", role="input")
    size = math.prod(low.spec.input_shape)
    blocks = []
    for g in low.layout.sample_blocks(low):
        accesses = read(images), read(all_labels), read(order), target.write(g), write(labels, g)
        blocks.append((group_bounds(g), accesses, 0.0, 8.0 * low.samples_in(g) * size))
    operands = {
        "images": images,
        "dataset_labels": all_labels,
        "batch_order": order,
        "output": target.name,
        "labels": labels,
    }
    low.loop(
        "load",
        low.layout.load_kernel,
        operands,
        blocks,
        "input",
        "load",
        **target.attributes("out"),
        batch=low.batch,
        num_batches=data.num_batches,
        num_images=data.num_images,
    )
    return labels


def softmax(low: Lowering, head: Layer) -> None:
    """Append probabilities and predictions."""
    b, prefix, logits = low.builder, low.data.prefix, low.maps[low.logits]
    (classes,) = low.shapes[low.logits]
    probabilities = b.buffer(f"{prefix}probabilities", (low.batch, classes), role="log")
    predictions = b.buffer(f"{prefix}predictions", (low.batch,), "int32", role="log")
    low.aliases["softmax"] = lambda arrays: arrays[probabilities]
    blocks = []
    for g in low.layout.sample_blocks(low):
        samples = low.sample_range(g)
        accesses = logits.read(g), write(probabilities, samples), write(predictions, samples)
        blocks.append((group_bounds(g), accesses, 0.0, 8.0 * classes * low.samples_in(g)))
    operands = {"logits": logits.name, "probabilities": probabilities, "predictions": predictions}
    shape = {"classes": classes, "lanes": low.layout.lanes, "batch": low.batch}
    low.loop("softmax", "softmax", operands, blocks, head.name, "forward", **shape)


def loss(low: Lowering, labels: str, head: Layer, phase: str) -> ImageMap:
    """Append loss and number of right answers; return the gradient of the logits."""
    b, logits = low.builder, low.maps[low.logits]
    (classes,) = low.shapes[low.logits]
    gradient = low.keep(low.layout.vector(low, f"{low.logits}.gradient", classes), "gradient")
    losses = b.buffer("group_losses", (low.groups,), role="temporary")
    correct = b.buffer("group_correct", (low.groups,), "int32", role="temporary")
    blocks = []
    for g in low.layout.sample_blocks(low):
        accesses = (logits.read(g), read(labels, g), gradient.write(g), write(losses, g), write(correct, g))
        blocks.append((group_bounds(g), accesses, 0.0, 8.0 * classes * low.samples_in(g)))
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
        head.name,
        phase,
        classes=classes,
        lanes=low.layout.lanes,
        batch=low.batch,
        label_smoothing=low.options.label_smoothing,
    )
    log_losses(low, head, phase, losses, correct, low.batch)
    return gradient


def log_losses(low: Lowering, head: Layer, phase: str, losses: str, correct: str, answers: int) -> None:
    """Append the sums of losses and right answers, which go to the logs; the loss is a mean over the answers."""
    length, prefix = low.data.num_iterations_logged, low.data.prefix
    log = low.builder.buffer(f"{prefix}losses", (length,), role="log")
    correct_log = low.builder.buffer(f"{prefix}correct", (length,), "int32", role="log")
    (groups,) = low.builder.shape(losses)
    operands = {"losses": losses, "correct": correct, "loss_log": log, "correct_log": correct_log}
    low.loop(
        "loss",
        "loss_sum",
        operands,
        [({}, (read(losses), read(correct), update(log), update(correct_log)), 0.0, 8.0 * groups)],
        head.name,
        phase,
        groups=groups,
        batch=answers,
        length=length,
        check_finite=int(low.options.check_finite),
    )


IMAGES = Ends(True, load, softmax, loss)
