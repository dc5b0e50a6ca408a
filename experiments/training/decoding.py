"""The next token alone, from the keys and values that a forward pass has left.

Every loop of a causal network of tokens treats each row alone but for attention, which reads the rows of queries, keys
and values before its own; and a row has the same bits however rows are cut into blocks. So the buffers of a forward
pass are the cache: a plan of one token, whose blocks move on by a row from run to run, works in them.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from ...cython_src.binding.bind import BoundPlan
from ...cython_src.kernels import kernel_table
from ...cython_src.lowering.lower import lower
from ...cython_src.networks.layers import Attention, Network
from ...cython_src.plan.model import Plan
from ..sampling.models import make_executor, parse_model

MOVING = ("r0", "r1", "t0", "t1")  # bounds of blocks that count tokens


def can_decode(network: Network, model: str) -> bool:
    """Whether a token depends on none after it, and the model runs on the CPU, where blocks can be moved."""
    causal = all(layer.causal for layer in network.layers if isinstance(layer, Attention))
    return causal and parse_model(model).model.device == "cpu"


def plan_of_one_token(network: Network, whole: Plan) -> Plan:
    """Return the plan of the first token of a forward pass over one sample, in that pass's buffers."""
    one = lower(network, batch=1, sequence=1, phase="forward")
    if [loop.name for loop in one.loops] != [loop.name for loop in whole.loops] or [*one.buffers] != [*whole.buffers]:
        raise AssertionError(f"plans of {network.name!r} for one token and for many differ in their loops or buffers")
    # Accesses are those of the first row; they move with the blocks.
    loops = [replace(loop, attributes=of_many.attributes) for loop, of_many in zip(one.loops, whole.loops, strict=True)]
    return replace(one, name=f"{whole.name} next token", buffers=whole.buffers, loops=tuple(loops))


class NextToken:
    """Computes one row of a forward pass.

    Parameters
    ----------
    network : Network
    bound : BoundPlan
        Of the whole forward pass, whose buffers are used.
    model : str
    threads : int
    stack : ExitStack
        Closes the executor.
    """

    def __init__(self, network: Network, bound: BoundPlan, model: str, threads: int, stack: ExitStack):
        self.plan = plan_of_one_token(network, bound.plan)
        self._bound = bound.again(self.plan)
        self._executor = stack.enter_context(make_executor(model, threads))
        self._executor.prepare(self._bound)
        self._moving = []
        for number, loop in enumerate(self.plan.loops):
            columns = [i for i, name in enumerate(kernel_table.get(loop.kernel).bounds) if name in MOVING]
            if columns:
                self._moving.append((number, loop.bounds, columns))

    def run(self, row: int) -> None:
        """Compute a row, in whose place the token stands; the rows before it were computed with the same tokens."""
        for number, first, columns in self._moving:
            bounds = first.copy()
            bounds[:, columns] += row
            self._bound.set_bounds(number, bounds)
        self._executor.run(1)
