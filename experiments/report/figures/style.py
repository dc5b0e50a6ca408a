"""Style of figures: fonts, colours, sizes, legends, and saving.

Fit for a paper as they are: 8 pt, vector, colour-blind palette. The same rows give the same bytes: no dates, no random
ids, and only the font that comes with matplotlib. Nothing here touches pyplot's global state.
"""

from __future__ import annotations

import math
import os
import string
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.colors
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ....cython_src.binding.execution_model import ExecutionModel
from ....cython_src.errors import UsageError
from ...analysis.names import base_model, model_label, model_rank
from ...results.files import write_atomically, write_figure
from ...sampling.models import MODELS

COLUMN_WIDTH_IN = {"double": 7.0, "single": 3.3}

FORMATS = ("pdf", "svg", "png")

COLORS = sns.color_palette("colorblind")

GREY = "0.45"

_HUES = dict(
    zip(("blue", "orange", "green", "red", "purple", "brown", "pink", "grey", "yellow", "sky"), COLORS, strict=True)
)

# Share of black (below 0) or white (above 0) in the colour of each further variant.
_SHADES = (0.0, -0.4, 0.4, -0.65, 0.6)

LINES = ("-", "--", "-.", ":")


def style_parameters() -> dict:
    """Return the settings of every figure, for `matplotlib.rc_context`."""
    parameters = {**sns.plotting_context("paper"), **sns.axes_style("ticks")}
    parameters.update(
        {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "mathtext.fontset": "dejavusans",
            "font.size": 8,
            "axes.labelsize": 8,
            "axes.titlesize": 8,
            "figure.titlesize": 8,
            "legend.fontsize": 7,
            "legend.title_fontsize": 7,
            "xtick.labelsize": 7,
            "ytick.labelsize": 7,
            "axes.linewidth": 0.6,
            "xtick.major.width": 0.6,
            "ytick.major.width": 0.6,
            "xtick.major.size": 3,
            "ytick.major.size": 3,
            "lines.linewidth": 1.1,
            "lines.markersize": 4.5,
            "grid.linewidth": 0.4,
            "grid.color": "0.9",
            "axes.titlelocation": "left",
            "axes.titlepad": 4,
            "legend.frameon": False,
            "pdf.fonttype": 42,
            "ps.fonttype": 42,
            "svg.fonttype": "path",
            "svg.hashsalt": "forktask",
            "figure.constrained_layout.use": False,
            "savefig.dpi": 300,
            "figure.dpi": 100,
            "axes.unicode_minus": True,
        }
    )
    return parameters


@dataclass(frozen=True)
class ModelStyle:
    """Colour, marker and line of a model, the same in every figure of a study."""

    color: object
    marker: str
    line: str


