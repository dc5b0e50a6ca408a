"""The figure of METG: efficiency over task granularity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ...cython_src.typed_text import rounded
from ..report.figures.axes import cross_out
from ..report.figures.chart import Chart, Panel, drawn
from ..report.figures.style import ModelStyle, in_style, marker_look, model_handles, model_styles, save
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
    """Draw `chart`."""
    with in_style():
        return drawn(chart(entries), column)


def chart(entries: Sequence[Mapping[str, Any]]) -> Chart:
    """Return efficiency over task granularity, a panel for each graph and thread count, with METG(50 %) marked."""
    shown: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for entry in entries:
        shown.setdefault((graph_name(entry["graph"]), entry["threads"]), []).append(entry)
    graphs = {name: describe_graph(own[0]["graph"]) for (name, _), own in shown.items()}
    styles = model_styles([e["model"] for e in entries])
    lengths_ns = [p["granularity_s"] * 1e9 for e in entries for p in e["curve"]]
    limits = min(lengths_ns) / 1.3, max(lengths_ns) * 1.3

    def paint(axis, own: Sequence[Mapping[str, Any]], number: int) -> None:
        axis.axhline(HALF, color="0.6", linewidth=0.6, linestyle=":")
        for entry in own:
            _draw_entry(axis, entry, styles[entry["model"]])
        axis.set_xscale("log")
        axis.set(xlim=limits, ylim=(0, 1.05))
        axis.set(xlabel="task granularity (ns)", ylabel="" if number else "efficiency")
        axis.grid(True, axis="y")

    panels = [
        Panel(
            pd.concat(map(_rows, own)),
            "efficiency",
            name if len(graphs) > 1 else plural(threads, "thread"),
            paint=lambda axis, _, own=own, number=number: paint(axis, own, number),
        )
        for number, ((name, threads), own) in enumerate(shown.items())
    ]
    facts = [*graphs.values()] if len(graphs) == 1 else [f"{plural(t, 'thread')}" for t in {t for _, t in shown}]
    handles, across = model_handles(styles), len(panels) if len(panels) > 2 else 0
    caption = [
        f"Efficiency over task granularity on the graph {describe_graph(entries[0]['graph'])}. Small marks: median of "
        "processes; lines: the highest efficiency up to that granularity; large marks: "
        "METG(50 %), where it reaches half.",
        "" if all(e["usable"] for e in entries) else "Crossed out: others disturbed the runs.",
    ]
    look = {"across": across, "same_scale": True, "handles": handles, "caption": caption}
    return Chart(panels, facts, styles, "task granularity (ns)", **look)


def _rows(entry: Mapping[str, Any]) -> pd.DataFrame:
    """Return the points of a model."""
    names = {"granularity_s": "x", "efficiency": "value", "efficiency_low": "low", "efficiency_high": "high"}
    rows = pd.DataFrame(entry["curve"])[list(names)].rename(columns=names)
    return rows.assign(model=entry["model"], x=rows["x"] * 1e9, usable=entry["usable"])


def _draw_entry(axis, entry: Mapping[str, Any], style: ModelStyle) -> None:
    """Draw the points of a model, their envelope, and where it reaches half."""
    curve, color = sorted(entry["curve"], key=lambda point: point["granularity_s"]), style.color
    x, values = [p["granularity_s"] * 1e9 for p in curve], [p["efficiency"] for p in curve]
    axis.plot(x, envelope(curve), color=color, linestyle=style.line)
    axis.plot(x, values, color=color, linestyle="", marker=style.marker, markersize=2.5, markeredgewidth=0)
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
    method = (
        f"Task granularity is wall time x {at_once} / tasks. Efficiency is the kernel's own time, "
        f"{rounded(unit_s[graph['kernel']] * 1e9)} ns per unit of work without any runtime, over it. Processes: "
        f"{repeats}. METG(50 %) has its range over the processes; none from quick or disturbed runs."
    )
    result = [f"{e['model']} on {e['threads']}: {metg_text(e)}{'' if e['metg_s'] is None else ' ns'}" for e in entries]
    return f"{chart(entries).text}\n\n{method}\n{', '.join(result)}.\n"
