"""Bounds as thin grey lines with their intervals, for all figures that show time, speedup or efficiency."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from ...analysis.limits import BOUND_NAMES, bound_of
from ...subjects.models import ModelSpec
from .style import GREY

ALIKE = 0.005  # bounds that differ by less at every number of threads are one line with two names
_DASHES = {"area": (4, 2), "forkjoin": (1, 1.2), "taskgraph": (6, 1.5, 1, 1.5), "taskiter": (8, 1.5), "brent": (2, 3)}
_SHORT = {"area": "area", "forkjoin": "fork-join", "taskgraph": "span", "taskiter": "cycle mean", "brent": "Brent"}


class BoundLine(NamedTuple):
    """A bound over numbers of threads, or several that coincide.

    Attributes
    ----------
    names : tuple of str
        Of `analysis.limits.BOUNDS`.
    x : float64, shape (n,)
        Numbers of threads, or what stands on the axis in their place.
    value, low, high : float64, shape (n,)
        The interval is NaN where neither serial profiles nor the capacity were measured twice.
    """

    names: tuple[str, ...]
    x: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def label(self) -> str:
        """The entry of the legend."""
        if len(self.names) == 1:
            return BOUND_NAMES[self.names[0]]
        return textwrap.fill(f"bounds: {', '.join(_SHORT[name] for name in self.names)}", 26)


def bound_lines(
    limits: pd.DataFrame, models: Iterable[ModelSpec], kind: str = "speedup", x: str = "threads", merged: bool = True
) -> list[BoundLine]:
    """Return the bounds that hold for some of the models; if `merged`, those that coincide are one line.

    Parameters
    ----------
    limits : DataFrame
        Rows like those of `bound_table`, one for each value of `x`; may be empty.
    kind : str
        "speedup" or "s", as the columns end.
    x : str
        Column of the horizontal axis.
    """
    if not len(limits):
        return []
    held = {bound_of(model) for model in models if not (model.is_gpu or model.is_peer)}
    wanted = [n for n in _DASHES if n in {"area", *held} or (n == "brent" and "taskgraph" in held)]
    limits = limits.sort_values(x)
    lines: list[BoundLine] = []
    for name in wanted:
        if f"{name}_{kind}" not in limits:
            continue  # of a phase alone
        columns = (limits[f"{name}_{kind}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
        line = BoundLine((name,), limits[x].to_numpy(dtype=float), *columns)
        if not np.isfinite(line.value).all():
            continue  # without a serial profile
        same = [i for i, other in enumerate(lines) if np.allclose(line.value, other.value, rtol=ALIKE, atol=0)]
        if same and merged:
            lines[same[0]] = lines[same[0]]._replace(names=(*lines[same[0]].names, name))
        else:
            lines.append(line)
    return lines


def draw_bound(
    axis, line: BoundLine, divide: np.ndarray | float = 1.0, beside: Mapping[str, float] | None = None, color=GREY
) -> None:
    """Draw a bound with its interval; with `beside`, steps as wide as the groups of points moved along x."""
    value, low, high = (column / divide for column in line[2:])
    dashes = _DASHES[line.names[0]]
    look = {"color": color, "linewidth": 0.8, "zorder": 1}
    band = {"color": color, "alpha": 0.18, "linewidth": 0, "zorder": 0}
    if beside is None or max(beside.values(), default=1.0) == 1.0:
        axis.plot(line.x, value, dashes=dashes, **look)
        if np.isfinite(low).all():
            axis.fill_between(line.x, low, high, **band)
        return
    # Between groups, a line would cross the points that were moved along x.
    width = 1.25 * max(beside.values(), default=1.0)
    axis.hlines(value, line.x / width, line.x * width, linestyle=(0, dashes), **look)
    for x, bottom, top in zip(line.x, low, high, strict=True):
        if np.isfinite(bottom):
            axis.fill_between([x / width, x * width], bottom, top, **band)


def bound_handles(lines: Sequence[BoundLine]) -> list[Line2D]:
    """Return the entries of a legend."""
    return [
        Line2D([], [], color=GREY, linewidth=0.8, dashes=_DASHES[line.names[0]], label=line.label) for line in lines
    ]
