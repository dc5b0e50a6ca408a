"""What kernels of the optimizers get, by name; see `KernelSpec`."""

from ..interface.arguments import ELEMENTS, takes

KERNELS = {
    "optimizer_sgd": takes(
        "partials? gradient parameter velocity? learning_rates scale? bias? bias_gradient? bias_velocity?",
        (*ELEMENTS, "num_rates"),
        "momentum weight_decay",
        "e0 e1",
    ),
    "optimizer_adam": takes(
        "partials? gradient parameter first_moment second_moment learning_rates scale?",
        (*ELEMENTS, "num_rates decoupled"),
        "beta1 beta2 eps weight_decay",
        "e0 e1",
    ),
    "gradient_sum": takes("partials? gradient squares", ELEMENTS, bounds="e0 e1 partial"),
    "gradient_scale": takes("squares scale norm_log?", "num_squares length", "max_norm", ()),
}
