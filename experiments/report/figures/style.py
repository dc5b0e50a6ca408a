"""Style of figures: fonts, colours, sizes, legends, and saving.

Fit for a paper as they are: 8 pt, vector, colour-blind palette, the fonts of the user's matplotlib style (by default
the one that comes with matplotlib). The same rows give the same bytes: no dates, no random ids. Nothing here touches
pyplot's global state.
"""

from __future__ import annotations

import itertools
import math
import os
import string
import textwrap
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import matplotlib
import matplotlib.colors
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from matplotlib.lines import Line2D
from matplotlib.texmanager import TexManager
from matplotlib.ticker import FixedLocator

from ....cython_src.errors import UsageError
from ...analysis.names import model_label, model_rank
from ...results.files import write_atomically, write_figure
from ...subjects.models import MODELS, ModelSpec
from ...tables.progress import say

COLUMN_WIDTH_IN = {"double": 7.0, "single": 3.3}
TALLEST_IN = 4.0  # of a figure in a single column

FORMATS = ("pdf", "svg", "png")
FIGURE_FOLDER = "figures"  # below a results folder

COLORS = sns.color_palette("colorblind")

GREY = "0.45"

_HUES = dict(
    zip(("blue", "orange", "green", "red", "purple", "brown", "pink", "grey", "yellow", "sky"), COLORS, strict=True)
)

# Share of black (below 0) or white (above 0) in the colour of each further variant.
_SHADES = (0.0, -0.4, 0.4, -0.65, 0.6)

LINES = ("-", "--", "-.", ":")
# The mark over a point that must not be used, and the name by which the legend knows that there is one.
CROSS = {"marker": "x", "color": "black", "markeredgewidth": 0.9}
CROSSED = "not usable"
LINES_BESIDE = 14  # of a legend in the empty place of three panels


def marked(name: str, usable: bool) -> str:
    """Return the name of bars, which says so where they are not usable."""
    return name if usable else f"{name} (not usable)"


def in_style() -> AbstractContextManager[None]:
    """Return a context with the settings of every figure; fonts are those of the user's style."""
    parameters = {**sns.plotting_context("paper"), **sns.axes_style("ticks")}
    for name in ("font.family", "font.sans-serif"):
        del parameters[name]
    parameters.update(
        {
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
            "text.hinting": "none",  # measured as wide as it is drawn
            "svg.hashsalt": "forktask",
            "figure.constrained_layout.use": False,
            "savefig.dpi": 300,
            "figure.dpi": 100,
            "axes.unicode_minus": True,
        }
    )
    return matplotlib.rc_context({**parameters, **_replaced(str(matplotlib.rcParams.find_all(r"^(font|text)\.")))})


@lru_cache(maxsize=2)
def _replaced(settings: str) -> dict[str, object]:
    """Return settings in the place of those of the user's style with which nothing could be drawn here; say them once.

    Matplotlib draws nothing without the LaTeX that a style asks for, and warns of a missing font at each text.
    """
    found: dict[str, object] = {}
    fonts = matplotlib.rcParams["font.family"]
    if missing := [font for font in fonts if not _has_font(font)]:
        found["font.family"] = [font for font in fonts if font not in missing] or ["DejaVu Sans"]
        names = [name for font in missing for name in matplotlib.rcParams.get(f"font.{font}", [font])]
        say(f"figures are drawn without the font {' or '.join(names)} of your matplotlib style, which is not installed")
    if matplotlib.rcParams["text.usetex"]:
        try:
            TexManager.get_rgba("lp")
        except (OSError, RuntimeError) as error:
            found["text.usetex"] = False
            reason = str(error).partition("\n")[0]
            say(f"figures are drawn without LaTeX, which your matplotlib style asks for (text.usetex): {reason:.200}")
    return found


def _has_font(family: str) -> bool:
    try:
        return bool(findfont(FontProperties(family=[family]), fallback_to_default=False))
    except ValueError:
        return False


@dataclass(frozen=True)
class ModelStyle:
    """Colour, marker and line of a model, the same in every figure of a sweep."""

    color: object
    marker: str
    line: str


