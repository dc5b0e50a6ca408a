"""Gantt pictures of event logs: blocks by layer, idle time by its cause, iterations, the critical cycle."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import seaborn as sns
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..analysis.losses import LOSSES, classes_of
from ..analysis.names import model_label
from ..analysis.windows import Window, layer_names, layer_of_loops
from ..sampling.event_states import COPYING, IN_BLOCK, LOCK, RUNNING, WAITING_DEVICE
from ..sampling.events import COPIES
from ..tables.numbers import format_time
from .figures.style import style_parameters

MAX_DRAWN = 60_000  # boxes of a picture; shorter ones are left out first, and the caption says so
MAX_NAMED = 14  # layers in the legend
MAX_VECTOR = 4_000  # boxes that a PDF or SVG holds as shapes; more become an image inside it
LONGEST = 4.0  # medians of all windows; a longer one goes on beyond the axis, on which the others could not be read
LANE, IDLE = 0.86, 0.5  # heights of a block and of idle time, of the distance between two threads

# What a thread does between blocks, in the order of the legend: name, colour. Waits for the last three are no loss of
# their own.
IDLE_KINDS = {
    **{name: (loss.meaning, loss.color) for name, loss in LOSSES.items() if name not in ("useful", "inflation")},
    "lock": ("lock", "#8c4fbf"),
    "copying": ("copies", "#00a050"),
    "device": ("waits for the device", "#d2d2d2"),
}


def idle_kinds(events: np.ndarray) -> np.ndarray:
    """Return the key of `IDLE_KINDS` for each event, "" for running ones."""
    state = events["state"]
    kinds = {"": RUNNING, "lock": LOCK, "copying": COPYING, "device": WAITING_DEVICE}
    return np.select([state == each for each in kinds.values()], list(kinds), np.array([*LOSSES])[classes_of(events)])


def axis_length_ns(windows: Sequence[Window]) -> int:
    """Return the length of the axis that windows share: of the longest one but those above `LONGEST` medians."""
    lengths = sorted(window.stop_ns - window.start_ns for window in windows)
    return max(length for length in lengths if length <= LONGEST * lengths[(len(lengths) - 1) // 2])


def _cut(windows: Sequence[Window]) -> list[Window]:
    """Return the windows that go on beyond the axis."""
    end = axis_length_ns(windows)
    return [window for window in windows if window.stop_ns - window.start_ns > end]


def shown_events(window: Window) -> np.ndarray:
    """Return the events of a window, without what lies between copies: nothing waits there."""
    events = window.events
    return events[(events["state"] == COPYING) | ~np.isin(events["worker"], window.log.lanes_of(COPIES))]


def layer_colors(names: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    """Return a colour for each layer; few of them have none that `IDLE_KINDS` has."""
    few = [sns.color_palette("colorblind")[i] for i in (0, 2, 4, 9, 5, 6)]
    palette = few[: len(names)] if len(names) <= len(few) else sns.husl_palette(len(names), l=0.6)
    return dict(zip(names, palette, strict=True))


def phase_color(color: Sequence[float], phase: str) -> tuple[float, ...]:
    """Return a layer's colour in a phase: light forward, full backward, dark in all others."""
    target, part = {"forward": (1.0, 0.5), "backward": (1.0, 0.0)}.get(phase, (0.0, 0.55))
    return tuple(c + part * (target - c) for c in color)


def draw_gantt(windows: Sequence[Window], critical: bool = True) -> tuple[Figure, str]:
    """Draw windows one below the other on one time axis; return the figure and its caption."""
    layers = layer_names([window.log for window in windows])
    colors = layer_colors(layers)
    lanes = [len(window.log.lanes) for window in windows]
    with matplotlib.rc_context(style_parameters()):
        height = sum(0.24 * n + 0.62 for n in lanes) + 1.2
        figure = Figure(figsize=(7.0, height), layout="constrained")
        axes = figure.subplots(len(windows), 1, sharex=True, squeeze=False, height_ratios=[n + 1.6 for n in lanes])[
            :, 0
        ]
        left_out, kinds, means, unit, beyond = 0, set(), [], _unit(windows), _cut(windows)
        axes[-1].set_xlim(0, axis_length_ns(windows) / unit[1])
        for axis, window in zip(axes, windows, strict=True):
            left_out += _draw_lanes(axis, window, colors, kinds, unit)
            mean = _draw_critical(axis, window, unit) if critical else None
            means.append(mean)
            _draw_iterations(axis, window, unit)
            _label(axis, window, mean, window in beyond)
        axes[-1].set_xlabel(f"time since the start of the first iteration shown ({unit[0]})")
        _legend(figure, layers, colors, windows, kinds, any(mean is not None for mean in means))
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine(None)
    return figure, _caption(windows, left_out, any(mean is not None for mean in means))


def _unit(windows: Sequence[Window]) -> tuple[str, float]:
    return ("µs", 1e3) if axis_length_ns(windows) < 2e6 else ("ms", 1e6)


def _draw_lanes(axis, window: Window, colors, kinds: set[str], unit) -> int:
    """Draw the boxes of all threads; returns how many were too short to be drawn."""
    events, log = shown_events(window), window.log
    length = events["stop_ns"] - events["start_ns"]
    left_out = 0
    if len(events) > MAX_DRAWN:
        shortest = np.sort(length)[-MAX_DRAWN]
        left_out = int((length < shortest).sum())
        events, length = events[length >= shortest], length[length >= shortest]
    idle = idle_kinds(events)
    kinds.update(idle[idle != ""].tolist())
    layers, phases = layer_of_loops(log), log.loops["phase"]
    loop_color = [phase_color(colors[layer], phase) for layer, phase in zip(layers, phases, strict=True)]
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
    boxes.set_rasterized(len(events) > MAX_VECTOR)
    axis.add_collection(boxes)
    return left_out


