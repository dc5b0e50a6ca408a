"""The layouts "lanes" and "flat", for chains of layers with 5 x 5 convolutions: the network of the study, LeNet-5.

layout         what these layouts supply to the common lowering
maps           maps and their geometry
algorithms     of convolutions, and which is cheapest
pixels, convolutions
               loops of each kind of layer, forward and backward
blocks         how loops are cut into blocks
"""

from .algorithms import choose_lanes
from .layout import FLAT_LAYOUT, LANES_LAYOUT

__all__ = ["FLAT_LAYOUT", "LANES_LAYOUT", "choose_lanes"]
