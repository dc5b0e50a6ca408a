"""Pictures of task graphs as files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...cython_src.errors import UsageError
from ..report.figures.style import FORMATS, save
from ..sampling.files import write_atomically
from .dot import as_dot
from .picture import draw
from .view import GraphView


def write_picture(views: Sequence[GraphView], path: str | os.PathLike) -> Path:
    """Write views side by side: DOT, or a drawing in SVG, PDF or PNG, by the ending of the path.

    Raises
    ------
    UsageError
        Another ending, or a file that cannot be written.
    """
    path = Path(path)
    if path.suffix == ".dot":
        write_atomically(path, as_dot(views))
        return path
    if path.suffix[1:] not in FORMATS:
        raise UsageError(f"--file must end in .dot, .{', .'.join(FORMATS)}, got {path.name!r}; name such a file")
    return save(draw(views), path)
