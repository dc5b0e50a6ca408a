"""Both ends of a network of images: samples and labels come in, probabilities or a loss go out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..kernels.interface.kernel_spec import KernelSpec
from ..networks.layers import Layer
from ..plan.builder import block_bounds, ranges
from ..plan.model import read, write
from .state import Ends, Lowering, TensorMap

READ_KERNEL = "read_images"
READ_BYTES = 65536  # of a block of images that are read: a call into Python takes as long as some ten thousand bytes


def load(low: Lowering) -> str:
    """Append the loop that gathers a batch, and before it one that reads the batch's images where they are no array;
    return the buffer of its labels."""
    b, data = low.builder, low.data
    target = low.maps["input"] = low.keep(low.layout.activation(low, "input", "input"), "input")
    low.aliases["input"] = target.natural()
    if low.read_image is None:
        num_images, num_batches = data.num_images, data.num_batches
        images = b.buffer(f"{data.prefix}dataset.images", (num_images, *low.spec.input_shape), role="dataset")
        all_labels = b.buffer(f"{data.prefix}dataset.labels", (num_images,), "int32", role="dataset")
        order = b.buffer(f"{data.prefix}batch_order", (num_batches, low.batch), "int32", role="table")
    else:
        num_images, num_batches = low.batch, 1
        images, all_labels, order = read_images(low, low.read_image)
    labels = b.buffer("labels", (low.groups, low.layout.lanes), "int32", role="input")
    operands = {
        "images": images,
        "dataset_labels": all_labels,
        "batch_order": order,
        "output": target,
        "labels": labels,
    }
    sizes = {"batch": low.batch, "num_batches": num_batches, "num_images": num_images}
    if low.read_image is not None:
        sizes["in_order"] = 1
    low.loop("load", low.layout.load_kernel, operands, low.sample_bounds(), "input", "load", **sizes)
    return labels


def read_images(low: Lowering, read_image: Callable[[int, np.ndarray], None]) -> tuple[str, str, str]:
    """Append the loop that reads a batch's images into a buffer of the step, from wherever `read_image` has them;
    return the buffers of images and labels, and the table of one row of the images' numbers in these, 0 ... batch - 1,
    which the user of the plan fills."""
    b, data = low.builder, low.data
    all_labels = b.buffer(f"{data.prefix}dataset.labels", (data.num_images,), "int32", role="dataset")
    order = b.buffer(f"{data.prefix}batch_order", (data.num_batches, low.batch), "int32", role="table")
    images = b.buffer("read.images", (low.batch, *low.spec.input_shape), role="input")
    labels = b.buffer("read.labels", (low.batch,), "int32", role="input")
    positions = b.buffer(f"{data.prefix}read.positions", (1, low.batch), "int32", role="table")

    def read_block(operands, attributes, bounds, iteration):
        chosen = operands["batch_order"][iteration % len(operands["batch_order"])]
        for i in range(bounds["n0"], bounds["n1"]):
            read_image(int(chosen[i]), operands["images"][i])
            operands["labels"][i] = operands["dataset_labels"][chosen[i]]

    def touched(attributes, bounds, shapes):
        yield from (read("dataset_labels"), read("batch_order"))
        yield from (write("images", bounds["n"]), write("labels", bounds["n"]))

    size = 4.0 * math.prod(low.spec.input_shape)
    spec = KernelSpec(
        READ_KERNEL,
        ("dataset_labels", "batch_order", "images", "labels"),
        bounds=("n0", "n1"),
        reference=read_block,
        regions=touched,
        cost=lambda attributes, bounds, shapes: (0.0, size * (bounds["n1"] - bounds["n0"])),
    )
    b.attributes["kernels"] = {READ_KERNEL: spec}
    operands = {"dataset_labels": all_labels, "batch_order": order, "images": images, "labels": labels}
    groups = ranges(low.batch, max(1, min(low.batch, round(READ_BYTES / size))))
    low.loop("read", spec, operands, block_bounds(n=groups), "input", "load")
    return images, labels, positions


def softmax(low: Lowering, head: Layer) -> None:
    """Append probabilities and predictions."""
    b, prefix, logits = low.builder, low.data.prefix, low.maps[low.logits]
    (classes,) = low.shapes[low.logits]
    probabilities = b.buffer(f"{prefix}probabilities", (low.batch, classes), role="log")
    predictions = b.buffer(f"{prefix}predictions", (low.batch,), "int32", role="log")
    low.aliases["softmax"] = lambda arrays: arrays[probabilities]
    operands = {"logits": logits, "probabilities": probabilities, "predictions": predictions}
    shape = {"classes": classes, "lanes": low.layout.lanes, "batch": low.batch}
    low.loop("softmax", "softmax", operands, low.sample_bounds(), head.name, "forward", **shape)


def loss(low: Lowering, labels: str, head: Layer, phase: str) -> TensorMap:
    """Append loss and number of right answers; return the gradient of the logits."""
    b, logits = low.builder, low.maps[low.logits]
    (classes,) = low.shapes[low.logits]
    gradient = low.keep(low.layout.vector(low, f"{low.logits}.gradient", classes), "gradient")
    losses = b.buffer("group_losses", (low.groups,), role="temporary")
    correct = b.buffer("group_correct", (low.groups,), "int32", role="temporary")
    operands = {"logits": logits, "labels": labels, "gradient": gradient, "losses": losses, "correct": correct}
    shape = {"classes": classes, "lanes": low.layout.lanes, "batch": low.batch}
    smoothing = low.options.label_smoothing
    bounds = low.sample_bounds()
    low.loop("softmax", "softmax_loss", operands, bounds, head.name, phase, **shape, label_smoothing=smoothing)
    log_losses(low, head, phase, losses, correct, low.batch)
    return gradient


def log_losses(
    low: Lowering, head: Layer, phase: str, losses: str, correct: str, answers: int, labels: str = ""
) -> None:
    """Append the sums of losses and right answers, which go to the logs; the loss is a mean over the answers, or over
    those of some labels that are not ignored."""
    length, prefix = low.data.num_iterations_logged, low.data.prefix
    log = low.builder.buffer(f"{prefix}losses", (length,), role="log")
    correct_log = low.builder.buffer(f"{prefix}correct", (length,), "int32", role="log")
    operands = {"losses": losses, "correct": correct, "loss_log": log, "correct_log": correct_log, "labels": labels}
    (groups,) = low.builder.shape(losses)
    sizes = {"groups": groups, "batch": answers, "length": length, "check_finite": int(low.options.check_finite)}
    low.loop("loss", "loss_sum", operands, [{}], head.name, phase, **sizes)


IMAGES = Ends(True, load, softmax, loss)
