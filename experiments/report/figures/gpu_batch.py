"""The figure of a sweep with GPU models: time of an epoch over the batch, drawn from a table and not from a study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import seaborn as sns
from matplotlib.figure import Figure

from ...analysis.gpu import EPOCH_IMAGES
from .axes import log2_axis
from .style import style_parameters

CAPTION = f"Time of an epoch of {EPOCH_IMAGES:,} images over the batch; CPU models at their best number of threads."


def draw_batches(table: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the time of an epoch over the batch from rows of `gpu_table`, a line for each model."""
    best: dict[str, dict[int, float]] = {}
    several = len({row["network"] for row in table}) > 1
    for row in table:  # The fastest thread count of each model and batch counts.
        line = best.setdefault(f"{row['network']}, {row['model']}" if several else row["model"], {})
        line[row["batch"]] = min(line.get(row["batch"], math.inf), row["epoch_s"])
    batches = sorted({row["batch"] for row in table})
    colors = sns.color_palette("colorblind", len(best))
    with matplotlib.rc_context(style_parameters()):
        figure = Figure(figsize=(3.5, 2.6), layout="constrained")
        axis = figure.subplots()
        for color, marker, (model, line) in zip(colors, "osD^vP*X<>" * len(best), best.items(), strict=False):
            axis.plot(*zip(*sorted(line.items()), strict=True), marker=marker, color=color, label=model)
        axis.set(yscale="log", xlabel="batch", ylabel=f"seconds for {EPOCH_IMAGES:,} images")
        log2_axis(axis, "x", batches, batches[0] / 1.2, batches[-1] * 1.2)
        axis.legend(fontsize=6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure
