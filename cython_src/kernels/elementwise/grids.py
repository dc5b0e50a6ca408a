"""How layers that treat each element alone are launched on a GPU."""

import math

from ..interface.grids import extents, launched, per_item
from ..maps.grids import PER_LANE, per_four, sizes

# A thread for four elements, 16 apart in a row.
_PER_COUNTER = per_item(lambda a, b: extents(b, 0, 2) * math.ceil(sizes(a, "in", "width", "pitch") / 64) * 16)
PER_FEATURE = per_item(lambda a, b: extents(b, 0) * a["features"])
launched("nhwc_activation", "nhwc_activation_backward", "nhwc_add", grid=per_four)
launched("nhwc_dropout", grid=_PER_COUNTER)
launched("relu_forward", "relu_backward", grid=PER_LANE["in"])
launched("rows_activation", "rows_activation_backward", "rows_add", grid=PER_FEATURE)
