"""What kernels of convolutions get, by name; see `KernelSpec`."""

from ..interface.arguments import BOX, GEOMETRY, NCHW_BOX, map_attributes, nhwc_attributes, takes

# Algorithms by the integer attribute "algorithm".
# direct      sums in registers, straight from the map
# winograd2   Winograd's F(2x2, 3x3): 2.25 times fewer products
# winograd4   Winograd's F(4x4, 3x3): 4 times fewer
ALGORITHMS = ("direct", "winograd2", "winograd4")
# Algorithms of the layout "nchw16" that the direct one is compared with: kernels/convolution/nchw_convolution.pyx.
COMPARED = ("if", "if_blocked", "pad", "pad_blocked")
NCHW16_FORMS = ("direct", *COMPARED)
FORMS_OF_A_PORT = ("if", "pad")  # those that have a CUDA form, of the kernel conv_forward alone
NCHW_MAPS = map_attributes("in") + map_attributes("out")
FORMS = (*NCHW_MAPS, "algorithm?")
NHWC_MAPS = nhwc_attributes("in") + nhwc_attributes("out")
FORWARD = NHWC_MAPS + GEOMETRY + ("activation",)
BACKWARD = NHWC_MAPS + GEOMETRY + ("accumulate",)
WEIGHTS = nhwc_attributes("dy") + nhwc_attributes("in") + GEOMETRY + ("accumulate",)
KERNELS = {
    "conv_forward": takes("input weight bias output index?", FORMS, bounds=NCHW_BOX, algorithms=NCHW16_FORMS),
    "conv_relu_pool": takes("input weight bias output index", FORMS, bounds=NCHW_BOX, algorithms=NCHW16_FORMS),
    "conv_backward_data": takes("gradient weight bias? output index?", FORMS, bounds=NCHW_BOX, algorithms=NCHW16_FORMS),
    "conv_backward_data_unpool": takes(
        "gradient weight bias? output index", FORMS, bounds=NCHW_BOX, algorithms=NCHW16_FORMS
    ),
    "conv_backward_weights": takes(
        "gradient input output",
        map_attributes("dy") + map_attributes("in") + ("accumulate", "algorithm?"),
        bounds="partial g0 g1 c0 c1",
        algorithms=NCHW16_FORMS,
    ),
    "winograd_weights": takes("weight transformed", "outputs inputs flip", bounds="c0 c1"),
    "winograd_forward": takes(
        "input transformed bias output index?", NCHW_MAPS, bounds=NCHW_BOX, algorithms="winograd"
    ),
    "winograd_relu_pool": takes(
        "input transformed bias output index", NCHW_MAPS, bounds=NCHW_BOX, algorithms="winograd"
    ),
    "winograd_backward_data": takes(
        "gradient transformed bias? output index?", NCHW_MAPS, bounds=NCHW_BOX, algorithms="winograd"
    ),
    "winograd_backward_data_unpool": takes(
        "gradient transformed bias? output index", NCHW_MAPS, bounds=NCHW_BOX, algorithms="winograd"
    ),
    "winograd_backward_weights": takes(
        "gradient input output",
        map_attributes("dy") + map_attributes("in") + ("accumulate",),
        bounds="partial g0 g1 c0 c1 y0 y1",
        algorithms="winograd",
    ),
    "nhwc_conv_forward": takes(
        "input packed bias? output statistics? residual?", FORWARD, bounds=(*BOX, "partial"), algorithms=ALGORITHMS
    ),
    "nhwc_conv_backward_data": takes("gradient packed output", BACKWARD, bounds=BOX, algorithms=ALGORITHMS),
    "nhwc_conv_pack": takes(
        "weight packed", "out_channels in_channels kernel groups direction algorithm", bounds="o0 o1"
    ),
    "nhwc_conv_backward_weights": takes(
        "gradient input output bias_output?", WEIGHTS, bounds="n0 n1 o0 o1 i0 i1 partial", algorithms=ALGORITHMS
    ),
}
