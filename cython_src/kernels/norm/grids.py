"""How norms are launched on a GPU."""

from ...errors import UsageError
from ..interface.grids import NORM_CHANNELS, extents, launched, per_item, per_row, per_strip
from ..maps.grids import channel_end, per_four
from ..simd.instruction_sets import LANES


def statistics(symbol, a, b):
    if a["activation"]:
        raise UsageError("a convolution with statistics must have no activation on a GPU; lower the plan anew")
    return per_strip(lambda a, b: channel_end(b, 5, a["out_pitch"]) - b[:, 4], width=NORM_CHANNELS)(symbol, a, b)


# The second launch of a convolution that is followed by a norm: statistics of its result.
STATISTICS = {"statistics": ("nhwc_conv_statistics", statistics)}
_PER_PITCH = per_strip(lambda a, b: a["in_pitch"], width=NORM_CHANNELS)
_WEIGHT_GRADIENT = "layernorm_weight_gradient", per_strip(lambda a, b: a["features"])
launched("nhwc_norm_statistics", "nhwc_norm_backward_statistics", grid=_PER_PITCH)
launched("nhwc_norm_finish", "nhwc_norm_backward_finish", grid=per_strip(lambda a, b: extents(b, 0) + LANES))
launched("nhwc_norm_evaluate", grid=per_item(lambda a, b: extents(b, 0) + LANES), together=True)
launched("nhwc_norm_apply", "nhwc_norm_backward_apply", grid=per_four)
launched("layernorm_forward", grid=per_row)
launched("layernorm_backward", grid=per_row, after={"weight_partials": _WEIGHT_GRADIENT})
