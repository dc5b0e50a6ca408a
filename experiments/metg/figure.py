"""The figure of METG: efficiency over task granularity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from ...cython_src.typed_text import rounded
from ..report.figures.style import (
    add_legend,
    model_handles,
    model_styles,
    new_figure,
    panel_title,
    save,
    style_parameters,
)
from ..results.files import write_atomically
from ..tables.numbers import plural
from .graphs import describe_graph, graph_name
from .table import HALF, envelope, metg_text, of_gpu


def draw_all(table: Mapping[str, Any], folder: Path, kind: str) -> list[Path]:
    """Draw a figure for each graph, with its caption beside it."""
    paths = []
    for name in dict.fromkeys(graph_name(e["graph"]) for e in table["results"]):
        entries = [e for e in table["results"] if graph_name(e["graph"]) == name and e["repeats"]]
        if not entries:
            continue
        paths.append(save(draw(entries), folder / f"metg_{name}.{kind}"))
        write_atomically(folder / f"metg_{name}.txt", caption(entries, table["unit_s"]) + "\n")
    return paths


def draw(entries: Sequence[Mapping[str, Any]]):
    """Draw efficiency over task granularity, a panel for each thread count, with METG(50 %) marked."""
    counts = sorted({e["threads"] for e in entries})
    styles = model_styles([e["model"] for e in entries])
    with matplotlib.rc_context(style_parameters()):
        figure, axes = new_figure("double", len(counts))
        for axis, threads in zip(axes, counts, strict=True):
            panel_title(axis, plural(threads, "thread"))
            axis.axhline(HALF, color="0.6", linewidth=0.6, linestyle=":")
            for entry in (e for e in entries if e["threads"] == threads):
                style = styles[entry["model"]]
                x = [p["granularity_s"] * 1e9 for p in entry["curve"]]
                axis.plot(x, envelope(entry["curve"]), color=style.color, linestyle=style.line)
                axis.plot(
                    x,
                    [p["efficiency"] for p in entry["curve"]],
                    color=style.color,
                    linestyle="",
                    marker=style.marker,
                    markersize=2.5,
                    markeredgewidth=0,
                )
                axis.fill_between(
                    x,
                    [p["efficiency_low"] for p in entry["curve"]],
                    [p["efficiency_high"] for p in entry["curve"]],
                    color=style.color,
                    alpha=0.2,
                    linewidth=0,
                )
                if entry["metg_s"] is not None:
                    ends = [entry["metg_s"][end] * 1e9 for end in ("low", "high")]
                    axis.plot(ends, [HALF, HALF], color=style.color, linewidth=1.6, marker="|", markersize=4)
                    axis.plot(
                        [entry["metg_s"]["median"] * 1e9],
                        [HALF],
                        color=style.color,
                        marker=style.marker,
                        markeredgecolor="white",
                        markeredgewidth=0.6,
                    )
            axis.set_xscale("log")
            axis.set_ylim(0, 1.05)
            at_once = "tasks at once" if of_gpu(entries) else "threads"
            axis.set_xlabel(f"task granularity: wall time x {at_once} / tasks (ns)")
            axis.grid(True, axis="y")
        axes[0].set_ylabel("efficiency")
        add_legend(figure, "double", model_handles(styles, list(styles)))
    return figure


def caption(entries: Sequence[Mapping[str, Any]], unit_s: Mapping[str, float]) -> str:
    """Return the figure's caption."""
    graph = entries[0]["graph"]
    repeats = sorted({e["repeats"] for e in entries})
    found = ", ".join(
        f"{e['model']} on {e['threads']}: {metg_text(e)}{'' if e['metg_s'] is None else ' ns'}" for e in entries
    )
    at_once = "tasks that the GPU runs at once" if of_gpu(entries) else "threads"
    return (
        f"Efficiency over task granularity on the graph {describe_graph(graph)}. Efficiency is the kernel's own time, "
        f"{rounded(unit_s[graph['kernel']] * 1e9)} ns a unit of work without any runtime, over wall time x "
        f"{at_once} / tasks. Small marks: median of {'-'.join(map(str, repeats))} processes, bands: their extremes; "
        f"lines: the envelope, the highest efficiency up to that granularity. Large marks: METG(50 %), where the "
        f"envelope reaches half, with its range over the processes; none from quick or disturbed runs. "
        f"{found}."
    )
