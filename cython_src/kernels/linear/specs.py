"""What kernels of linear layers of tokens get, by name; see `KernelSpec`."""

from ..interface.arguments import takes

KERNELS = {
    "linear_forward": takes(
        "input weight bias? residual? before? output further_weight?",
        "inputs outputs output_pitch activation output_offset? further_inputs? bf16x6?",
        bounds="r0 r1 c0 c1",
    ),
    "linear_backward_data": takes(
        "gradient weight before? output",
        "inputs outputs gradient_pitch accumulate gradient_offset? output_pitch? output_offset? relu? bf16x6?",
        bounds="r0 r1 c0 c1",
    ),
    "linear_backward_weights": takes(
        "gradient input weights bias?",
        "inputs outputs gradient_pitch accumulate gradient_offset? input_pitch? input_offset? bf16x6?",
        bounds="r0 r1 o0 o1 partial",
    ),
}
