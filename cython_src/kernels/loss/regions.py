"""What the kernels of losses and probabilities touch, and what that costs."""

from ...plan.model import read, update, write
from ..interface.kernel_spec import size, touches


def _classes_cost(a, b, shapes):
    return 0.0, 8.0 * a["classes"] * a["lanes"] * size(b["g"])


@touches("softmax", cost=_classes_cost)
def softmax(a, b, shapes):
    samples = b["g"][0] * a["lanes"], min(b["g"][1] * a["lanes"], a["batch"])
    return read("logits", b["g"]), write("probabilities", samples), write("predictions", samples)


@touches("softmax_loss", cost=_classes_cost)
def softmax_loss(a, b, shapes):
    for operand in shapes:
        yield (read if operand in ("logits", "labels") else write)(operand, b["g"])


@touches("loss_sum", cost=lambda a, b, shapes: (0.0, 8.0 * a["groups"]))
def loss_sum(a, b, shapes):
    for operand in shapes:
        yield (update if operand.endswith("_log") else read)(operand)


def _logits(a, rows):
    """Region of the logits of some rows, without the padding."""
    return (rows,) if a["pitch"] == a["vocabulary"] else (rows, (0, a["vocabulary"]))


def _vocabulary_cost(times):
    return lambda a, b, shapes: (0.0, 4.0 * times * a["vocabulary"] * size(b["r"]))


@touches("vocabulary_evaluate", cost=_vocabulary_cost(1))
def vocabulary_evaluate(a, b, shapes):
    yield read("logits", *_logits(a, b["r"]))
    yield read("targets", b["r"])
    for operand in ("logsumexp", "losses", "correct"):
        if operand in shapes:
            yield write(operand, b["r"])


@touches("vocabulary_loss", "vocabulary_gradient", cost=_vocabulary_cost(2))
def vocabulary_gradient(a, b, shapes):
    """Rows of logits become their gradient, padding included; where some targets are ignored, all of them say how many
    count."""
    yield update("logits", *_logits(a, b["r"]))
    if a["pitch"] > a["vocabulary"]:
        yield write("logits", b["r"], (a["vocabulary"], a["pitch"]))
    yield read("targets") if a["ignored"] else read("targets", b["r"])
    for operand in ("losses", "correct", "logsumexp"):
        if operand in shapes:
            yield (read if operand == "logsumexp" else write)(operand, b["r"])
