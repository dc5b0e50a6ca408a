"""The layout "tokens": the features of a token side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ....errors import UsageError
from ....kernels.convolution.algorithms import CONV_OPTIONS
from ....networks.layers import GELU, Add, Attention, Embedding, Layer, LayerNorm, Linear, Network, TiedHead
from ...elementwise import add_backward
from ...options import FUSIONS, PlanOptions
from ...state import Layout, Loops, Lowering
from ...units import Unit
from .attention import attention, attention_backward
from .blocks import sample_blocks
from .embedding import embedding, embedding_backward
from .ends import TOKENS
from .linear import linear, linear_backward
from .maps import TokenMap
from .norms import addition, norm, norm_backward
from .rows import gelu, gelu_backward, rowwise

VOCABULARY_MULTIPLE = 64  # logits of a row are padded to it: rows then begin at cache lines


class Tokens(Layout):
    """Tensors are buffers (batch x sequence, features); see `TokenMap`."""

    name = "tokens"
    fusions = frozenset(FUSIONS)  # those for maps with pixels have no meaning here
    convolutions = CONV_OPTIONS  # there are none here
    ends = TOKENS
    loops: ClassVar = {
        Embedding: Loops(embedding, embedding_backward),
        LayerNorm: Loops(norm, norm_backward),
        Linear: Loops(linear, linear_backward),
        TiedHead: Loops(linear, linear_backward),
        Attention: Loops(attention, attention_backward),
        GELU: Loops(gelu, gelu_backward),
        Add: Loops(addition, add_backward),
    }

    def check(self, spec: Network, options: PlanOptions) -> None:
        """Raise `UsageError` for a network or an option that has no kernels."""
        super().check(spec, options)
        if options.label_smoothing:
            raise UsageError(
                f"label_smoothing must be 0 in layout 'tokens', got {options.label_smoothing:g}; leave it out"
            )

    def can_join(self, parts: Sequence[Layer], consumers: Mapping[str, Sequence[Layer]]) -> bool:
        """Linear layers take a sum; or a GELU that they alone feed and one linear layer reads, which sends the gradient
        past it."""
        match parts:
            case (Linear(), Add()):
                return True
            case (Linear() as layer, GELU() as activation):
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
