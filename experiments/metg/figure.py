"""The figure of METG: efficiency over task granularity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ...cython_src.typed_text import rounded
from ..report.figures.axes import cross_out
from ..report.figures.heading import write_lines
from ..report.figures.style import (
    ModelStyle,
    add_legend,
    finish,
    in_style,
    marker_look,
    model_handles,
    model_styles,
    new_figure,
    panel_title,
    save,
)
from ..results.files import write_atomically
from ..tables.numbers import plural
from .graphs import describe_graph, graph_name
from .table import HALF, envelope, metg_text, of_gpu


def draw_all(table: Mapping[str, Any], folder: Path, kind: str) -> list[Path]:
    """Draw a figure for each graph, in two widths, with its caption beside it."""
    paths = []
    for name in dict.fromkeys(graph_name(e["graph"]) for e in table["results"]):
        entries = [e for e in table["results"] if graph_name(e["graph"]) == name and e["repeats"]]
        if not entries:
            continue
        for column, stem in (("single", f"metg_{name}-single"), ("double", f"metg_{name}")):
            paths.append(save(draw(entries, column), folder / f"{stem}.{kind}"))
        write_atomically(folder / f"metg_{name}.txt", caption_file(entries, table["unit_s"]))
    return paths


def draw(entries: Sequence[Mapping[str, Any]], column: str) -> Figure:
    """Draw efficiency over task granularity, a panel for each graph and thread count, with METG(50 %) marked."""
    shown = dict.fromkeys((graph_name(e["graph"]), e["threads"]) for e in entries)
    graphs = {name: describe_graph(e["graph"]) for e in entries for name in [graph_name(e["graph"])]}
    styles = model_styles([e["model"] for e in entries])
    with in_style():
        figure, axes = new_figure(column, len(shown), share="all")
        for axis, (name, threads) in zip(axes, shown, strict=True):
            panel_title(axis, name if len(graphs) > 1 else plural(threads, "thread"))
            axis.axhline(HALF, color="0.6", linewidth=0.6, linestyle=":")
            for entry in (e for e in entries if (graph_name(e["graph"]), e["threads"]) == (name, threads)):
                _draw_entry(axis, entry, styles[entry["model"]])
            axis.set_xscale("log")
            axis.set_ylim(0, 1.05)
            axis.set_xlabel("task granularity (ns)")
            axis.grid(True, axis="y")
        axes[0].set_ylabel("efficiency")
        add_legend(figure, column, model_handles(styles, list(styles)))
        facts = [*graphs.values()] if len(graphs) == 1 else [f"{plural(t, 'thread')}" for t in {t for _, t in shown}]
        write_lines(figure, facts, column)
        return finish(figure)


def _draw_entry(axis, entry: Mapping[str, Any], style: ModelStyle) -> None:
    """Draw the points of a model with their extremes, their envelope, and where it reaches half."""
    curve, color = entry["curve"], style.color
    x = [p["granularity_s"] * 1e9 for p in curve]
    values, *ends = ([p[name] for p in curve] for name in ("efficiency", "efficiency_low", "efficiency_high"))
    axis.plot(x, envelope(curve), color=color, linestyle=style.line)
    axis.plot(x, values, color=color, linestyle="", marker=style.marker, markersize=2.5, markeredgewidth=0)
    axis.fill_between(x, *ends, color=color, alpha=0.2, linewidth=0)
    if not entry["usable"]:
        cross_out(axis, x, values, 2.5)
    if entry["metg_s"] is not None:
        low, middle, high = (entry["metg_s"][end] * 1e9 for end in ("low", "median", "high"))
        axis.plot([low, high], [HALF, HALF], color=color, linewidth=1.6, marker="|", markersize=4)
        axis.plot(middle, HALF, color=color, **marker_look(style))


def caption_file(entries: Sequence[Mapping[str, Any]], unit_s: Mapping[str, float]) -> str:
    """Return the text beside the figure: its caption, and in a second part method and numbers."""
    graph = entries[0]["graph"]
    repeats = "-".join(map(str, sorted({e["repeats"] for e in entries})))
    at_once = "tasks that the GPU runs at once" if of_gpu(entries) else "threads"
    text = (
        f"Efficiency over task granularity on the graph {describe_graph(graph)}. Small marks: median of processes, "
        "bands: their extremes; lines: the highest efficiency up to that granularity; large marks: METG(50 %), where "
        "it reaches half."
    )
    if not all(e["usable"] for e in entries):
        text += " Crossed out: others disturbed the runs."
    method = (
        f"Task granularity is wall time x {at_once} / tasks. Efficiency is the kernel's own time, "
        f"{rounded(unit_s[graph['kernel']] * 1e9)} ns a unit of work without any runtime, over it. Processes: "
        f"{repeats}. METG(50 %) has its range over the processes; none from quick or disturbed runs."
    )
    result = [f"{e['model']} on {e['threads']}: {metg_text(e)}{'' if e['metg_s'] is None else ' ns'}" for e in entries]
    return f"{text}\n\n{method}\n{', '.join(result)}.\n"
