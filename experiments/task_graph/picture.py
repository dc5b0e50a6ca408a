"""Drawings of views of task graphs: a row for each loop, a box for each task, a bar for each barrier."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib import path as curves
from matplotlib.collections import PatchCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Patch, Rectangle

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.lowering.options import PlanOptions, describe
from ..report.figures.style import COLORS, FORMATS, in_style, save
from .view import DrawnRow, GraphView, view_of

PHASE_COLORS = {"load": "0.8", "forward": COLORS[0], "backward": COLORS[1], "update": COLORS[2], "other": "0.6"}
ROW_HEIGHT_IN, TASK_WIDTH_IN = 0.24, 0.22
LABEL_WIDTH_IN = 2.1
LEAST_WIDTH_IN, MOST_WIDTH_IN = 3.0, 10.0  # of a panel; more tasks in a row have narrower boxes
HALF = 0.3  # of the height of a box, in rows
NEAR = 1.6  # rows that a straight edge spans at most: a longer one bows past the rows between
LEGEND = (
    "box: a task; bar: a barrier; ellipse: folded tasks; point: all above before all below; dashed: to the next "
    "iteration"
)


def draw_plan(
    network: str,
    options: PlanOptions,
    path: str | os.PathLike,
    barriers: Sequence[str],
    layers: Sequence[str] = (),
    phases: Sequence[str] = (),
) -> dict[str, Any]:
    """Draw a plan's tasks into an SVG, PDF or PNG, by the ending of the path, a panel for each barrier; see `view_of`.
    Return the path, "graph", and a sentence on each panel, "views". Raises `UsageError`: another ending, a file that
    cannot be written, or what `view_of` refuses."""
    path = Path(path)
    if path.suffix[1:] not in FORMATS:
        raise UsageError(f"--graph must end in .{', .'.join(FORMATS)}, got {path.name!r}; name such a file")
    plan = lower(network, options, num_batches=1)
    title = ", ".join(filter(None, (plan.name, describe(options, ("batch", "phase")))))
    views = [view_of(plan, barrier, layers, phases, title) for barrier in barriers]
    return {"graph": str(save(draw(views), path)), "views": [view.describe() for view in views]}


def draw(views: Sequence[GraphView]) -> Figure:
    """Draw views of one plan side by side, its loops at the same height in all of them."""
    places = [list(_places(view)) for view in views]
    line_of = {place: y for y, place in enumerate(sorted({place for of_view in places for place in of_view}))}
    widest = max(len(row.nodes) for view in views for row in view.rows)
    panel = min(max(TASK_WIDTH_IN * (widest + 3), LEAST_WIDTH_IN), MOST_WIDTH_IN)
    labels = {
        line_of[place]: f"{row.phase}: {row.name}" if row.kind == "folded" else row.name
        for view, of_view in zip(views, places, strict=True)
        for row, place in zip(view.rows, of_view, strict=True)
    }
    with in_style():
        size = (LABEL_WIDTH_IN + panel * len(views), ROW_HEIGHT_IN * len(line_of) + 1.0)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, len(views), squeeze=False, sharey=True)[0]
        for axis, view, of_view in zip(axes, views, places, strict=True):
            _draw_panel(axis, view, [line_of[place] for place in of_view], panel / TASK_WIDTH_IN)
            axis.set_title(f"{view.title}, barrier {view.barrier}" if view is views[0] else f"barrier {view.barrier}")
            axis.set_ylim(len(line_of) - 0.3, -0.7)
            axis.set_yticks([*labels], [*labels.values()])
            axis.tick_params(length=0, labelleft=view is views[0])
        figure.supxlabel(LEGEND, fontsize=7)
    return figure


def _places(view: GraphView) -> Iterator[tuple[int, bool]]:
    """Number of the loop of each row, and whether it is the barrier behind it: views differ in their barriers only."""
    loop = -1
    for row in view.rows:
        loop += row.kind != "barrier"
        yield loop, row.kind == "barrier"


def _draw_panel(axis, view: GraphView, lines: Sequence[int], width: float) -> None:
    """Draw rows, joins and edges; lengths are in widths of a task and in rows."""
    axis.set_xlim(-width / 2, width / 2)
    axis.spines[:].set_visible(False)
    axis.set_xticks([])
    at: dict[int, tuple[float, float]] = {}
    wide: set[int] = set()  # folded tasks and barriers: edges meet them anywhere
    for row, y in zip(view.rows, lines, strict=True):
        step = min(1.0, (width - 3) / len(row.nodes))
        at |= {node: ((i - (len(row.nodes) - 1) / 2) * step, float(y)) for i, node in enumerate(row.nodes)}
        wide |= {*row.nodes} if row.kind != "loop" else set()
        axis.add_collection(_marks(row, [at[node] for node in row.nodes], 0.8 * step, width))
    for join in view.joins:  # over the first row that it leads to
        before = [at[a] for a, b in view.edges if b == join and a in at]
        last = max((y for _, y in before), default=-1.0)
        after = [at[b][1] for (a, b), crosses in view.edges.items() if a == join and b in at and not crosses]
        y = min((y for y in after if y > last), default=last + 1)
        at[join] = (sum(x for x, _ in before) / max(len(before), 1), y - 0.5)
    if view.joins:
        axis.plot(*zip(*(at[join] for join in view.joins), strict=True), "o", markersize=1.8, color="0.2")
    for crossing, look in (
        (False, {"linewidth": 0.4, "edgecolor": "0.3"}),
        (True, {"linewidth": 0.35, "edgecolor": COLORS[3], "linestyle": (0, (5, 4)), "alpha": 0.6}),
    ):
        result = []
        for (source, target), crosses in view.edges.items():
            if crosses != crossing:
                continue
            (x0, y0), (x1, y1) = at[source], at[target]
            x0, x1 = (x1, x1) if source in wide else (x0, x0) if target in wide else (x0, x1)
            y0, y1 = y0 + HALF * (source not in view.joins), y1 - HALF * (target not in view.joins)
            bow = 0.0 if abs(y1 - y0) <= NEAR else abs(y1 - y0) * (0.2 if crosses else 0.1 if x0 + x1 >= 0 else -0.1)
            result.append(curves.Path([(x0, y0), ((x0 + x1) / 2 + bow, (y0 + y1) / 2), (x1, y1)], [1, 3, 3]))
        axis.add_collection(PathCollection(result, facecolor="none", **look))


def _marks(row: DrawnRow, places: Sequence[tuple[float, float]], box: float, width: float) -> PatchCollection:
    patches: list[Patch]
    if row.kind == "barrier":
        patches = [Rectangle((-width / 2, places[0][1] - HALF / 2), width, HALF)]
    elif row.kind == "folded":
        patches = [Ellipse(places[0], width - 1, 2 * HALF)]
    else:
        patches = [Rectangle((x - box / 2, y - HALF), box, 2 * HALF) for x, y in places]
    face = {"barrier": "black", "folded": "white"}.get(row.kind, PHASE_COLORS[row.phase])
    line = "--" if row.kind == "folded" else "-"
    return PatchCollection(patches, facecolor=face, edgecolor="0.2", linewidth=0.5, linestyle=line, zorder=3)
