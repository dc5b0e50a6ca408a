"""The lines above the panels of a figure, which name the measured plan."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from ...analysis.speeds import scope
from ...analysis.sweep import Sweep
from ..words import blocks_text, data_text, t1_text

# So many characters of the header's size fit beside each other.
LINE = {"double": 115, "single": 62}


def header(figure: Figure, sweep: Sweep, facts: Sequence[str], column: str) -> None:
    """Write facts above the panels, and for what ratios hold, as many in a line as it holds: each fact whole, unless
    that takes further lines."""
    facts = [*facts, scope(sweep), *([data_text(sweep)] if sweep.smoke_test else [])]
    whole = "; ".join(fact.replace(" ", "\xa0") if len(fact) < LINE[column] else fact for fact in facts)
    broken = whole.replace("\xa0", " ")
    lines = {text: len(textwrap.wrap(text, LINE[column])) for text in (whole, broken)}
    write_lines(figure, [min(lines, key=lines.__getitem__)], column)


def write_lines(figure: Figure, lines: Sequence[str], column: str) -> None:
    """Write lines above the panels; long ones go on in a further line."""
    figure.suptitle(
        "\n".join(textwrap.fill(line, LINE[column]) for line in lines if line).replace("\xa0", " "),
        x=0.008,
        ha="left",
        fontsize=8 if column == "double" else 6.5,
        linespacing=1.25,
    )


def plan_header(figure: Figure, sweep: Sweep, plan_id: str, column: str) -> None:
    """Write the plan, its blocks and T1 above the panels."""
    plan = sweep.plans[plan_id]
    facts = [sweep.problem_name(plan_id), blocks_text(plan), t1_text(sweep, plan_id, "$T_1$")]
    header(figure, sweep, facts, column)
