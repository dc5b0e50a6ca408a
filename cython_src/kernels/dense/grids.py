"""How fully connected layers are launched on a GPU."""

from ..interface.grids import extents, launched, per_block, per_item, per_strip
from ..maps.grids import per_channel, sizes

WEIGHTS_AT_ONCE = 32  # numbers of dW, and of db, that a CUDA block computes
SIZES = ("WEIGHTS_AT_ONCE",)

_OUTPUTS = per_block(lambda a, b: extents(b, 0) * a["outputs"])
_BIAS = "fc_bias", per_item(lambda a, b: extents(b, 0) * a["outputs"] * a["lanes"]), lambda a, given: True
_BIAS_GRADIENT = "fc_bias_gradient", per_item(lambda a, b: a["outputs"]), lambda a, given: True
_WEIGHTS = per_strip(lambda a, b: a["outputs"] * (a["features"] + 1), width=WEIGHTS_AT_ONCE)
launched("fc_forward", grid=_OUTPUTS, beside_products=_BIAS, lanes_divide_threads=True)
launched("fc_backward_data", grid=per_item(lambda a, b: extents(b, 0) * a["features"] * a["lanes"]))
launched("fc_backward_weights", grid=_WEIGHTS, beside_products=_BIAS_GRADIENT, lanes_divide_threads=True)
launched("nhwc_flatten", grid=per_item(lambda a, b: extents(b, 0) * sizes(a, "in", "channels", "height", "width")))
launched("nhwc_flatten_backward", grid=per_channel)
