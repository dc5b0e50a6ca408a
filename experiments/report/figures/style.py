"""Style of figures: fonts, colours, sizes, legends, and saving.

Fit for a paper as they are: 8 pt, vector, colour-blind palette, the font that comes with matplotlib. The same rows give
the same bytes: no dates, no random ids. Nothing here touches pyplot's global state.
"""

from __future__ import annotations

import math
import os
import string
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.colors
import numpy as np
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from ....cython_src.errors import UsageError
from ...results.files import write_atomically, write_figure
from ...subjects.models import MODELS, PERSISTENT, ModelSpec

COLUMN_WIDTH_IN = {"double": 7.0, "single": 3.3}
TALLEST_IN = 6.0  # of a figure in a single column

# Formats of figures, with metadata of each: no dates.
FORMATS: dict[str, dict[str, str | None]] = {
    "pdf": {"CreationDate": None, "Producer": None, "Creator": "forktask"},
    "svg": {"Date": None, "Creator": "forktask"},
    "png": {"Software": None},
}
FIGURE_FOLDER = "figures"  # below a results folder

COLORS = sns.color_palette("colorblind")

GREY = "0.45"

_HUES = dict(
    zip(("blue", "orange", "green", "red", "purple", "brown", "pink", "grey", "yellow", "sky"), COLORS, strict=True)
)

# Variants that come first, in the order of a model's colours and markers; of other models the one without options.
FIRST = {"forkjoin": (str(PERSISTENT), "forkjoin")}
# Share of black (below 0) or white (above 0) in the colour of each further variant.
_SHADES = (0.0, -0.4, 0.4, -0.65, 0.6)

LINES = ("-", "--", "-.", ":")
# The mark over a point that must not be used, and the name by which the legend knows that there is one.
CROSS = {"marker": "x", "color": "black", "markeredgewidth": 0.9}
CROSSED = "not usable"
LETTER_IN, ENTRY_IN = 0.052, 0.45  # widths of a letter of a legend, and of a handle with what lies between columns
MANY = 12  # entries of a legend, of which more are written smaller in a single column
BESIDE_IN, LINE_IN = 0.95, 0.14  # inches of title, legend and axis, and of each further line of them
LINE = {"double": 115, "single": 62}  # characters of a line above the panels
SETTINGS = {
    "font.family": ["DejaVu Sans"],
    **dict.fromkeys(("text.usetex", "legend.frameon", "figure.constrained_layout.use"), False),
    **dict.fromkeys(("font.size", "axes.labelsize", "axes.titlesize", "figure.titlesize"), 8),
    **dict.fromkeys(("legend.fontsize", "legend.title_fontsize", "xtick.labelsize", "ytick.labelsize"), 7),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 3),
    "lines.linewidth": 1.1,
    "lines.markersize": 4.5,
    "grid.linewidth": 0.4,
    "grid.color": "0.9",
    "axes.titlelocation": "left",
    "axes.titlepad": 4,
    "axes.unicode_minus": True,
    **dict.fromkeys(("pdf.fonttype", "ps.fonttype"), 42),
    "svg.fonttype": "path",
    "svg.hashsalt": "forktask",
    "savefig.dpi": 300,
    "figure.dpi": 100,
    "text.hinting": "none",  # measured as wide as it is drawn
}


def marked(name: str, usable: bool) -> str:
    """Return the name of bars, which says so where they are not usable."""
    return name if usable else f"{name} (not usable)"


def in_style() -> AbstractContextManager[None]:
    """Return a context with the settings of every figure."""
    return matplotlib.rc_context({**sns.plotting_context("paper"), **sns.axes_style("ticks"), **SETTINGS})


@dataclass(frozen=True)
class ModelStyle:
    """Colour, marker and line of a model, the same in every figure of a sweep."""

    color: object
    marker: str
    line: str


