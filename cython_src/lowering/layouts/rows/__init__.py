"""The layout "rows", for networks of tokens: a tensor is a matrix, a row for each token of each sample.

layout     what this layout supplies to the common lowering
maps       matrices, and tokens themselves
blocks     how loops are cut into blocks
ends       loading; loss and logits
linear     linear layers and the head with the weights of an embedding
attention, embedding, norms
           loops of the other kinds of layers, forward and backward
"""

from .layout import Rows

__all__ = ["Rows"]
