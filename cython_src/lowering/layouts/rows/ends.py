"""Both ends of a network of tokens: samples, and the token after each of theirs or labels, come in, logits or a loss go
out."""

from __future__ import annotations

from ....networks.layers import Layer
from ....plan.builder import block_bounds
from ...ends import log_losses
from ...state import Ends, Lowering
from .blocks import row_blocks, sample_blocks
from .maps import Ids, TokenMap


def load(low: Lowering) -> str:
    """Append the loop that gathers a batch; return the buffer of the token after each, or of labels."""
    b, data, length = low.builder, low.data, low.options.sequence
    source = low.maps["input"] = Ids("tokens", low.batch, length, 1, 1)
    low.aliases["input"] = source.natural()
    answers = low.spec.token_input.answers
    numbers = 1 if answers == "class" else length
    # The target of the last token of a sample is the first one of the next, so one token follows the last sample.
    count = data.num_images * length + (answers == "next")
    datasets = {"dataset_tokens": b.buffer(f"{data.prefix}dataset.tokens", (count,), "int32", role="dataset")}
    if answers != "next":
        labels = b.buffer(f"{data.prefix}dataset.labels", (data.num_images * numbers,), "int32", role="dataset")
        datasets["dataset_labels"] = labels
    order = b.buffer(f"{data.prefix}batch_order", (data.num_batches, low.batch), "int32", role="table")
    tokens = b.buffer(source.name, source.shape, "int32", role="input")
    targets = b.buffer("targets", (low.batch * numbers,), "int32", role="input")
    sizes = {"sequence": length, "batch": low.batch, "num_batches": data.num_batches, "num_images": data.num_images}
    if answers != "next":
        sizes["answers"] = numbers
    operands = {**datasets, "batch_order": order, "tokens": tokens, "targets": targets}
    low.loop("load", "tokens_load", operands, block_bounds(n=sample_blocks(low)), "input", "load", **sizes)
    return targets


def logits(low: Lowering, head: Layer) -> None:
    """Let the logits be the answer: probabilities of a vocabulary would only take more memory."""
    low.aliases["logits"] = low.maps[low.logits].natural()


def loss(low: Lowering, targets: str, head: Layer, phase: str) -> TokenMap:
    """Append loss and number of right answers; in phase "backward" the logits become their gradient in place."""
    b, source = low.builder, low.maps[low.logits]
    losses = b.buffer("token_losses", (source.rows,), role="temporary")
    correct = b.buffer("token_correct", (source.rows,), "int32", role="temporary")
    shape = {"vocabulary": source.features, "pitch": source.pitch, "rows": source.rows}
    ignored = low.spec.token_input.answers == "masked"
    if ignored:  # what counts is known from all labels
        shape["ignored"] = 1
    operands = {"logits": source, "targets": targets}
    answers = {"losses": losses, "correct": correct}
    apart = phase == "backward" and "loss" not in low.fusion  # the gradient of the logits has a loop of its own
    sums = {"logsumexp": b.buffer("token_logsumexp", (source.rows,), role="temporary")} if apart else {}
    kernel = "vocabulary_loss" if phase == "backward" and not sums else "vocabulary_evaluate"
    bounds = list(block_bounds(r=row_blocks(low, source)))
    low.loop("softmax", kernel, {**operands, **sums, **answers}, bounds, head.name, phase, **shape)
    log_losses(low, head, phase, losses, correct, source.rows, targets if ignored else "")
    if sums:
        name = f"{head.name}.gradient"
        low.loop(name, "vocabulary_gradient", {**operands, **sums}, bounds, head.name, phase, **shape)
    if phase == "backward":
        del low.aliases[low.logits]  # the step leaves the gradient there
    return source


TOKENS = Ends(False, load, logits, loss)
