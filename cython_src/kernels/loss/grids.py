"""How losses are launched on a GPU."""

from ..interface.grids import THREADS, extents, launched, per_block, per_item, per_row

# Of the groups of images, each of which has a thread for each lane.
_GROUPS = per_block(lambda a, b: -(-extents(b, 0) // (THREADS // a["lanes"])), shared_bytes=8 * THREADS)
launched("softmax", grid=per_item(lambda a, b: extents(b, 0) * a["lanes"]))
launched("softmax_loss", grid=_GROUPS, lanes_divide_threads=True)
launched("loss_sum", grid=per_block(lambda a, b: 1))
launched("vocabulary_loss", "vocabulary_evaluate", "vocabulary_gradient", grid=per_row)
