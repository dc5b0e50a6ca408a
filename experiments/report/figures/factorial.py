"""Figure `factorial`: step time of every cell of creation x barrier x placement, and what each switch contributes."""

from __future__ import annotations

from ...analysis.estimates import EQUIVALENCE_BAND
from ...analysis.factorial import effect_table, factorial_table
from ...analysis.speeds import row_is_usable
from ...analysis.sweep import Sweep
from ..words import blocks_text
from .chart import Chart, Panel, value_rows
from .style import COLORS, ModelStyle

RANK, ONE_FOR = 6, "plan"
EFFECT, WHOLE = "a switch", "all three"


def missing(sweep: Sweep, plan_id: str) -> str:
    """Return why the figure cannot be drawn."""
    cells = factorial_table(sweep)
    if len(cells) and plan_id in set(cells["plan_id"]):
        return ""
    return "a factorial needs every cell of creation x barrier x placement, got less; run replay_ladder.toml"


def chart(sweep: Sweep, plan_id: str) -> Chart:
    """Return the step time of every cell of creation x barrier x placement, and each switch's contribution."""
    cells, effects = (t[t["plan_id"] == plan_id] for t in (factorial_table(sweep), effect_table(sweep)))
    threads = int(cells["threads"].max())
    cells = cells[(cells["threads"] == threads) & (cells["note"] == "")]
    effects = effects[(effects["threads"] == threads) & (effects["kind"] == "attribution")]
    kinds = cells["creation"] + ", " + cells["placement"]
    cells = cells.assign(usable=[row_is_usable(sweep, row) for row in cells.to_dict("records")], model=kinds)
    styles = {kind: ModelStyle(COLORS[i], "os^"[i], "none") for i, kind in enumerate(dict.fromkeys(kinds))}
    styles |= {EFFECT: ModelStyle(COLORS[7], "o", "none"), WHOLE: ModelStyle("0.2", "o", "none")}
    named = effects.assign(model=effects["effect"].where(effects["effect"] == WHOLE, EFFECT)).rename(
        columns={"low": "ratio_low", "high": "ratio_high"}
    )
    panels = [
        Panel(value_rows(cells, "time_s", "barrier", 1e3), "step time (ms)", "all cells, by barrier"),
        Panel(value_rows(named, "ratio", "effect"), "time after / before", "attribution", "ratio"),
    ]
    facts = [sweep.problem_name(plan_id), blocks_text(sweep.plans[plan_id]), f"{threads} threads"]
    return Chart(panels, facts, styles)


def caption(sweep: Sweep, plan_id: str) -> list[str]:
    """Return the caption's sentences."""
    return [
        "(a) Step time by creation, barrier and placement of tasks; eager tasks cannot be partitioned. (b) Effect of "
        "each switch, its geometric mean over all orders of switching; the three multiply up to the whole.",
        f"Bars: 95 % intervals; grey: ± {EQUIVALENCE_BAND:.0%}.",
    ]
