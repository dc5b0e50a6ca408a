"""The figure of METG: efficiency over task granularity."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ..report.figures.chart import Chart, Panel, drawn, reference_rows
from ..report.figures.style import GREY, ModelStyle, in_style, model_styles, save
from ..results.files import write_atomically
from ..tables.numbers import plural
from .graphs import describe_graph, graph_name
from .table import HALF, format_table

HALF_NAME = "half: METG(50 %)"


def by_graph(table: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return what was measured on each graph, by its name."""
    measured = [entry for entry in table["results"] if entry["repeats"]]  # sorted by graph
    return {name: [*own] for name, own in itertools.groupby(measured, lambda entry: graph_name(entry["graph"]))}


def draw_all(table: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """Draw a figure for each graph as SVG, in two widths, with its caption beside it; yield the figures' paths."""
    for name, entries in by_graph(table).items():
        for column, stem in (("single", f"metg_{name}-single"), ("double", f"metg_{name}")):
            yield save(draw(entries, column), folder / f"{stem}.svg")
        text = format_table({**table, "results": entries})
        write_atomically(folder / f"metg_{name}.txt", f"{chart(entries).text}\n\n{text}\n")


def draw(entries: Sequence[Mapping[str, Any]], column: str) -> Figure:
    """Draw `chart`."""
    with in_style():
        return drawn(chart(entries), column)


def chart(entries: Sequence[Mapping[str, Any]]) -> Chart:
    """Return efficiency over task granularity, a panel for each graph and thread count, with the half of METG(50 %)."""
    shown: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for entry in entries:
        shown.setdefault((graph_name(entry["graph"]), entry["threads"]), []).append(entry)
    graphs = {name: describe_graph(own[0]["graph"]) for (name, _), own in shown.items()}
    styles = {**model_styles([e["model"] for e in entries]), HALF_NAME: ModelStyle(GREY, "", ":")}
    panels = [
        Panel(
            pd.concat([*map(_rows, own), reference_rows(HALF_NAME, [math.nan], [HALF])]),
            "efficiency",
            name if len(graphs) > 1 else plural(threads, "thread"),
            "share",
        )
        for (name, threads), own in shown.items()
    ]
    facts = [*graphs.values()] if len(graphs) == 1 else [f"{plural(t, 'thread')}" for t in {t for _, t in shown}]
    across = len(panels) if len(panels) > 2 else 0
    caption = [
        f"Efficiency over task granularity on the graph {describe_graph(entries[0]['graph'])}: the highest "
        "median of processes up to that granularity. METG(50 %) is where it reaches half.",
        "" if all(e["usable"] for e in entries) else "Crossed out: others disturbed the runs.",
    ]
    return Chart(panels, facts, styles, "task granularity (ns)", across=across, same_scale=True, caption=caption)


def _rows(entry: Mapping[str, Any]) -> pd.DataFrame:
    """Return the curve of a model: the highest efficiency up to each granularity."""
    curve = pd.DataFrame(entry["curve"]).sort_values("granularity_s")
    rows = reference_rows("", curve["granularity_s"] * 1e9, curve["efficiency"].cummax())
    return rows.assign(model=entry["model"], usable=entry["usable"])