def model_styles(models: Sequence[str]) -> dict[str, ModelStyle]:
    """Assign colours and markers by model; shades of them, markers and lines by variant, in the models' fixed order.

    A model of a GPU looks like a variant of its twin on the CPU, if it has one.
    """
    styles: dict[str, ModelStyle] = {}
    seen: dict[str, int] = {}
    for model in sorted(set(models), key=model_rank):
        base = base_model(model).removeprefix("gpu_")
        variant = seen.get(base, 0)
        seen[base] = variant + 1
        known = MODELS.get(base, MODELS.get(f"gpu_{base}", ExecutionModel))
        hue = known.colors[variant % len(known.colors)]
        color = _shade(_HUES.get(hue, hue), _SHADES[variant // len(known.colors) % len(_SHADES)])
        markers = known.markers
        styles[model] = ModelStyle(color, markers[variant % len(markers)], LINES[variant % len(LINES)])
    return styles


def _shade(color: object, share: float) -> object:
    """Mix a colour with white (share above 0) or black (below 0); the colour itself for 0."""
    if not share:
        return color
    end = 1.0 if share > 0 else 0.0
    return tuple(c + abs(share) * (end - c) for c in matplotlib.colors.to_rgb(color))


def new_figure(
    column: str, panels: int, panel_height: float = 2.0, widths: Sequence[float] | None = None, rows: int = 1
):
    """Make a figure with panels side by side in `rows` (double column) or stacked (single column)."""
    width = COLUMN_WIDTH_IN[column]
    if column == "double":
        figure = Figure(figsize=(width, rows * panel_height + 0.95), layout="constrained")
        axes = figure.subplots(rows, panels // rows, width_ratios=widths, squeeze=False).ravel()
    else:
        figure = Figure(figsize=(width, panels * (panel_height - 0.15) + 1.05), layout="constrained")
        axes = figure.subplots(panels, 1, squeeze=False)[:, 0]
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.04, hspace=0.04)
    for axis, letter in zip(axes, string.ascii_lowercase, strict=False):
        axis.set_title(f"({letter})", fontweight="bold")
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def panel_title(axis, text: str) -> None:
    """Write a panel's title: its letter in bold, the rest in normal weight."""
    letter = axis.get_title(loc="left") or axis.get_title()
    axis.set_title(f"$\\bf{{{letter}}}$ {text}", fontweight="normal")


def add_legend(figure: Figure, column: str, handles: Sequence, columns: int | None = None) -> None:
    """Add one legend for all panels, below them."""
    limit = columns or (5 if column == "double" else 2)
    labels = [handle.get_label() for handle in handles]
    for most in range(limit, 0, -1):
        rows = math.ceil(len(handles) / most)
        ncol = math.ceil(len(handles) / rows)
        parts = [labels[i : i + rows] for i in range(0, len(labels), rows)]
        if (
            sum(0.42 + 0.055 * max(len(line) for label in part for line in label.split("\n")) for part in parts)
            <= COLUMN_WIDTH_IN[column]
        ):
            break  # so many inches wide are these labels, beside their lines, in 7 pt
    figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=ncol,
        handlelength=2.0,
        columnspacing=1.2,
        handletextpad=0.5,
        labelspacing=0.3,
    )


def marker_look(style: ModelStyle, hollow: bool = False) -> dict[str, object]:
    """Return the properties of a model's markers: full, or hollow where something else is measured."""
    look: dict[str, object] = {"marker": style.marker, "markeredgecolor": "white", "markeredgewidth": 0.4}
    return (
        look | {"markerfacecolor": "white", "markeredgecolor": style.color, "markeredgewidth": 0.9} if hollow else look
    )


def model_handles(
    styles: dict[str, ModelStyle],
    models: Sequence[str],
    label: Callable[[str], str] = model_label,
    line: bool = True,
    hollow: Collection[str] = (),
) -> list[Line2D]:
    """Return the entries of a legend, one for each model; the markers of those in `hollow` are not filled."""
    return [
        Line2D(
            [],
            [],
            color=styles[m].color,
            linestyle=styles[m].line if line else "none",
            label=label(m),
            **marker_look(styles[m], m in hollow),
        )
        for m in models
    ]


def save_asked(figure: Figure, path: Path, caption: str = "") -> None:
    """Write the figure that a command was asked for, in a folder that is made if need be, with its caption beside it.

    Raises
    ------
    UsageError
        A file that cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)
        if caption:
            write_atomically(path.with_suffix(".txt"), caption + "\n")
    except OSError as error:
        raise UsageError(f"the figure must be writable to {path}, got: {error.strerror}; choose --file") from None


def save(figure: Figure, path: str | os.PathLike) -> Path:
    """Write a figure as PDF, SVG or PNG, by the name's ending; the same figure gives the same bytes.

    Raises
    ------
    UsageError
        Another ending, or a file that cannot be written.
    """
    path = Path(path)
    kind = path.suffix[1:]
    if kind not in FORMATS:
        raise UsageError(f"the format of a figure must be one of {', '.join(FORMATS)}; got {kind!r}")
    metadata = {
        "pdf": {"CreationDate": None, "Producer": None, "Creator": "forktask"},
        "svg": {"Date": None, "Creator": "forktask"},
        "png": {"Software": None},
    }[kind]
    with matplotlib.rc_context(style_parameters()):
        write_figure(path, figure, metadata=metadata)
    return path
