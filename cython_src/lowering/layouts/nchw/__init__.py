"""The layouts "nchw16" and "nchw", for chains of layers with 5 x 5 convolutions: the network of the study, LeNet-5.

The same code serves both: what is named "nchw" takes maps of either layout, what is named "nchw16" those of sixteen
images alone.

layout         what these layouts supply to the common lowering
algorithms     of convolutions, and which is cheapest
pixels, convolutions
               loops of each kind of layer, forward and backward
blocks         how loops are cut into blocks
"""

from .algorithms import choose_lanes
from .layout import NCHW16_LAYOUT, NCHW_LAYOUT

__all__ = ["NCHW16_LAYOUT", "NCHW_LAYOUT", "choose_lanes"]
