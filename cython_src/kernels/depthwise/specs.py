"""What kernels of depthwise convolutions get, by name; see `KernelSpec`."""

from ..interface.arguments import BOX, WINDOW, nhwc_attributes, takes

MAPS = nhwc_attributes("in") + nhwc_attributes("out") + WINDOW
KERNELS = {
    "nhwc_depthwise_forward": takes(
        "input weight bias? output statistics? input_scale? input_shift?",
        (*MAPS, "activation input_activation?"),
        bounds=(*BOX, "partial"),
        algorithms="depthwise",
    ),
    "nhwc_norm_depthwise": takes(
        "input weight bias? output statistics? input_scale input_shift",
        (*MAPS, "activation input_activation"),
        bounds=(*BOX, "partial"),
        algorithms="depthwise",
    ),
    "nhwc_depthwise_backward_data": takes(
        "gradient weight output", (*MAPS, "accumulate"), bounds=BOX, algorithms="depthwise"
    ),
    "nhwc_depthwise_backward_weights": takes(
        "gradient input output bias_output?",
        nhwc_attributes("gradient") + nhwc_attributes("in") + WINDOW + ("accumulate",),
        bounds=(*BOX, "partial"),
        algorithms="depthwise",
    ),
    "nhwc_depthwise_norm_backward": takes(
        "gradient result scale shift mean coefficients weight input input_scale? "
        "input_shift? input_mean? input_inv_std? output weight_partials statistics?",
        nhwc_attributes("out")
        + nhwc_attributes("in")
        + WINDOW
        + ("gradient_halo", "output_halo", "activation", "input_activation"),
        bounds="n0 n1 c0 c1 partial",
        algorithms="depthwise",
    ),
}
