"""The lines above the panels of a figure, which name the measured plan."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from ...analysis.sweep import Sweep
from ..words import blocks_text, t1_text
from .style import LINE_IN, grow

# So many characters of the header's size fit beside each other.
LINE = {"double": 115, "single": 62}


def write_lines(figure: Figure, lines: Sequence[str], column: str) -> None:
    """Write lines above the panels; long ones go on in a further line."""
    text = "\n".join(textwrap.fill(line, LINE[column]) for line in lines if line)
    grow(figure, LINE_IN * text.count("\n"))
    figure.suptitle(text, x=0.008, ha="left", fontsize=8 if column == "double" else 6.5, linespacing=1.25)


def plan_facts(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the plan, its blocks and T1."""
    return [sweep.problem_name(plan_id), blocks_text(sweep.plans[plan_id]), t1_text(sweep, plan_id, "$T_1$")]
