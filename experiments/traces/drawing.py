"""Colours of states, and links between blocks, in all formats of traces."""

from __future__ import annotations

from typing import NamedTuple

from ..analysis.windows import LogWindow

MAX_LINKS = 100_000  # of a model
# Red, green and blue of each of STATES.
STATE_COLORS = (
    (0, 0, 255),
    (128, 128, 128),
    (0, 128, 128),
    (240, 160, 0),
    (242, 220, 140),
    (214, 39, 40),
    (140, 79, 191),
    (117, 195, 255),
    (0, 0, 0),
    (210, 210, 210),
    (0, 160, 80),
)


class Link(NamedTuple):
    """A dependence of a block on one that ran before it: task and worker of that one, worker of the block, and the end
    of the one and the start of the other, in ns from the window's start."""

    task: int
    sender: int
    receiver: int
    sent: int
    received: int


def links_of(window: LogWindow) -> tuple[list[Link], list[str]]:
    """Return the links of a window, and a sentence where some are left out."""
    arrows, complete = window.arrows(MAX_LINKS)
    workers, origin = window.worker, window.start_ns
    links = [
        Link(
            task,
            int(workers[k, task]),
            int(workers[later, successor]),
            int(window.stop[k, task]) - origin,
            int(window.start[later, successor]) - origin,
        )
        for k, task, later, successor in arrows.tolist()
    ]
    text = f"links of {window.log.model}: from each block's last predecessor only"
    return links, [] if complete else [text]
