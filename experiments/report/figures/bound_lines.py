"""Bounds as thin grey lines with their intervals, for all figures that show time, speedup or efficiency."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import numpy as np
import pandas as pd

from ...analysis.limits import BOUND_NAMES, bound_of
from ...subjects.models import ModelSpec
from .style import GREY, ModelStyle

ALIKE = 0.005  # bounds that differ by less at every number of threads are one line with two names
_DASHES = {"area": (4, 2), "forkjoin": (1, 1.2), "taskgraph": (6, 1.5, 1, 1.5), "taskiter": (8, 1.5), "brent": (2, 3)}
_SHORT = {"area": "area", "forkjoin": "fork-join", "taskgraph": "span", "taskiter": "cycle mean", "brent": "Brent"}


def bound_rows(limits: pd.DataFrame, models: Iterable[ModelSpec], kind: str = "speedup", x: str = "threads"):
    """Return rows of a panel with the bounds that hold for some of the models; those that coincide are one line.

    Parameters
    ----------
    limits : DataFrame
        Rows like those of `bound_table`, one for each value of `x`; may be empty.
    kind : str
        "speedup" or "s", as the columns end.
    x : str
        Column of the horizontal axis.

    Returns
    -------
    rows : DataFrame
        model (the name of the bound, or of several), x, value, low, high.
    styles : dict
        Look of each name.
    """
    held = {bound_of(model) for model in models if not (model.is_gpu or model.is_peer)}
    area = {"area"} if held else set()
    wanted = [n for n in _DASHES if n in {*area, *held} or (n == "brent" and "taskgraph" in held)]
    limits = limits.sort_values(x) if len(limits) else limits
    lines: list[tuple[list[str], pd.DataFrame]] = []
    for name in wanted:
        if f"{name}_{kind}" not in limits or not np.isfinite(limits[f"{name}_{kind}"].astype(float)).all():
            continue  # of a phase alone, or without a serial profile
        ends = {end or "_value": limits[f"{name}_{kind}{end}"].astype(float) for end in ("", "_low", "_high")}
        rows = pd.DataFrame({"x": limits[x], **{end[1:]: values for end, values in ends.items()}})
        same = [names for names, other in lines if np.allclose(rows["value"], other["value"], rtol=ALIKE, atol=0)]
        same[0].append(name) if same else lines.append(([name], rows))
    styles = {_label(names): ModelStyle(GREY, "", (0, _DASHES[names[0]])) for names, _ in lines}
    return pd.concat([_NONE, *(rows.assign(model=_label(names)) for names, rows in lines)]), styles


_NONE = pd.DataFrame({name: pd.Series(dtype=object if name == "model" else float) for name in ("model", "x", "value")})


def _label(names: list[str]) -> str:
    """Return the entry of the legend."""
    if len(names) == 1:
        return BOUND_NAMES[names[0]]
    return textwrap.fill(f"bounds: {', '.join(_SHORT[name] for name in names)}", 26)