def _draw_iterations(axis, window: Window, unit) -> None:
    """Outline each iteration: a bracket above the threads, from its first block to the end of its last."""
    rows: list[int] = []  # end of the last bracket in each row
    end = axis.get_xlim()[1]
    for iteration, start, stop in window.spans():
        row = next((r for r, end in enumerate(rows) if end <= start), len(rows))
        rows[row : row + 1] = [stop]
        y = -0.72 - 0.42 * row
        x0, x1 = ((t - window.start_ns) / unit[1] for t in (start, stop))
        if x0 >= end:
            break
        # An iteration that goes on beyond the axis has an open bracket.
        corners = [(x0, y + 0.22), (x0, y), (min(x1, end), y), *([(x1, y + 0.22)] if x1 <= end else [])]
        axis.plot(*zip(*corners, strict=True), color="0.25", linewidth=0.7, clip_on=False, zorder=3)
        for x in (x0, x1):
            axis.plot([x, x], [y, len(window.log.lanes) - 0.5], color="0.25", linewidth=0.4, linestyle=":", zorder=3)
        if min(x1, end) - x0 > 0.09 * end:
            axis.text(x0, y - 0.06, f" iteration {iteration}", fontsize=5.5, color="0.25", va="bottom", ha="left")
    axis.set_ylim(len(window.log.lanes) - 0.5, -0.95 - 0.42 * len(rows))


def _draw_critical(axis, window: Window, unit) -> float | None:
    """Draw the critical cycle as a line through its blocks; returns its mean in seconds, None without one."""
    cycle = window.critical_cycle()
    if cycle is None:
        return None
    x, y = [], []
    for k, task in window.path(cycle):
        for time in (window.start[k, task], window.stop[k, task]):
            x.append((time - window.start_ns) / unit[1])
            y.append(window.worker[k, task])
    axis.plot(x, y, color="white", linewidth=2.0, zorder=4, solid_joinstyle="round")
    axis.plot(x, y, color="black", linewidth=0.9, zorder=5, solid_joinstyle="round")
    return cycle.mean_s


def _label(axis, window: Window, mean_s: float | None, cut: bool) -> None:
    log = window.log
    names = [name for _, name in log.lanes]
    floor = "" if mean_s is None else f"; critical cycle {format_time(mean_s / log.about['stride'])}"
    text = f"{model_label(log.about['model'])}, {format_time(log.step_s)} an iteration{floor}"
    if cut:
        text += f"; goes on to {format_time((window.stop_ns - window.start_ns) * 1e-9)}"
    axis.set_title(text, fontsize=7.5, pad=3)
    short = len(names) > 4 and not log.of_gpu
    axis.set_yticks(range(len(names)), [str(w) if short else name for w, name in enumerate(names)])
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _legend(figure, names, colors, windows, kinds, critical: bool) -> None:
    busy: dict[str, int] = dict.fromkeys(names, 0)
    for window in windows:
        time = (window.stop - window.start).sum(axis=0)
        for layer, task_time in zip(np.array(layer_of_loops(window.log))[window.log.task_loop], time, strict=True):
            busy[layer] += int(task_time)
    shown = sorted(sorted(names, key=lambda name: -busy[name])[:MAX_NAMED], key=names.index)
    handles = [Patch(color=colors[name], label=name) for name in shown]
    if len(shown) < len(names):
        handles.append(Patch(color="none", label=f"and {len(names) - len(shown)} more layers"))
    grey = (0.45, 0.45, 0.75)
    handles += [
        Patch(color=phase_color(grey, phase), label=label)
        for phase, label in (("forward", "light: forward"), ("backward", "full: backward"), ("", "dark: other phases"))
    ]
    handles += [Patch(color=color, label=label) for kind, (label, color) in IDLE_KINDS.items() if kind in kinds]
    if critical:
        handles.append(Line2D([], [], color="black", linewidth=0.9, label="critical cycle"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, fontsize=6.5, handlelength=1.4, columnspacing=1.2
    )


def _caption(windows: Sequence[Window], left_out: int, critical: bool) -> str:
    log = windows[0].log
    count = len(windows[0].passes) * log.about["stride"]
    sentences = [
        f"{log.about['plan_name']}: what each thread did during {count} iterations of a logged run, those whose length "
        f"is the median, all models on one time axis.",
        *_marks(windows, critical),
    ]
    if _cut(windows):
        sentences.append(f"Models that take more than {LONGEST:g} times the median go on beyond the axis.")
    if left_out:
        sentences.append(f"{left_out} of the shortest boxes are left out.")
    return " ".join([*sentences, _logging(windows)])


def _marks(windows: Sequence[Window], critical: bool) -> list[str]:
    """Explain boxes and lines."""
    sentences = [
        "Full boxes are blocks, coloured by layer: light forward, full backward, dark in other phases. Lower boxes are "
        "idle time by its cause. Brackets are iterations, from the first block to the end of the last one."
    ]
    if any(window.log.of_gpu for window in windows):
        sentences.append(
            "Of a model of a GPU: the thread of the host that launches and waits for the device, each stream with its "
            "launches, and copies by direction and stream; what is inside a captured graph has no times."
        )
    if critical:
        sentences.append(
            "The line is the critical cycle of the dependences with the mean block durations of the run, without time "
            "that blocks had no CPU: no schedule on any number of threads takes less time an iteration than its mean."
        )
    return sentences


def _logging(windows: Sequence[Window]) -> str:
    parts = [f"{w.log.overhead_text} ({model_label(w.log.about['model'])})" for w in windows]
    return f"Logging changed the time of a run by {', '.join(parts)}."
