"""What kernels of pooling get, by name; see `KernelSpec`."""

from ..interface.arguments import BOX, NCHW_BOX, WINDOW, map_attributes, nhwc_attributes, takes

NHWC_MAPS = nhwc_attributes("in") + nhwc_attributes("out")
NCHW_MAPS = map_attributes("in") + map_attributes("out")
KERNELS = {
    "nhwc_pool": takes("input output index?", NHWC_MAPS + WINDOW, bounds=BOX),
    "nhwc_pool_backward": takes("gradient index? output", NHWC_MAPS + WINDOW + ("accumulate",), bounds=BOX),
    "nhwc_global_pool": takes("input output", nhwc_attributes("in"), bounds="n0 n1 c0 c1"),
    "nhwc_global_pool_backward": takes("gradient output", (*nhwc_attributes("out"), "accumulate"), bounds=BOX),
    "pool_forward": takes("input output index", NCHW_MAPS, bounds=NCHW_BOX),
    "pool_backward": takes("gradient index output", NCHW_MAPS, bounds=NCHW_BOX),
}
