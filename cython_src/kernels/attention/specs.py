"""What kernels of attention get, by name; see `KernelSpec`."""

from ..interface.arguments import takes

INTEGERS, BOUNDS = ("sequence", "heads", "features", "causal", "rows"), ("n0", "n1", "h0", "h1", "t0", "t1")
KERNELS = {
    "attention_forward": takes("qkv output logsumexp", INTEGERS, bounds=BOUNDS),
    "attention_backward": takes("qkv output gradient logsumexp dqkv parts?", INTEGERS, bounds=(*BOUNDS, "part")),
    "attention_add_parts": takes("parts dqkv", INTEGERS, bounds=(*BOUNDS, "part")),
}
