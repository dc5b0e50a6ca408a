"""How embeddings, and what takes the tokens of a sample together, are launched on a GPU."""

from ..elementwise.grids import PER_FEATURE
from ..interface.grids import THREADS, extents, launched, per_block, per_item, per_strip

ROWS_OF_THREAD = 16  # among which a thread looks for tokens at once
SIZES = ("ROWS_OF_THREAD",)
# CUDA blocks among which the tokens of a table are divided; their shared memory: counts, and two lists of rows.
TOKEN_BLOCKS, TOKEN_BYTES = 1024, 4 * THREADS + 2 * 2 * ROWS_OF_THREAD * THREADS

launched("embedding_forward", "embedding_position_gradient", "positions_forward", grid=PER_FEATURE)
launched("trigram_backward", "first_token_forward", grid=PER_FEATURE)
launched("trigram_forward", grid=per_item(lambda a, b: extents(b, 0) * 3 * a["features"]))
launched("first_token_backward", grid=per_item(lambda a, b: extents(b, 0) * a["sequence"] * a["features"]))
launched("type_gradient", grid=per_strip(lambda a, b: extents(b, 0)))
launched("embedding_token_gradient", grid=per_block(lambda a, b: min(TOKEN_BLOCKS, a["vocabulary"]), TOKEN_BYTES))