def model_styles(
    models: Sequence[ModelSpec], rank: Callable[[ModelSpec], tuple] | None = None
) -> dict[ModelSpec, ModelStyle]:
    """Assign colours and markers by model; shades of them, markers and lines by variant, in the order of `rank`, by
    default the models' own.

    `FIRST` variants look the same in every figure, whatever is beside them. A model of a GPU looks like a variant of
    its twin on the CPU, if it has one.
    """
    styles: dict[ModelSpec, ModelStyle] = {}
    seen: dict[str, int] = {}
    for model in sorted(set(models), key=rank):
        base = model.name.removeprefix("gpu_")
        first = FIRST.get(base, (base,))
        variant = first.index(str(model)) if str(model) in first else seen.setdefault(base, len(first))
        seen[base] = seen.get(base, len(first)) + (str(model) not in first)
        known = MODELS.get(base, model.model)
        hue = known.colors[variant % len(known.colors)]
        color, share = _HUES.get(hue, hue), _SHADES[variant // len(known.colors) % len(_SHADES)]
        if share:
            end, parts = 1.0 if share > 0 else 0.0, matplotlib.colors.to_rgb(color)
            color = tuple(part + abs(share) * (end - part) for part in parts)
        markers = known.markers
        styles[model] = ModelStyle(color, markers[variant % len(markers)], LINES[variant % len(LINES)])
    return styles


def blank_figure(column: str, tall: float) -> Figure:
    """Make a figure without panels, `tall` in inches."""
    figure = _Figure(figsize=(COLUMN_WIDTH_IN[column], tall), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


class _Figure(Figure):
    """A figure whose texts are drawn as wide as they were laid out, whatever the settings are by then."""

    def draw(self, renderer) -> None:
        with matplotlib.rc_context({"text.hinting": "none"}):
            super().draw(renderer)


def new_figure(
    column: str,
    panels: int,
    panel_height: float = 2.0,
    across: int = 0,
    share: str = "none",
    widths: Sequence[float] | None = None,
):
    """Make a figure with panels, `across` of them beside each other; without it all in a double column, and in a single
    one up to two below each other, or more in two columns."""
    across = across or (panels if column == "double" else 1 if panels < 3 else 2)
    down = math.ceil(panels / across)
    height = down * panel_height + BESIDE_IN
    figure = blank_figure(column, height if column == "double" else min(height, TALLEST_IN))
    widths = widths[:panels] if widths and across == panels else None
    axes = figure.subplots(down, across, squeeze=False, sharey=share, width_ratios=widths).ravel()
    for unused in axes[panels:]:
        unused.remove()
    axes = axes[:panels]
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.04, hspace=0.04)
    for axis, letter in zip(axes, string.ascii_lowercase, strict=False):
        axis.set_title(f"({letter})" if panels > 1 else "", fontweight="bold")
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def panel_title(axis, text: str) -> None:
    """Write a panel's title right above it: its letter, if it has one, in bold, the rest in normal weight."""
    letter = axis.get_title(loc="left") or axis.get_title()
    # Without y each layout would lay out all labels once more, to see whether they reach up to the title.
    axis.set_title(f"$\\bf{{{letter}}}$ {text}" if letter else text, fontweight="normal", y=1.0)


def add_legend(figure: Figure, column: str, handles: Sequence, columns: int | None = None) -> None:
    """Add one legend for all panels below them, in as many columns as its names leave room for."""
    if any(line.get_gid() == CROSSED and len(line.get_xdata()) for axis in figure.axes for line in axis.lines):
        handles = [*handles, mark_handle(**CROSS, label=CROSSED, size=6)]
    size, wrapped = (7, 60) if column == "double" else (6.5 if len(handles) <= MANY else 6, 30)
    names = [handle.get_label() for handle in handles]
    texts = [name if "\n" in name else textwrap.fill(name, wrapped) for name in names]
    lengths = [max(map(len, text.split("\n"))) for text in texts]
    ncols = min(columns or 5, len(handles))
    while ncols > 1 and _width_in(lengths, ncols, size) > COLUMN_WIDTH_IN[column]:
        ncols -= 1
    ncols = math.ceil(len(handles) / max(1, math.ceil(len(handles) / max(ncols, 1))))
    look = {"handletextpad": 0.5, "labelspacing": 0.3, "handlelength": 1.8, "columnspacing": 1.0, "fontsize": size}
    parts = np.array_split([text.count("\n") + 1 for text in texts], max(ncols, 1))
    grow(figure, LINE_IN * (max(map(sum, parts)) - 2))
    figure.legend(handles, texts, loc="outside lower center", ncols=max(ncols, 1), **look)


def grow(figure: Figure, by_in: float) -> None:
    """Make a figure taller, a single column up to `TALLEST_IN`."""
    tallest = TALLEST_IN if figure.get_figwidth() <= COLUMN_WIDTH_IN["single"] else math.inf
    figure.set_figheight(min(figure.get_figheight() + max(by_in, 0.0), tallest))


def write_lines(figure: Figure, lines: Sequence[str], column: str) -> None:
    """Write lines above the panels; long ones go on in a further line."""
    text = "\n".join(textwrap.fill(line, LINE[column]) for line in lines if line)
    grow(figure, LINE_IN * text.count("\n"))
    figure.suptitle(text, x=0.008, ha="left", fontsize=8 if column == "double" else 6.5, linespacing=1.25)


def _width_in(lengths: Sequence[int], ncols: int, size: float) -> float:
    """Return the width of a legend in inches, from the lengths of its names."""
    return sum(size / 7 * LETTER_IN * max(part) + ENTRY_IN for part in np.array_split(lengths, ncols) if len(part))


def finish(figure: Figure) -> Figure:
    """Compute the layout, once: saving would compute it again for each format."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis in figure.axes:
        names = {axis.get_title(loc="left"), axis.get_xlabel()} - {""}
        for text in axis.findobj(lambda artist, names=names: isinstance(artist, Text) and artist.get_text() in names):
            beyond = text.get_window_extent().x1 - figure.bbox.x1  # of a panel that is narrow beside long names
            if beyond > 0:
                text.set_x(text.get_position()[0] - beyond / axis.bbox.width)
    return figure


def marker_look(style: ModelStyle, hollow: bool = False) -> dict[str, object]:
    """Return the properties of a model's markers: full, or hollow where something else is measured."""
    look: dict[str, object] = {"marker": style.marker, "markeredgecolor": "white", "markeredgewidth": 0.4}
    return (
        look | {"markerfacecolor": "white", "markeredgecolor": style.color, "markeredgewidth": 0.9} if hollow else look
    )


def mark_handle(marker: str, color: object, label: str, size: float = 4, **look: object) -> Line2D:
    """Return the entry of a legend for a mark."""
    return Line2D([], [], linestyle="none", marker=marker, color=color, markersize=size, label=label, **look)


def save_asked(
    figure: Figure, folder: str | os.PathLike, stem: str, column: str, kind: str, out: str | None, caption: str
) -> Path:
    """Write the figure that a command was asked for, and its caption beside it, to `out`, whose folder must be there,
    or below the results' folder by its name; return its path. Raises `UsageError`: a file that cannot be written."""
    if out and not Path(out).parent.is_dir():
        raise UsageError(f"--file must be in a folder that is there, got {out!r}; make the folder first")
    path = Path(out) if out else Path(folder) / FIGURE_FOLDER / f"{stem}{'-single' * (column == 'single')}.{kind}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)
        write_atomically(path.with_suffix(".txt"), caption)
    except OSError as error:
        raise UsageError(f"the figure must be writable to {path}, got: {error.strerror}; choose --file") from None
    return path


def save_all(figure: Figure, stem: Path, formats: Sequence[str], text: str) -> str:
    """Write a figure of a report, as SVG, which is returned, and in the `formats` that are asked for or are there
    already, and a text beside it."""
    for kind in FORMATS:
        if kind == "svg" or kind in formats or Path(f"{stem}.{kind}").exists():
            save(figure, f"{stem}.{kind}")
    write_atomically(f"{stem}.txt", text)
    return Path(f"{stem}.svg").read_text(encoding="utf-8")


def save(figure: Figure, path: str | os.PathLike) -> Path:
    """Write a figure as PDF, SVG or PNG, by the name's ending; the same figure gives the same bytes. Raises
    `UsageError`: another ending, or a file that cannot be written."""
    path = Path(path)
    kind = path.suffix[1:]
    if kind not in FORMATS:
        raise UsageError(f"the format of a figure must be one of {', '.join(FORMATS)}; got {kind!r}")
    with in_style():
        write_figure(path, figure, metadata=FORMATS[kind])
    return path
