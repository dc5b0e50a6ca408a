"""How busy fork-join keeps its cores, and which share of what it loses other models recover.

E = serial time / (threads x time of fork-join), of the same blocks. No schedule of these blocks takes less than E of
fork-join's time, unless blocks themselves get faster; so (1 - ratio) / (1 - E) of what can be gained is recovered.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ..subjects.models import SERIAL
from .estimates import NOT_USABLE, SAME, UNDECIDED, Estimate
from .names import model_label, model_rank
from .speeds import compared, forkjoin_forms, interval_columns
from .sweep import Sweep, kept

SAID, MOST_SAID = ("tasks", "taskgraph", "taskiter"), 3  # models of the sentence: ours in their default form
LEAST_LOSS = 0.02  # of fork-join's time: shares of less are of noise


def busy_share(sweep: Sweep, plan_id: str, threads: int) -> Estimate | None:
    """Return E of the fastest fork-join form on a plan; None without such a form or a serial run of the plan."""
    forms = [(plan_id, form, threads) for form in forkjoin_forms(sweep, plan_id, threads)]
    serial = (plan_id, SERIAL, 1)
    if threads < 2 or not forms or serial not in sweep.turns:
        return None
    return sweep.ratio_to_fastest(serial, forms).divided_by(threads)


@kept
def recovered_table(sweep: Sweep) -> pd.DataFrame:
    """Return one row per plan, number of threads and model that runs tasks on the CPU.

    Columns: plan_id, threads, model, busy, busy_low, busy_high (E), ratio, ratio_low, ratio_high (over the fastest
    fork-join form), verdict, recovered (share of 1 - E; NaN where that is less than `LEAST_LOSS`), recovered_low,
    recovered_high (as far as both intervals allow).
    """
    rows: list[dict[str, Any]] = []
    for plan_id, model, threads in sweep.points():
        if model.name == "forkjoin" or model.is_gpu or model.is_peer or model.again or threads < 2:
            continue
        if (busy := busy_share(sweep, plan_id, threads)) is None:
            continue
        point = (plan_id, model, threads)
        forms = [(plan_id, form, threads) for form in forkjoin_forms(sweep, plan_id, threads)]
        _, ratio, verdict, *_ = compared(sweep, point, forms)
        known = 1 - busy.value >= LEAST_LOSS
        rows.append(
            {
                "plan_id": plan_id,
                "threads": threads,
                "model": model,
                **interval_columns("busy", busy),
                **interval_columns("ratio", ratio),
                "verdict": verdict,
                "recovered": (1 - ratio.value) / (1 - busy.value) if known else math.nan,
                "recovered_low": _share(1 - ratio.high, 1 - busy.high, 1 - busy.low) if known else math.nan,
                "recovered_high": -_share(ratio.low - 1, 1 - busy.high, 1 - busy.low) if known else math.nan,
            }
        )
    rows.sort(key=lambda row: (sweep.plan_ids().index(row["plan_id"]), row["threads"], model_rank(row["model"])))
    return pd.DataFrame(rows)


def _share(gain: float, loss_low: float, loss_high: float) -> float:
    """Return a gain over a loss, whichever end of the loss's interval makes it smaller; NaN if there may be no loss."""
    return min(gain / loss_low, gain / loss_high) if loss_low > 0 else math.nan


def recovered_text(sweep: Sweep, plan_id: str) -> str:
    """Say how busy fork-join keeps its cores on most threads, what each task model gains, and which share that is of
    what can be gained; nothing where there is no table, or fork-join has no interval."""
    table = recovered_table(sweep)
    rows = table[table["plan_id"] == plan_id].to_dict("records") if len(table) else []
    rows = [row for row in rows if row["threads"] == max(row["threads"] for row in rows)]
    if not rows or not math.isfinite(rows[0]["busy_low"]):
        return ""
    busy = rows[0]
    text = (
        f"Fork-join keeps its {busy['threads']} threads {busy['busy']:.0%} busy [{100 * busy['busy_low']:.0f}, "
        f"{100 * busy['busy_high']:.0f}]"
    )
    if busy["busy"] >= 1 - LEAST_LOSS:
        return f"{text}: there is nothing to gain, unless blocks themselves get faster."
    named = [row for row in rows if row["model"] in SAID] or rows
    models = "; ".join(_model_text(row) for row in named[:MOST_SAID])
    return f"{text}, so another schedule of the same blocks can save {1 - busy['busy']:.0%} at most. {models}."


def _model_text(row: dict[str, Any]) -> str:
    """Say what a model gains, in per cent of fork-join's time with the interval, and the share."""
    name, answer = model_label(row["model"]), row["verdict"].partition(",")[0]
    if answer in (UNDECIDED, NOT_USABLE, SAME):
        return f"{name}: {row['verdict']}"
    low, high = sorted((100 * abs(1 - row["ratio_high"]), 100 * abs(1 - row["ratio_low"])))
    differs = f"{100 * abs(1 - row['ratio']):.1f} % {'less' if row['ratio'] < 1 else 'more'}"
    text = f"{name} takes {differs} [{low:.1f}, {high:.1f}]"
    return f"{text}, {row['recovered']:.0%} of that" if row["ratio"] < 1 else text
