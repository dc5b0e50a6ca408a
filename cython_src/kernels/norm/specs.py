"""What kernels of norms get, by name; see `KernelSpec`."""

from ..interface.arguments import BOX, nhwc_attributes, takes

MAP = nhwc_attributes("in")
KERNELS = {
    "nhwc_norm_statistics": takes("input partials", MAP, bounds="n0 n1 y0 y1 partial"),
    "nhwc_norm_finish": takes(
        "partials weight bias running_mean running_var scale shift mean inv_std",
        "channels num_partials count",
        "eps momentum",
        "c0 c1",
    ),
    "nhwc_norm_evaluate": takes("weight bias running_mean running_var scale shift", "channels", "eps", "c0 c1"),
    "nhwc_norm_apply": takes(
        "input scale shift residual? residual_scale? residual_shift? output",
        (*MAP, "residual_halo out_halo activation"),
        bounds=BOX,
    ),
    "nhwc_norm_backward_statistics": takes(
        "gradient activations? scale? shift? input mean inv_std partials",
        (*MAP, "gradient_halo activations_halo activation"),
        bounds="n0 n1 y0 y1 partial",
    ),
    "nhwc_norm_backward_finish": takes(
        "partials weight inv_std gradient_weight gradient_bias coefficients",
        "channels num_partials count",
        bounds="c0 c1",
    ),
    "nhwc_norm_backward_apply": takes(
        "gradient activations? scale? shift? input mean coefficients output branch? previous?",
        (*MAP, "gradient_halo activations_halo out_halo branch_halo activation accumulate_branch"),
        bounds=BOX,
    ),
    "layernorm_forward": takes("input residual? sum? weight bias output statistics?", "features", "eps", "r0 r1"),
    "layernorm_backward": takes(
        "gradient input weight statistics? residual? output weight_partials bias_partials",
        "features",
        bounds="r0 r1 partial",
    ),
}
