"""What kernels of embeddings, and of what takes the tokens of a sample together get, by name; see `KernelSpec`."""

from ..interface.arguments import takes

KERNELS = {
    "first_token_forward": takes("input output", "sequence features", bounds="n0 n1"),
    "first_token_backward": takes("gradient output", "sequence features", bounds="n0 n1"),
    "positions_forward": takes("input position_weight type_weight? output", "sequence features", bounds="r0 r1"),
    "type_gradient": takes("position_gradient output", "sequence features types", bounds="c0 c1"),
    "trigram_forward": takes("input output", "sequence features", bounds="r0 r1"),
    "trigram_backward": takes("gradient output", "sequence features", bounds="r0 r1"),
    "embedding_forward": takes(
        "tokens token_weight position_weight? output", "sequence features vocabulary", bounds="r0 r1"
    ),
    "embedding_token_gradient": takes("tokens gradient output", "rows features vocabulary accumulate", bounds="c0 c1"),
    "embedding_position_gradient": takes("gradient output", "sequence batch features", bounds="t0 t1"),
}
