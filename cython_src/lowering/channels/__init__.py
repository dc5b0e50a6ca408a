"""Lowering of networks that are graphs of layers, in the layout "channels": the channels of a pixel side by side.

A feature map is a buffer (batch, height + 2 halo, width + 2 halo, pitch); see `ChannelsMap`. Layers that have one
consumer are joined with it where that saves bytes (`options.FUSIONS`); each such unit knows its loops forward and
backward. The gradient of a map that several layers read is the sum of what they send back, added in the reverse order
of the layers: it depends on the network alone.

units          which layers are joined
state          maps, buffers, names and blocks that all parts share
convolutions, norms, elementwise, pooling, dense
               loops of each kind of layer, forward and backward
gradients      where gradients of maps are kept and how they are handed on
ends           images come in; probabilities or a loss go out
updates        sums of partial gradients, clipping, optimisers
step           the order of all this in a step
"""

from .state import ChannelOptions
from .step import lower_channels

__all__ = ["ChannelOptions", "lower_channels"]
