"""What the kernels touch that gather a batch, and what that costs."""

import math

from ...plan.model import read, write
from ..interface.kernel_spec import size, touches
from ..maps.nhwc import operand_map


def _images_cost(a, b, shapes):
    samples = a["out_lanes"] * size(b["g"]) if "out_lanes" in a else size(b["n"])
    return 0.0, 8.0 * math.prod(shapes["images"][1:]) * samples


def _drawn(a, lanes, groups):
    """What a block may read of the data set: any sample, or its own where the samples come in order."""
    here = ((groups[0] * lanes, min(groups[1] * lanes, a["batch"])),) if a["in_order"] else ()
    return read("images", *here), read("dataset_labels", *here), read("batch_order")


@touches("load_images", cost=_images_cost)
def load_images(a, b, shapes):
    return *_drawn(a, a["out_lanes"], b["g"]), write("output", b["g"]), write("labels", b["g"])


@touches("nhwc_load_images", cost=_images_cost)
def nhwc_load_images(a, b, shapes):
    target = operand_map("output", "out", a, shapes)
    return *_drawn(a, 1, b["n"]), target.write(b["n"]), write("labels", b["n"])


def _times(samples, number):
    return samples[0] * number, samples[1] * number


@touches("tokens_load", cost=lambda a, b, shapes: (0.0, 16.0 * a["sequence"] * size(b["n"])))
def load_tokens(a, b, shapes):
    for operand in ("dataset_tokens", "dataset_labels", "batch_order"):
        if operand in shapes:
            yield read(operand)
    yield write("tokens", _times(b["n"], a["sequence"]))
    yield write("targets", _times(b["n"], a["answers"] or a["sequence"]))