def model_styles(models: Sequence[ModelSpec]) -> dict[ModelSpec, ModelStyle]:
    """Assign colours and markers by model; shades of them, markers and lines by variant, in the models' fixed order.

    A model of a GPU looks like a variant of its twin on the CPU, if it has one.
    """
    styles: dict[ModelSpec, ModelStyle] = {}
    seen: dict[str, int] = {}
    for model in sorted(set(models), key=model_rank):
        base = model.name.removeprefix("gpu_")
        variant = seen.get(base, 0)
        seen[base] = variant + 1
        known = MODELS.get(base, model.model)
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


def blank_figure(column: str, tall: float) -> Figure:
    """Make a figure without panels, so many inches tall."""
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
    widths: Sequence[float] | None = None,
    rows: int = 1,
    heights: Sequence[float] | None = None,
):
    """Make a figure with panels side by side in `rows`; in a single column two of them are stacked, with these relative
    heights, and more stand in two columns: each row of a double column becomes one, or panels follow each other."""
    if column == "double":
        height = rows * panel_height + 0.95
        places = {"nrows": rows, "ncols": panels // rows, "width_ratios": widths}
    else:
        across = 1 if panels < 3 else 2
        down = math.ceil(panels / across)
        height = min(down * (panel_height - 0.15) + 1.05, TALLEST_IN)
        places = {"nrows": down, "ncols": across, "height_ratios": heights if across == 1 else None}
    figure = blank_figure(column, height)
    grid = figure.subplots(**places, squeeze=False)
    axes = (grid.T if column == "single" and rows > 1 else grid).ravel()
    for unused in axes[panels:]:
        unused.remove()
    axes = axes[:panels]
    figure.get_layout_engine().set(w_pad=0.03, h_pad=0.03, wspace=0.04, hspace=0.04)
    for axis, letter in zip(axes, string.ascii_lowercase, strict=False):
        axis.set_title(f"({letter})", fontweight="bold")
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def panel_title(axis, text: str, **look: object) -> None:
    """Write a panel's title right above it: its letter in bold, the rest in normal weight."""
    letter = axis.get_title(loc="left") or axis.get_title()
    # Without y each layout would lay out all labels once more, to see whether they reach up to the title.
    axis.set_title(f"$\\bf{{{letter}}}$ {text}", fontweight="normal", y=1.0, **look)


def add_legend(
    figure: Figure, column: str, handles: Sequence, columns: int | None = None, title: str | None = None
) -> None:
    """Add one legend for all panels: below them, or in the empty place of three panels in a single column."""
    if any(line.get_gid() == CROSSED and len(line.get_xdata()) for axis in figure.axes for line in axis.lines):
        handles = [*handles, Line2D([], [], linestyle="none", markersize=6, label=CROSSED, **CROSS)]
    look = {"handles": list(handles), "handletextpad": 0.5, "labelspacing": 0.3, "handlelength": 2.0, "title": title}
    if column == "double":
        look["columnspacing"] = 1.2
        tries = [(columns or 5, 7)]
    else:
        look |= {"columnspacing": 0.8, "handlelength": 1.6}
        lines = sum(1 + handle.get_label().count("\n") for handle in handles)
        if len(figure.axes) == 3 and lines <= LINES_BESIDE:
            corner = {"loc": "center left", "bbox_to_anchor": (0.53, 0, 0.47, 0.45), "fontsize": 6}
            legend = figure.legend(**look, **corner)
            if legend.get_window_extent().x1 <= figure.bbox.x1:
                legend.set_in_layout(False)
                return
            legend.remove()
        tries = [(3, 6.5), (2, 6.5), (2, 5.5)]
    for most, size in [*tries, *((most, tries[-1][1]) for most in range(tries[-1][0] - 1, 0, -1))]:
        rows = math.ceil(len(handles) / most)
        ncols = math.ceil(len(handles) / rows)
        legend = figure.legend(loc="outside lower center", ncols=ncols, fontsize=size, **look)
        if ncols == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def finish(figure: Figure, title: bool = True) -> Figure:
    """Leave out labels that a neighbour has too, fit the others to their panels, and compute the layout, once: saving
    would compute it again for each format. Without `title` the lines above the panels are left out."""
    if not title and figure._suptitle is not None:
        figure._suptitle.remove()
        figure._suptitle = None
    axes = {}
    for axis in figure.axes:
        place = axis.get_subplotspec()
        axes[place.rowspan.start, place.colspan.start] = axis
    for (row, column), axis in axes.items():
        below, left = axes.get((row + 1, column)), axes.get((row, column - 1))
        if below and axis.get_xlabel() == below.get_xlabel() and axis.get_xlim() == below.get_xlim():
            axis.xaxis.label.set_visible(False)
            axis.tick_params(axis="x", labelbottom=False)
        if left and axis.get_ylabel() == left.get_ylabel():
            axis.yaxis.label.set_visible(False)
            axis.yaxis.set_label_coords(0, 0.5)  # a layout looks for no other place, past all numbers
    layout = figure.get_layout_engine()
    layout.execute(figure)
    shown = [axis for axis in figure.axes if axis.get_visible()]
    fitted = [_fit(axis) for axis in shown]
    if any(fitted):
        layout.execute(figure)
    for axis in shown:
        _keep_inside(axis)
    figure.set_layout_engine(None)
    return figure


def _fit(axis) -> bool:
    """Make labels of y as small or as few as their panel needs; return whether anything changed."""
    box, label, changed = axis.get_window_extent(), axis.yaxis.label, False

    def is_tall() -> bool:
        return label.get_visible() and label.get_window_extent().height > 1.05 * box.height

    if is_tall() and "\n" not in (text := axis.get_ylabel()):
        label.set_text(textwrap.fill(text, math.ceil(len(text) / 2) + 3, break_long_words=False))
        label.set_fontsize(0.85 * label.get_fontsize())
        changed = True
    if is_tall():
        share = max(0.6, box.height / label.get_window_extent().height)
        label.set_fontsize(share * label.get_fontsize())
        changed = True
    ticks = [label for label in axis.get_yticklabels() if label.get_text()]
    middles = sorted((b.y0 + b.y1) / 2 for b in (t.get_window_extent() for t in ticks) if b.y1 > box.y0)
    gap = min((b - a for a, b in itertools.pairwise(middles)), default=math.inf) * 72 / axis.figure.dpi
    if ticks and gap < 1.2 * ticks[0].get_fontsize():
        changed = True
        if any(character.isalpha() for tick in ticks for character in tick.get_text()):  # names
            axis.tick_params(axis="y", labelsize=max(gap / 1.1, 4.5))
        else:
            low, high = sorted(axis.get_ylim())
            shown = [place for place in axis.get_yticks() if low <= place <= high]
            step = math.ceil(1.2 * ticks[0].get_fontsize() / gap)
            first = shown.index(1) % step if axis.get_yscale() == "log" and 1 in shown else 0  # a ratio of 1 stays
            axis.yaxis.set_major_locator(FixedLocator(shown[first::step]))
    return changed


def _keep_inside(axis) -> None:
    """Move a label of x or a title that would leave the figure on the right back in: layouts look at their height
    alone."""
    for one in (axis.xaxis.label, axis._left_title):
        if one.get_visible() and one.get_window_extent().x1 > axis.figure.bbox.x1:
            one.set(x=1, ha="right")


def marker_look(style: ModelStyle, hollow: bool = False) -> dict[str, object]:
    """Return the properties of a model's markers: full, or hollow where something else is measured."""
    look: dict[str, object] = {"marker": style.marker, "markeredgecolor": "white", "markeredgewidth": 0.4}
    return (
        look | {"markerfacecolor": "white", "markeredgecolor": style.color, "markeredgewidth": 0.9} if hollow else look
    )


def model_handles(
    styles: dict[ModelSpec, ModelStyle],
    models: Sequence[ModelSpec],
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


def figure_path(folder: str | os.PathLike, stem: str, column: str, kind: str, out: str | None) -> Path:
    """Return where a figure is written that a command was asked for: to `out`, or below its folder by its name."""
    return Path(out) if out else Path(folder) / FIGURE_FOLDER / f"{stem}{'-single' * (column == 'single')}.{kind}"


def save_asked(figure: Figure, path: Path, caption: str = "") -> None:
    """Write the figure that a command was asked for, in a folder that is made if need be, and a text beside it.

    Raises
    ------
    UsageError
        A file that cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)
        if caption:
            write_atomically(path.with_suffix(".txt"), caption)
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
    with in_style():
        write_figure(path, figure, metadata=metadata)
    return path
