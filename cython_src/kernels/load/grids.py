"""How loading is launched on a GPU."""

from ..interface.grids import extents, launched, per_item
from ..maps.grids import sizes

_NCHW = per_item(lambda a, b: extents(b, 0) * sizes(a, "out", "channels", "rows", "pitch", "lanes"))
launched("load_images", grid=_NCHW)
launched("nhwc_load_images", grid=per_item(lambda a, b: extents(b, 0) * sizes(a, "out", "height", "width", "pitch")))
launched("tokens_load", grid=per_item(lambda a, b: extents(b, 0) * a["sequence"]))
