"""What kernels of layers that treat each element alone get, by name; see `KernelSpec`."""

from ..interface.arguments import BOX, NCHW_BOX, map_attributes, nhwc_attributes, takes

MAP = nhwc_attributes("in")
MAPS = map_attributes("in") + map_attributes("out")
BOUNDS = tuple(f"{end}{d}" for d in range(4) for end in ("start", "stop"))
KERNELS = {
    "nhwc_activation": takes("input output", (*MAP, "out_halo activation"), bounds=BOX),
    "nhwc_activation_backward": takes(
        "gradient activations output", (*MAP, "activations_halo out_halo activation accumulate"), bounds=BOX
    ),
    "nhwc_add": takes("first second output", (*MAP, "second_halo out_halo activation"), bounds=BOX),
    "nhwc_dropout": takes("input output", (*MAP, "out_halo seed layer"), "rate", "n0 n1 y0 y1"),
    "relu_forward": takes("input output", MAPS, bounds=NCHW_BOX),
    "relu_backward": takes("gradient activations output", MAPS + map_attributes("activations"), bounds=NCHW_BOX),
    "rows_activation": takes("input output", "features activation", bounds="r0 r1"),
    "rows_activation_backward": takes("gradient values output", "features activation", bounds="r0 r1"),
    "rows_add": takes("first second output", "features", bounds="r0 r1"),
    "reduction_fill": takes("out", "dtype n1 n2 n3 copies?", bounds=BOUNDS),
}
