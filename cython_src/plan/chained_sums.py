"""Sums that a plan writes as a chain of loops, each of which adds to one buffer, written in another form.

    chain        write 0 -> update 1 -> update 2 -> ...                    one buffer, one block after the other
    commutative  zero -> {add 0, add 1, add 2, ...} in any order           one buffer, one block at a time
    tree         {write 0, write 1, ...} -> add pairs -> add pairs -> ...  a buffer for each link

The result of a tree is always the same; that of commutative sums depends on the order in its last bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from .model import COMMUTATIVE, READ, Access, Block, BlockLoop, Buffer, read, unused, update, write
from .reductions import bounds_of, loop_like

FORMS = ("chain", "commutative", "tree")


def rewrite_chains(
    buffers: Mapping[str, Buffer], loops: Sequence[BlockLoop], form: str
) -> tuple[dict[str, Buffer], list[BlockLoop]]:
    """Return buffers and loops, of a plan that is being built, in which every chain has another of `FORMS`. Loops of a
    chain follow each other, name it as `chain`, and have the attribute `accumulate`: whether they add to what is there.
    """
    buffers = dict(buffers)
    rewritten: list[BlockLoop] = []
    for name, group in itertools.groupby(loops, lambda loop: loop.chain):
        links = list(group)
        if name and len(links) > 1 and form != "chain":
            links = (_commutative if form == "commutative" else _tree)(buffers, name, links)
        rewritten += links
    first = 0
    for number, loop in enumerate(rewritten):
        rewritten[number] = replace(loop, first_task=first)
        first += loop.num_blocks
    return buffers, rewritten


def _outputs(loop: BlockLoop) -> dict[str, str]:
    """Return the operands of a loop that its blocks do not only read -> their buffers."""
    touched = {access.buffer for block in loop.blocks for access in block.accesses if access.kind != READ}
    return {operand: buffer for operand, buffer in loop.operands.items() if buffer in touched}


def _commutative(buffers: dict[str, Buffer], name: str, links: list[BlockLoop]) -> list[BlockLoop]:
    first = links[0]
    zero = [] if first.attributes["accumulate"] else [_fill(buffers[b], name, first) for b in _outputs(first).values()]
    blocks = [
        replace(
            block, accesses=tuple(a if a.kind == READ else Access(COMMUTATIVE, a.buffer, a.box) for a in block.accesses)
        )
        for link in links
        for block in link.blocks
    ]
    return [*zero, _merged(first, name, blocks, accumulate=1)]


def _tree(buffers: dict[str, Buffer], name: str, links: list[BlockLoop]) -> list[BlockLoop]:
    outputs, copies = _outputs(links[0]), {}

    def copy_of(buffer: str, number: int) -> str:
        if number and (buffer, number) not in copies:
            new = copies[buffer, number] = unused(f"{buffer}.link{number}", buffers)
            buffers[new] = replace(buffers[buffer], name=new, carried=False)
        return copies.get((buffer, number), buffer)

    kept = links[:1] if links[0].attributes["accumulate"] else []  # it adds to what is there already
    blocks = []
    for number, link in enumerate(links[len(kept) :], len(kept)):
        own = {operand: copy_of(buffer, number) for operand, buffer in outputs.items()}
        for block in link.blocks:
            accesses = (a if a.kind == READ else write(copy_of(a.buffer, number), *a.box) for a in block.accesses)
            blocks.append(replace(block, accesses=tuple(accesses), operands=own if number else None))
    loops = [*kept, *([_merged(links[0], name, blocks, accumulate=0)] if blocks else [])]
    distance = 1
    while distance < len(links):
        for buffer in outputs.values():
            pairs = [
                (copy_of(buffer, n), copy_of(buffer, n + distance))
                for n in range(0, len(links) - distance, 2 * distance)
            ]
            loops.append(_add(buffers[buffer], f"{name}.sum{distance}.{buffer}", pairs, links[0]))
        distance *= 2
    return loops


def _merged(like: BlockLoop, name: str, blocks: Sequence[Block], accumulate: int) -> BlockLoop:
    attributes = MappingProxyType({**like.attributes, "accumulate": accumulate})
    return replace(like, name=name, blocks=tuple(blocks), attributes=attributes)


def _fill(buffer: Buffer, name: str, like: BlockLoop) -> BlockLoop:
    """A loop that sets a buffer to zero."""
    block = Block(bounds_of(buffer.shape, ()), (write(buffer.name),), 0.0, float(buffer.size_bytes))
    return loop_like(like, f"{name}.zero.{buffer.name}", "reduction_fill", {"out": buffer.name}, [block], buffer)


def _add(buffer: Buffer, name: str, pairs: Sequence[tuple[str, str]], like: BlockLoop) -> BlockLoop:
    """A loop with a block for each pair, which adds its second buffer to its first one."""
    bounds, elements = bounds_of(buffer.shape, ()), buffer.size_bytes / 4
    blocks = [
        Block(bounds, (update(to), read(other)), elements, 3.0 * buffer.size_bytes, {"out": to, "copy0": other})
        for to, other in pairs
    ]
    operands = {"out": pairs[0][0], "copy0": pairs[0][1]}
    return loop_like(like, name, "reduction_combine", operands, blocks, buffer, copies=1)
