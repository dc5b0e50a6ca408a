"""Curves of a training run: a CSV table of all epochs, and a figure of accuracy over time."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from ..sampling.files import write_atomically, write_figure
from .checkpoints import HISTORY_COLUMNS, OPTIONAL_COLUMNS


def write_history(path: Path, histories: dict[int, list[dict]]) -> None:
    """Write the rows of all seeds as CSV; the file is replaced as a whole."""
    text = io.StringIO()
    present = {name for history in histories.values() for row in history for name in row}
    columns = HISTORY_COLUMNS + tuple(name for name in OPTIONAL_COLUMNS if name in present)
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for history in histories.values():
        writer.writerows(history)
    write_atomically(path, text.getvalue())


def draw_accuracy(path: Path, histories: dict[int, list[dict]], summary: dict[str, Any]) -> None:
    """Draw validation accuracy over training time to `path`.pdf and .png, its caption to `path`.txt.

    With several seeds the figure has their median and a band from the lowest to the highest. Points are matched by
    epoch; the time of an epoch is the median over seeds.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    import pandas as pd
    import seaborn as sns

    table = pd.DataFrame([row for history in histories.values() for row in history])
    table["accuracy"] = 100 * (1 - table["error_rate"])
    table["epoch_time_s"] = table.groupby("epoch")["time_s"].transform("median")
    several = len(histories) > 1
    with (
        sns.axes_style("ticks"),
        plt.rc_context(
            {
                "font.size": 8,
                "axes.labelsize": 8,
                "axes.titlesize": 8,
                "xtick.labelsize": 8,
                "ytick.labelsize": 8,
                "pdf.fonttype": 42,
            }
        ),
    ):
        figure, axes = plt.subplots(figsize=(3.5, 2.4), layout="constrained")
        sns.lineplot(
            table,
            x="epoch_time_s",
            y="accuracy",
            estimator="median",
            errorbar=("pi", 100) if several else None,
            marker="o",
            markersize=3,
            color=sns.color_palette("colorblind")[0],
            ax=axes,
        )
        axes.set(xlabel="training time (s)", ylabel="validation accuracy (%)", title=summary["title"])
        axes.set_xlim(left=0)
        sns.despine(figure)
        write_figure(path.with_suffix(".pdf"), figure)
        write_figure(path.with_suffix(".png"), figure, dpi=200)
        plt.close(figure)
    shown = f"Median of {len(histories)} seeds, band from lowest to highest." if several else "One seed."
    caption = (
        f"Validation accuracy over training time, evaluation not counted: {summary['title']}, model "
        f"{summary['config']['model']}, {summary['config']['threads']} threads, batch "
        f"{summary['config']['batch']}. {shown} "
        f"Test accuracy {100 * summary['test_accuracy_median']:.2f} %.\n"
    )
    write_atomically(path.with_suffix(".txt"), caption)
