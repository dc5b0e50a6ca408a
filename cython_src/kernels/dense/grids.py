"""How fully connected layers are launched on a GPU."""

from ..interface.grids import extents, launched, per_block, per_item
from ..maps.grids import per_channel, sizes

_OUTPUTS = per_block(lambda a, b: extents(b, 0) * a["outputs"])
_BIAS = "fc_bias", per_item(lambda a, b: extents(b, 0) * a["outputs"] * a["lanes"]), lambda a, given: True
_BIAS_GRADIENT = "fc_bias_gradient", per_item(lambda a, b: a["outputs"]), lambda a, given: True
_WEIGHTS = per_item(lambda a, b: a["outputs"] * (a["features"] + 1))
launched("fc_forward", grid=_OUTPUTS, beside_products=_BIAS, lanes_divide_threads=True)
launched("fc_backward_data", grid=per_item(lambda a, b: extents(b, 0) * a["features"] * a["lanes"]))
launched("fc_backward_weights", grid=_WEIGHTS, beside_products=_BIAS_GRADIENT)
launched("nhwc_flatten", grid=per_item(lambda a, b: extents(b, 0) * sizes(a, "in", "channels", "height", "width")))
launched("nhwc_flatten_backward", grid=per_channel)
