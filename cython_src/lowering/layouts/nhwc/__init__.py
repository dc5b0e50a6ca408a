"""The layout "nhwc", for networks that are graphs of layers.

Layers that have one consumer are joined with it where that saves bytes (`options.FUSIONS`). The gradient of a map that
several layers read is the sum of what they send back, added in the reverse order of the layers: it depends on the
network alone.

layout         what this layout supplies to the common lowering
maps           maps, halos and windows
convolutions, norms, pooling
               loops of each kind of layer, forward and backward
block_sizes    how loops are cut into blocks
"""

from .layout import Nhwc

__all__ = ["Nhwc"]
