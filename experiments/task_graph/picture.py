"""Drawings of views of task graphs: a row for each loop, a box for each task, a bar for each barrier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, FancyArrowPatch, Rectangle

from ..report.figures.style import COLORS, style_parameters
from .view import GraphView, Row

PHASE_COLORS = {"load": "0.8", "forward": COLORS[0], "backward": COLORS[1], "update": COLORS[2], "other": "0.6"}
ROW_HEIGHT_IN = 0.24
TASK_WIDTH_IN = 0.22
LABEL_WIDTH_IN = 2.1
MARGIN_IN = 0.8
LEAST_WIDTH_IN = 3.0  # of a panel
MOST_WIDTH_IN = 10.0  # more tasks in a row have narrower boxes
HALF = 0.3  # of the height of a box, in rows
NEAR = 1.6  # rows that a straight edge spans at most: a longer one bows past the rows between

Point = tuple[float, float]


def draw(views: Sequence[GraphView]) -> Figure:
    """Draw views of one plan side by side, its loops at the same height in all of them."""
    heights = _heights(views)
    lines = 1 + max(y for of_view in heights for y in of_view)
    widest = max(len(row.nodes) for view in views for row in view.rows)
    panel = min(max(TASK_WIDTH_IN * widest + MARGIN_IN, LEAST_WIDTH_IN), MOST_WIDTH_IN)
    labels = {
        y: _label(row) for view, ys in zip(views, heights, strict=True) for row, y in zip(view.rows, ys, strict=True)
    }
    with matplotlib.rc_context(style_parameters()):
        figure = Figure(
            figsize=(LABEL_WIDTH_IN + panel * len(views), ROW_HEIGHT_IN * lines + 1.0), layout="constrained"
        )
        axes = figure.subplots(1, len(views), squeeze=False, sharey=True)[0]
        for axis, view, ys in zip(axes, views, heights, strict=True):
            _Panel(view, ys, panel / TASK_WIDTH_IN).draw(axis)
            axis.set_title(f"{view.title}, barrier {view.barrier}" if view is views[0] else f"barrier {view.barrier}")
            axis.set_ylim(lines - 0.3, -0.7)
            axis.set_yticks([*labels], [*labels.values()])
            axis.tick_params(length=0, labelleft=view is views[0])
        figure.supxlabel(
            "box: a task; bar: a barrier; ellipse: folded tasks; point: all above before all below; dashed: to the "
            "next iteration",
            fontsize=7,
        )
    return figure


def _label(row: Row) -> str:
    return f"{row.phase}: {row.name}" if row.kind == "folded" else row.name


def _heights(views: Sequence[GraphView]) -> list[list[int]]:
    """Line of each row of each view; views differ in their barriers only, which have lines of their own."""
    before = []  # of each view: whether a barrier stands before the row that is none, with that number
    for view in views:
        kinds = [row.kind for row in view.rows]
        places = [sum(kind != "barrier" for kind in kinds[:i]) for i, kind in enumerate(kinds) if kind == "barrier"]
        before.append(set(places))
    slots = set.union(*before)
    heights = []
    for view in views:
        of_view, passed = [], 0
        for row in view.rows:
            lines = passed + sum(slot < passed + (row.kind != "barrier") for slot in slots)
            of_view.append(lines)
            passed += row.kind != "barrier"
        heights.append(of_view)
    return heights


class _Panel:
    """Places of a view's nodes, in units of a task's width and a row's height, and the drawing of one panel.

    Parameters
    ----------
    view : GraphView
    heights : sequence of int
        Line of each row.
    width : float
        Of the panel.
    """

    def __init__(self, view: GraphView, heights: Sequence[int], width: float):
        self.view, self.width = view, width
        self.places: dict[int, Point] = {}
        self.halves: dict[int, float] = {}  # of the heights of boxes; joins are points
        self.wide: set[int] = set()  # folded tasks and barriers: edges meet them anywhere
        for row, y in zip(view.rows, heights, strict=True):
            step = self._step(row)
            for number, node in enumerate(row.nodes):
                self.places[node] = ((number - (len(row.nodes) - 1) / 2) * step, float(y))
                self.halves[node] = HALF / 2 if row.kind == "barrier" else HALF
            if row.kind != "loop":
                self.wide |= {*row.nodes}
        self._place_joins()

    def _step(self, row: Row) -> float:
        return min(1.0, (self.width - 3) / len(row.nodes))

    def _place_joins(self) -> None:
        """Put each join over the first row that it leads to."""
        before: dict[int, list[Point]] = {join: [] for join in self.view.joins}
        after: dict[int, list[float]] = {join: [] for join in self.view.joins}
        for (source, target), crosses in self.view.edges.items():
            if target in before and source in self.places:
                before[target].append(self.places[source])
            if source in after and target in self.places and not crosses:
                after[source].append(self.places[target][1])
        for join, points in before.items():
            last = max((y for _, y in points), default=-1.0)
            first = min((y for y in after[join] if y > last), default=last + 1)
            self.places[join] = (sum(x for x, _ in points) / max(len(points), 1), first - 0.5)

    def draw(self, axis) -> None:
        """Draw rows, joins and edges."""
        axis.set_xlim(-self.width / 2, self.width / 2)
        axis.spines[:].set_visible(False)
        axis.set_xticks([])
        straight = []
        for (source, target), crosses in self.view.edges.items():
            start, stop = self._ends(source, target)
            if not crosses and abs(stop[1] - start[1]) <= NEAR:
                straight.append((start, stop))
                continue
            side = 0.18 if crosses else 0.12 if start[0] + stop[0] >= 0 else -0.12
            look: Mapping[str, object] = (
                {"linewidth": 0.35, "color": COLORS[3], "linestyle": (0, (5, 4)), "alpha": 0.6}
                if crosses
                else {"linewidth": 0.35, "color": "0.45"}
            )
            curve = FancyArrowPatch(
                start, stop, connectionstyle=f"arc3,rad={side}", arrowstyle="-", shrinkA=0, shrinkB=0, **look
            )
            axis.add_patch(curve)
        axis.add_collection(LineCollection(straight, linewidths=0.5, colors="0.3"))
        for row in self.view.rows:
            axis.add_collection(self._marks(row))
        if self.view.joins:
            x, y = zip(*(self.places[join] for join in self.view.joins), strict=True)
            axis.plot(x, y, "o", markersize=1.8, color="0.2")

    def _ends(self, source: int, target: int) -> tuple[Point, Point]:
        """Where an edge begins and ends: at the lower and the upper side of boxes, anywhere along what is wide."""
        (x0, y0), (x1, y1) = self.places[source], self.places[target]
        if source in self.wide:
            x0 = x1
        elif target in self.wide:
            x1 = x0
        return ((x0, y0 + HALF * (source not in self.view.joins)), (x1, y1 - HALF * (target not in self.view.joins)))

    def _marks(self, row: Row) -> PatchCollection:
        """Marks of a row's nodes."""
        step = self._step(row)
        patches: list[Rectangle | Ellipse] = []
        for node in row.nodes:
            x, y = self.places[node]
            if row.kind == "barrier":
                patches.append(Rectangle((-self.width / 2, y - HALF / 2), self.width, HALF))
            elif row.kind == "folded":
                patches.append(Ellipse((x, y), self.width - 1, 2 * HALF))
            else:
                patches.append(Rectangle((x - 0.4 * step, y - HALF), 0.8 * step, 2 * HALF))
        face = {"barrier": "black", "folded": "white"}.get(row.kind, PHASE_COLORS[row.phase])
        line = "--" if row.kind == "folded" else "-"
        return PatchCollection(patches, facecolor=face, edgecolor="0.2", linewidth=0.5, linestyle=line, zorder=3)
