"""What kernels of the loss get, by name; see `KernelSpec`."""

from ..interface.arguments import takes

SHAPE = ("classes", "lanes", "batch")
INTEGERS, BOUNDS = ("vocabulary", "pitch", "rows", "ignored?"), ("r0", "r1")
KERNELS = {
    "softmax": takes("logits probabilities predictions", SHAPE, bounds="g0 g1"),
    "softmax_loss": takes("logits labels gradient losses correct", SHAPE, "label_smoothing", "g0 g1"),
    "loss_sum": takes("losses correct loss_log correct_log labels?", "groups batch length check_finite"),
    "vocabulary_loss": takes("logits targets losses correct", INTEGERS, bounds=BOUNDS),
    "vocabulary_evaluate": takes("logits targets logsumexp? losses correct", INTEGERS, bounds=BOUNDS),
    "vocabulary_gradient": takes("logits targets logsumexp", INTEGERS, bounds=BOUNDS),
}
