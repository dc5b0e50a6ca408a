"""How long data take from each CPU to each other one: measured, and drawn."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ...cython_src.reading import decoding, read_regular
from ..machine.core_latency import measure_latency
from ..report.figures.style import blank_figure, finish, in_style, panel_title
from ..results.files import csv_text

HANDOVERS = "handovers.csv"
ROUNDS, WINDOWS = 2000, 3  # a millisecond a pair: 8,128 pairs of 128 CPUs take ten seconds
TALL_IN = 3.0


def measure_handovers(cpus: Sequence[int]) -> str:
    """Return the hand-over between each two CPUs as CSV: cpu, other, seconds."""
    pairs = combinations(cpus, 2)
    rows = ((a, b, measure_latency(a, b, rounds=ROUNDS, windows=WINDOWS)) for a, b in pairs)
    return csv_text(["cpu", "other", "seconds"], rows)


def read_handovers(folder: Path) -> dict[tuple[int, int], float]:
    """Return the seconds of a hand-over by pair of CPUs; empty: not measured."""
    path = folder / HANDOVERS
    if not path.exists():
        return {}
    content = read_regular(path, "hand-overs")
    with decoding(path, "table of hand-overs", "remove it, and measure it with forktask survey"):
        rows = csv.DictReader(io.StringIO(content.decode()))
        return {(int(row["cpu"]), int(row["other"])): float(row["seconds"]) for row in rows}


def draw_handovers(result: dict[tuple[int, int], float]) -> Figure:
    """Draw a square for each two CPUs, in the order of their numbers."""
    cpus = sorted({cpu for pair in result for cpu in pair})
    index = {cpu: number for number, cpu in enumerate(cpus)}
    values = np.full((len(cpus), len(cpus)), np.nan)
    for (a, b), seconds in result.items():
        values[index[a], index[b]] = values[index[b], index[a]] = seconds * 1e9
    with in_style():
        figure = blank_figure("single", TALL_IN)
        axis = figure.subplots()
        axis.imshow(values, cmap="viridis")
        panel_title(axis, f"dark: {np.nanmin(values):.0f} ns, light: {np.nanmax(values):.0f} ns")
        step = max(1, len(cpus) // 8)
        axis.set_xticks(range(0, len(cpus), step), [str(cpu) for cpu in cpus[::step]])
        axis.set_yticks(range(0, len(cpus), step), [str(cpu) for cpu in cpus[::step]])
        axis.set_xlabel("CPU")
        axis.set_ylabel("CPU")
        return finish(figure)
