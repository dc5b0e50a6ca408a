"""How pooling is launched on a GPU."""

from ..interface.grids import extents, launched, per_item
from ..maps.grids import PER_LANE, per_channel

launched("nhwc_pool", "nhwc_pool_backward", "nhwc_global_pool_backward", grid=per_channel)
launched("nhwc_global_pool", grid=per_item(lambda a, b: extents(b, 0, 2)))
launched("pool_forward", grid=PER_LANE["out"])
launched("pool_backward", grid=PER_LANE["in"])
