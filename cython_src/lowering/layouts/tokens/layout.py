"""The layout "tokens": the features of a token side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from ....kernels.convolution.algorithms import CONV_OPTIONS
from ....networks.layers import (
    GELU,
    Add,
    Attention,
    Embedding,
    FirstToken,
    Layer,
    LayerNorm,
    Linear,
    Network,
    NoNorm,
    Positions,
    ReLU,
    TiedHead,
    Trigram,
)
from ...elementwise import add_backward
from ...options import FUSIONS, PlanOptions
from ...state import Layout, Loops, Lowering
from ...units import Unit
from .attention import attention, attention_backward
from .blocks import sample_blocks
from .embedding import (
    embedding,
    embedding_backward,
    first_token,
    first_token_backward,
    positions,
    positions_backward,
    trigram,
    trigram_backward,
)
from .ends import TOKENS
from .linear import linear, linear_backward
from .maps import TokenMap
from .norms import addition, norm, norm_backward
from .rows import gelu, gelu_backward, relu, relu_backward, rowwise

VOCABULARY_MULTIPLE = 64  # logits of a row are padded to it: rows then begin at cache lines


class Tokens(Layout):
    """Tensors are buffers (batch x sequence, features); see `TokenMap`."""

    name = "tokens"
    fusions = frozenset(FUSIONS)  # those for maps with pixels have no meaning here
    convolutions = CONV_OPTIONS  # there are none here
    ends = TOKENS
    readers_mask = True
    loops: ClassVar = {
        Embedding: Loops(embedding, embedding_backward),
        Positions: Loops(positions, positions_backward),
        Trigram: Loops(trigram, trigram_backward),
        FirstToken: Loops(first_token, first_token_backward),
        LayerNorm: Loops(norm, norm_backward),
        NoNorm: Loops(norm, norm_backward),
        Linear: Loops(linear, linear_backward),
        TiedHead: Loops(linear, linear_backward),
        Attention: Loops(attention, attention_backward),
        ReLU: Loops(relu, relu_backward),
        GELU: Loops(gelu, gelu_backward),
        Add: Loops(addition, add_backward),
    }

    def objections(self, spec: Network, options: PlanOptions) -> Iterator[str]:
        """Yield why there are no kernels for a network or an option."""
        yield from super().objections(spec, options)
        if options.label_smoothing:
            yield f"label_smoothing must be 0 in layout 'tokens', got {options.label_smoothing:g}; leave it out"
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

    def sample_blocks(self, low: Lowering) -> list[tuple[int, int]]:
        return sample_blocks(low)

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
        self,
        low: Lowering,
        name: str,
        operation: str,
        unit: Unit,
        phase: str,
        maps: Mapping[str, TokenMap],
        accumulate: bool | None = None,
        **attributes: float,
    ) -> None:
        if operation != "add" or any(attributes.values()):
            raise AssertionError(f"layout 'tokens' has no loop for {operation!r} with {attributes}")
        rowwise(low, name, "tokens_add", unit, phase, maps)
