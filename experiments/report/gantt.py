"""Gantt pictures of event logs: blocks by layer, idle time by its cause, iterations."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...cython_src.errors import UsageError, check_choice
from ...cython_src.networks.own import short_name
from ..analysis.losses import LOSSES, classes_of, had_cpus
from ..analysis.names import NETWORK, axis_label, model_label, problem_text, swept_fields, value_text
from ..analysis.sweep import Sweep
from ..analysis.windows import LogWindow, typical
from ..events.event_states import IN_BLOCK, LOCK, RUNNING
from ..events.events import read_events
from ..tables.numbers import format_time, plural
from .figures import style

MAX_DRAWN = 60_000  # boxes of a picture; shorter ones are left out first, and the caption says so
MAX_VECTOR = 4_000  # boxes of a picture that a PDF or SVG holds as shapes; more become images inside it
LONGEST = 4.0  # medians of all windows; a longer one goes on beyond the axis, on which the others could not be read
MOST_BESIDE = 4  # windows of several plans in a picture
BESIDE_IN = {"double": 1.2, "single": 1.35}  # inches of the legend, the axis and the title
LABEL_IN = {"double": 0.1, "single": 0.07}  # height of a thread's number
NUMBER_IN = 0.63, 0.09  # width and height of an iteration's number, in inches
PHASE_COLORS, OTHER_COLOR = {"forward": style.COLORS[9], "backward": style.COLORS[0]}, (0.35, 0.35, 0.35)
LANE, IDLE = 0.86, 0.5  # heights of a block and of idle time, of the distance between two threads

# What a thread does between blocks, in the order of the legend: name, colour. Waits for locks are no loss of their own.
IDLE_KINDS = {
    **{name: (loss.meaning, loss.color) for name, loss in LOSSES.items() if name not in ("useful", "inflation")},
    "lock": ("lock", "#8c4fbf"),
}


def idle_kinds(events: np.ndarray) -> np.ndarray:
    """Return the key of `IDLE_KINDS` for each event, "" for running ones."""
    state = events["state"]
    kinds = {"": RUNNING, "lock": LOCK}
    return np.select([state == each for each in kinds.values()], list(kinds), np.array([*LOSSES])[classes_of(events)])


def axis_length_ns(windows: Sequence[LogWindow]) -> int:
    """Return the length of the axis that windows share: of the longest one but those above `LONGEST` medians."""
    lengths = sorted(window.length_ns for window in windows)
    return max(length for length in lengths if length <= LONGEST * lengths[(len(lengths) - 1) // 2])


def _lane_in(window: LogWindow, column: str) -> float:
    """Return the height of a thread, in inches."""
    most, tallest = (0.24, 6.0) if column == "double" else (0.12, 1.2)
    return min(most, tallest / window.log.threads)


def draw_gantt(
    windows: Sequence[LogWindow], column: str = "double", title: str = "", names: Sequence[str] = ()
) -> Figure:
    """Draw windows one below the other on one time axis. Those with `names` of their own in place of their models' are
    drawn plain: nothing where threads wait, and no iterations. Raises `UsageError`: another column."""
    check_choice("the column", column, style.COLUMN_WIDTH_IN)
    plain = bool(names)
    names = names or _names(windows)
    beside = 0.62 if column == "double" else 0.42
    heights = [_lane_in(window, column) * window.log.threads + beside for window in windows]
    with style.in_style():
        tall = sum(heights) + BESIDE_IN[column]
        figure = style.blank_figure(column, min(tall, style.TALLEST_IN) if column == "single" else tall)
        axes = figure.subplots(len(windows), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        kinds, length_ns = set(), axis_length_ns(windows)
        unit = ("µs", 1e3) if length_ns < 2e6 else ("ms", 1e6)
        as_image = sum(len(window.events) for window in windows) > MAX_VECTOR
        axes[-1].set_xlim(0, length_ns / unit[1])
        for axis, window, name in zip(axes, windows, names, strict=True):
            _draw_lanes(axis, window, plain, kinds, unit, as_image)
            if plain:
                axis.set_ylim(window.log.threads - 0.5, -0.5)
            else:
                _draw_iterations(axis, window, unit, column)
            _label(axis, window, name, window.length_ns > length_ns, column)
        axes[-1].set_xlabel(f"time since the first iteration shown ({unit[0]})")
        handles = [Patch(color=color, label=phase) for phase, color in PHASE_COLORS.items()]
        handles.append(Patch(color=OTHER_COLOR, label="load, update"))
        handles += [Patch(color=color, label=label) for kind, (label, color) in IDLE_KINDS.items() if kind in kinds]
        style.add_legend(figure, column, handles, 4)
        if title:
            style.write_lines(figure, [title], column)
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine(None)
    return figure


def _draw_lanes(axis, window: LogWindow, plain: bool, kinds: set[str], unit, as_image: bool) -> None:
    """Draw the boxes of all threads but those that are too short to be drawn; `plain`: those of blocks alone."""
    events, log = window.events, window.log
    if plain:
        events = events[events["state"] == RUNNING]
    if len(events) > MAX_DRAWN:
        length = events["stop_ns"] - events["start_ns"]
        events = events[length >= np.sort(length)[-MAX_DRAWN]]
    idle = idle_kinds(events)
    kinds.update(idle[idle != ""].tolist())
    loop_color = [PHASE_COLORS.get(phase, OTHER_COLOR) for phase in log.loops["phase"]]
    faces = np.zeros((len(events), 3))
    runs = idle == ""
    loops = log.task_loop[np.maximum(events["task"], 0)]
    faces[runs] = np.array(loop_color)[loops[runs]]
    for kind, (_, color) in IDLE_KINDS.items():
        faces[idle == kind] = matplotlib.colors.to_rgb(color)
    half = np.where(runs | (events["cause"] == IN_BLOCK), LANE, IDLE) / 2
    x0, x1 = (events["start_ns"] - window.start_ns) / unit[1], (events["stop_ns"] - window.start_ns) / unit[1]
    y = events["worker"].astype(float)
    corners = np.stack([np.stack(c, -1) for c in ((x0, y - half), (x1, y - half), (x1, y + half), (x0, y + half))], 1)
    boxes = PolyCollection(corners, facecolors=faces, edgecolors="none", linewidths=0, zorder=2)
    boxes.set_rasterized(as_image)
    axis.add_collection(boxes)


def _draw_iterations(axis, window: LogWindow, unit, column: str) -> None:
    """Outline each iteration: a bracket above the threads, from its first block to the end of its last, with its number
    where there is room for it."""
    rows: list[int] = []  # end of the last bracket in each row
    least = NUMBER_IN[0] / style.COLUMN_WIDTH_IN[column]
    high = max(0.42, NUMBER_IN[1] / _lane_in(window, column))
    end = axis.get_xlim()[1]
    for iteration, start, stop in window.spans():
        row = next((r for r, end in enumerate(rows) if end <= start), len(rows))
        rows[row : row + 1] = [stop]
        y = -0.72 - high * row
        x0, x1 = ((t - window.start_ns) / unit[1] for t in (start, stop))
        if x0 >= end:
            break
        # An iteration that goes on beyond the axis has an open bracket.
        corners = [(x0, y + 0.22), (x0, y), (min(x1, end), y), *([(x1, y + 0.22)] if x1 <= end else [])]
        axis.plot(*zip(*corners, strict=True), color="0.25", linewidth=0.7, clip_on=False, zorder=5)
        for x in (x0, x1):
            axis.plot([x, x], [y, window.log.threads - 0.5], color="0.25", linewidth=0.4, linestyle=":", zorder=3)
        if min(x1, end) - x0 > least * end:
            look = {"fontsize": 6, "color": "0.25", "va": "bottom", "ha": "left", "zorder": 4}
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.2}  # over the dotted ends of others
            axis.text(x0, y - 0.06, f" iteration {iteration}", bbox=behind, **look)
    axis.set_ylim(window.log.threads - 0.5, -0.95 - high * len(rows))


def _names(windows: Sequence[LogWindow]) -> list[str]:
    return [style.marked(model_label(window.log.model), had_cpus(window.log)) for window in windows]


def _label(axis, window: LogWindow, name: str, cut: bool, column: str) -> None:
    log, wide = window.log, column == "double"
    threads = log.threads
    text = f"{name}, {format_time(log.step_s)}"
    if wide:
        text += " per iteration"
        text += f"; goes on to {format_time(window.length_ns * 1e-9)}" if cut else ""
    axis.set_title(textwrap.fill(text, style.LINE[column]), fontsize=7.5 if wide else 6.5, pad=3 if wide else 1)
    kind = "" if threads > 4 else "thread "
    every = math.ceil(LABEL_IN[column] / _lane_in(window, column))
    axis.set_yticks(range(0, threads, every), [f"{kind}{w}" for w in range(0, threads, every)])
    axis.tick_params(axis="y", length=0, labelsize=7 if wide else 6)
    axis.spines[["top", "right", "left"]].set_visible(False)


def gantt_caption(windows: Sequence[LogWindow], title: str, plain: bool = False) -> str:
    """Return the caption: what is drawn, of which run."""
    count = len(windows[0].passes) * windows[0].log.about["stride"]
    if plain:
        return (
            f"{title}: what each thread did during {plural(count, 'iteration')} of a logged run, of typical length. "
            "Boxes: blocks, coloured by phase. White: waits, and the runtime's own steps."
        )
    return (
        f"{title}: what each thread did during {count} iterations of a logged run, of typical length. Full boxes: "
        "blocks, coloured by phase. Lower boxes: idle time by its cause. Brackets: iterations."
    )


def gantt_text(windows: Sequence[LogWindow], title: str, names: Sequence[str] = ()) -> str:
    """Return the caption, and in a second part what the marks mean and what logging cost."""
    sentences = []
    if not names:
        sentences.append(
            "Full boxes are blocks, coloured by phase. Lower boxes are idle time by its cause. Brackets are "
            "iterations, from the first block to the end of the last one."
        )
    if any(window.length_ns > axis_length_ns(windows) for window in windows):
        sentences.append(f"Models that take more than {LONGEST:g} times the median go on beyond the axis.")
    if left_out := sum(max(0, len(window.events) - MAX_DRAWN) for window in windows):
        sentences.append(f"{left_out} of the shortest boxes are left out.")
    named = zip(windows, names or _names(windows), strict=True)
    costs = [f"{window.log.overhead_text} ({name})" for window, name in named]
    sentences.append(f"Logging changed the time of a run by {', '.join(costs)}.")
    return "\n\n".join([gantt_caption(windows, title, bool(names)), "\n".join(sentences)]) + "\n"


def draw_traces(
    sweep: Sweep, folder: str | os.PathLike, plan_ids: Sequence[str], column: str, title: bool = True
) -> tuple[Figure, str]:
    """Draw traces of several plans of a results folder one below the other, on one time axis, and return the text
    beside the picture. Raises `UsageError`: no trace, more than a picture holds, or a log that cannot be read."""
    result = {(row.plan_id, row.model): row for row in sweep.traces}
    models = sweep.shown or sorted({model for _, model in result})
    rows = [result[plan, model] for plan in plan_ids for model in models if (plan, model) in result]
    if not rows:
        raise UsageError("figure gantt needs event logs of these models and plans, got none; measure with --trace")
    if len(rows) > MOST_BESIDE:
        known = "; ".join(f"{plan}: {sweep.problem_name(plan)}" for plan in dict.fromkeys(row.plan_id for row in rows))
        raise UsageError(
            f"figure gantt holds at most {MOST_BESIDE} traces, got {len(rows)}; choose them with --models M,... and "
            f"--plan ID,...; plans are {known}"
        )
    records = {row.plan_id: sweep.named[row.plan_id] for row in rows}
    axes = swept_fields(list(records.values()))
    networks = dict.fromkeys(short_name(str(record[NETWORK])) for record in records.values())
    first = {name: None if name in axes else value for name, value in records[rows[0].plan_id].items()}
    text = problem_text(first | {NETWORK: ", ".join(networks)}, (), "batch" if "batch" in axes else "")
    names = []
    for row in rows:
        swept = {axis_label(axis): value_text(records[row.plan_id][axis]) for axis in axes}
        told = [value if axis == NETWORK else f"{axis} {value}" for axis, value in swept.items()]
        names.append(", ".join([sweep.label(row.model), plural(row.threads, "thread"), *told]))
    windows = [typical(read_events(Path(folder, row.path)), 1) for row in rows]
    names = [style.marked(name, had_cpus(window.log)) for name, window in zip(names, windows, strict=True)]
    figure = draw_gantt(windows, column=column, title=text if title else "", names=names)
    return figure, gantt_text(windows, text, names)
