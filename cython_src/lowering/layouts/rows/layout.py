"""The layout "rows": the features of a token side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from ....kernels.convolution.algorithms import CONV_OPTIONS
from ....networks.layers import GELU, Add, Attention, Layer, Linear, Network, ReLU, Sigmoid
from ....plan.builder import block_bounds
from ... import elementwise
from ...ends import log_losses
from ...gradients import sent_back
from ...options import FUSIONS, PlanOptions
from ...state import Ends, Layout, Loops, Lowering, Maps
from ...units import Unit, activation_code
from . import attention, embedding, linear, norms
from .blocks import Ids, TokenMap, row_blocks, sample_blocks

VOCABULARY_MULTIPLE = 64  # logits of a row are padded to it: rows then begin at cache lines


def activation_backward(low: Lowering, unit: Unit, gradient: TokenMap) -> None:
    """Append the gradient of an activation that no linear layer includes, by the argument of a GELU or the result of
    another."""
    values = low.maps[unit.sources[0] if isinstance(unit.layer, GELU) else unit.target]
    with sent_back(low, unit, unit.sources[0]) as target:
        maps = {"gradient": gradient, "values": values, "output": target}
        code = activation_code(unit.layer)
        low.layout.elementwise(low, unit, "gradient", "activation_backward", maps, activation=code)


# --- both ends: samples, and the token after each of theirs or labels, come in, logits or a loss go out ---


def load_tokens(low: Lowering) -> str:
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


def answer_logits(low: Lowering, head: Layer) -> None:
    """Let the logits be the answer: probabilities of a vocabulary would only take more memory."""
    low.aliases["logits"] = low.maps[low.logits].natural()


def vocabulary_loss(low: Lowering, targets: str, head: Layer, phase: str) -> TokenMap:
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


TOKENS = Ends(False, load_tokens, answer_logits, vocabulary_loss)


class Rows(Layout):
    """Tensors are buffers (batch x sequence, features); see `TokenMap`."""

    name = "rows"
    fusions = frozenset(FUSIONS)  # those for maps with pixels have no meaning here
    conv_options = CONV_OPTIONS  # there are none here
    ends = TOKENS
    sample_blocks = staticmethod(sample_blocks)
    loops: ClassVar = {
        **embedding.LOOPS,
        **norms.LOOPS,
        **linear.LOOPS,
        **attention.LOOPS,
        **dict.fromkeys((ReLU, GELU, Sigmoid), Loops(elementwise.activation, activation_backward)),
    }

    def objections(self, spec: Network, options: PlanOptions) -> Iterator[str]:
        yield from super().objections(spec, options)
        if options.label_smoothing:
            yield f"label_smoothing must be 0 in layout 'rows', got {options.label_smoothing:g}; leave it out"
        layers = {layer.name: layer for layer in spec.layers}
        read = [name for names in spec.inputs().values() for name in names]
        for layer in spec.layers:
            for name in getattr(layer, "inputs", ()) if isinstance(layer, Attention) else ():
                if not isinstance(layers.get(name), Linear) or read.count(name) > 1:
                    yield (
                        f"inputs of attention must be linear layers that nothing else reads, got {name!r} for "
                        f"{layer.name!r}; add a linear layer"
                    )

    def can_join(self, parts: Sequence[Layer], consumers: Mapping[str, Sequence[Layer]]) -> bool:
        """Linear layers take a sum; or a ReLU or GELU that they alone feed and one linear layer reads, which sends the
        gradient past it."""
        match parts:
            case (Linear(), Add()):
                return True
            case (Linear() as layer, ReLU() | GELU() as activation):
                readers = consumers.get(activation.name, ())
                return activation in consumers[layer.name] and [type(reader) for reader in readers] == [Linear]
        return False

    def activation(self, low: Lowering, name: str, tensor: str) -> TokenMap:
        if tensor != low.logits:
            return self._map(low, name, tensor)
        if low.options.phase == "forward":
            name = f"{low.data.prefix}logits"
        return self._map(low, name, tensor, VOCABULARY_MULTIPLE)

    def gradient(self, low: Lowering, name: str, tensor: str, before_activation: Unit | None = None) -> TokenMap:
        return self._map(low, name, tensor)

    def _map(self, low: Lowering, name: str, tensor: str, multiple: int = 1) -> TokenMap:
        length, features = low.shapes[tensor]
        for unit in low.readers.get(tensor, ()):
            if isinstance(unit.layer, Attention) and unit.layer.inputs:
                # Queries, keys and values lie side by side, as the kernels of attention take them.
                side_by_side = f"{unit.layer.name}.qkv{name.removeprefix(tensor)}"
                offset = unit.sources.index(tensor) * features
                return TokenMap(side_by_side, low.batch, length, features, 3 * features, offset)
        return TokenMap(name, low.batch, length, features, -(-features // multiple) * multiple)

    def elementwise(
        self, low: Lowering, unit: Unit, what: str, operation: str, maps: Maps, **attributes: float
    ) -> None:
        target = maps["output"]
        attributes = {} if operation == "add" else attributes  # a sum has no activation of its own here
        bounds = block_bounds(r=row_blocks(low, target))
        low.append(unit, what, f"rows_{operation}", maps, bounds, features=target.features, **attributes)
