"""How optimizers are launched on a GPU."""

from ..interface.grids import THREADS, extents, launched, per_block, per_item

launched("optimizer_sgd", "optimizer_adam", grid=per_item(lambda a, b: extents(b, 0)), together=True)
launched("gradient_sum", grid=per_block(lambda a, b: 1), together=True)
launched("gradient_scale", grid=per_block(lambda a, b: 1, shared_bytes=8 * THREADS))
