"""How kernels of work without a network are launched on a GPU."""

from ..interface.grids import launched, per_block

launched("replica", grid=per_block(lambda a, b: 1, shared_bytes=0))
