"""What kernels of fully connected layers get, by name; see `KernelSpec`."""

from ..interface.arguments import BOX, map_attributes, nhwc_attributes, takes

SHAPE = ("features", "outputs", "lanes")
KERNELS = {
    "fc_forward": takes("input weight bias output", (*SHAPE, "activation"), bounds="g0 g1"),
    "fc_backward_data": takes(
        "gradient weight output activation? index?", SHAPE + map_attributes("out"), bounds="g0 g1"
    ),
    "fc_backward_weights": takes("gradient input output", (*SHAPE, "accumulate"), bounds="partial g0 g1"),
    "nhwc_flatten": takes("input output", nhwc_attributes("in"), bounds="n0 n1"),
    "nhwc_flatten_backward": takes("gradient output", (*nhwc_attributes("out"), "accumulate"), bounds=BOX),
}
