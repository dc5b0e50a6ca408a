"""The results folder's summary, figures and one-page report, and the commands `forktask report` and `forktask plot`.

Everything is redrawn from `samples.jsonl` alone; running it again gives the same files.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ...cython_src.errors import UsageError
from ..analysis import factorial, interference
from ..analysis import study as analysis
from ..analysis.statistics import EQUIVALENCE_BAND, MIN_PAIRS
from ..analysis.study import Study, model_label
from . import plots
from .plots import format_time

FIGURE_FOLDER = "figures"
REPORT = "report.html"
SUMMARY = "summary.csv"


# --- how values are written -----------------------------------------------------------------------------------------


def _number(value: Any, digits: int = 2) -> str:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else f"{value:.{digits}f}"


def _time(value: float) -> str:
    return format_time(value) if math.isfinite(value) else ""


def _percent(value: float, digits: int = 0) -> str:
    return f"{value:.{digits}%}" if math.isfinite(value) else ""


def _interval(low: float, high: float, digits: int = 2) -> str:
    return f"[{low:.{digits}f}, {high:.{digits}f}]" if math.isfinite(low) and math.isfinite(high) else ""


def _count(value: Any) -> str:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else f"{int(value)}"


# A column: heading, function of the row (a mapping) that gives the text, whether it is a number.
Column = tuple[str, Callable[[Mapping[str, Any]], str], bool]

SPEED_COLUMNS: tuple[Column, ...] = (
    ("model", lambda r: model_label(r["model"]), False),
    ("threads", lambda r: _count(r["threads"]), True),
    ("n", lambda r: _count(r["repetitions"]), True),
    ("median", lambda r: _time(r["median_s"]), True),
    ("IQR", lambda r: _percent((r["upper_quartile_s"] - r["lower_quartile_s"]) / r["median_s"], 1), True),
    ("speedup", lambda r: _number(r["speedup"]), True),
    ("95% interval", lambda r: _interval(r["speedup_low"], r["speedup_high"]), True),
    ("efficiency", lambda r: _percent(r["efficiency"], 1), True),
    ("time / fork-join", lambda r: _number(r["ratio"], 3), True),
    ("95% interval", lambda r: _interval(r["ratio_low"], r["ratio_high"], 3), True),
    ("verdict", lambda r: r["verdict"], False),
)
OWN_BEST_COLUMNS: tuple[Column, ...] = (
    ("threads", lambda r: _count(r["threads"]), True),
    ("model", lambda r: model_label(r["model"]), False),
    ("its best granularity", lambda r: r["granularity"], False),
    ("median", lambda r: _time(r["median_s"]), True),
    ("speedup", lambda r: _number(r["speedup"]), True),
    ("time / fork-join at its best", lambda r: _number(r["ratio"], 3), True),
    ("95% interval", lambda r: _interval(r["ratio_low"], r["ratio_high"], 3), True),
    ("verdict", lambda r: r["verdict"], False),
)
LAYER_COLUMNS: tuple[Column, ...] = (
    ("layer", lambda r: r["layer"], False),
    ("phase", lambda r: r["phase"], False),
    ("blocks", lambda r: _count(r["blocks"]), True),
    ("time", lambda r: _time(r["time_s"]), True),
    ("share", lambda r: _percent(r["share"], 1), True),
    ("GFLOP/s", lambda r: _number(r["gflops"], 1) if r["flops"] else "", True),
    ("of peak", lambda r: _percent(r["peak_fraction"]) if r["flops"] else "", True),
)
COST_COLUMNS: tuple[Column, ...] = (
    ("model", lambda r: model_label(r["model"]), False),
    ("threads", lambda r: _count(r["threads"]), True),
    ("prepare", lambda r: _time(r["prepare_s"]), True),
    ("record", lambda r: _time(r["record_s"]), True),
    ("close", lambda r: _time(r["close_s"]), True),
    ("first replay", lambda r: _time(r["first_replay_s"]), True),
    ("step", lambda r: _time(r["step_s"]), True),
    ("break-even vs tasks", lambda r: str(r["break_even_tasks"]), True),
    ("vs fork-join", lambda r: str(r["break_even_forkjoin"]), True),
)
BOUND_COLUMNS: tuple[Column, ...] = (
    ("threads", lambda r: _count(r["threads"]), True),
    ("capacity", lambda r: _number(r["capacity"]), True),
    ("area", lambda r: _time(r["area_s"]), True),
    ("fork-join, placed at best", lambda r: _time(r["forkjoin_s"]), True),
    ("fork-join, static", lambda r: _time(r["forkjoin_static_s"]), True),
    ("max(area, span)", lambda r: _time(r["taskgraph_s"]), True),
    ("max(area, cycle mean)", lambda r: _time(r["taskiter_s"]), True),
)
ACCOUNT_COLUMNS: tuple[Column, ...] = (
    ("model", lambda r: model_label(r["model"]), False),
    ("threads", lambda r: _count(r["threads"]), True),
    ("measured", lambda r: _time(r["measured_s"]), True),
    ("work / serial work", lambda r: _number(r["inflation"], 3), True),
    (
        "floor",
        lambda r: {
            "forkjoin": "fork-join bound",
            "taskgraph": "max(area, span)",
            "taskiter": "max(area, cycle mean)",
            "area": "area",
        }[r["floor"]],
        False,
    ),
    ("its value", lambda r: _time(r["floor_s"]), True),
    ("excess", lambda r: _percent(r["excess"], 1), True),
    ("per barrier or task", lambda r: _time(r["per_unit_s"]), True),
    ("empty kernels", lambda r: _time(r["runtime_cost_s"]), True),
    ("left over", lambda r: _percent(r["unexplained"], 1), True),
)
FACTORIAL_COLUMNS: tuple[Column, ...] = (
    ("threads", lambda r: _count(r["threads"]), True),
    ("creation", lambda r: r["creation"], False),
    ("barrier", lambda r: r["barrier"], False),
    ("placement", lambda r: r["placement"], False),
    ("median", lambda r: _time(r["median_s"]), True),
    ("time / first cell", lambda r: _number(r["ratio"], 3), True),
    ("95% interval", lambda r: _interval(r["ratio_low"], r["ratio_high"], 3), True),
    ("", lambda r: r["note"], False),
)
EFFECT_COLUMNS: tuple[Column, ...] = (
    ("threads", lambda r: _count(r["threads"]), True),
    ("kind", lambda r: r["kind"], False),
    ("effect", lambda r: r["effect"], False),
    ("time after / before", lambda r: _number(r["ratio"], 3), True),
    ("95% interval", lambda r: _interval(r["low"], r["high"], 3), True),
    ("share", lambda r: _percent(r["share"]), True),
    ("verdict", lambda r: r["verdict"] + r["note"], False),
)
INTERFERENCE_COLUMNS: tuple[Column, ...] = (
    ("hogs", lambda r: _count(r["hogs"]), True),
    ("model", lambda r: model_label(r["model"]), False),
    ("preemption", lambda r: r["preemption"], False),
    ("CPU swaps per s", lambda r: _number(r["cpu_swaps_per_s"], 0), True),
    ("threads", lambda r: _count(r["threads"]), True),
    ("capacity left", lambda r: _number(r["capacity"], 3), True),
    ("slowdown", lambda r: _number(r["slowdown"], 3), True),
    ("95% interval", lambda r: _interval(r["slowdown_low"], r["slowdown_high"], 3), True),
    ("loss beyond capacity", lambda r: _percent(r["loss"], 1), True),
)
DISTURBANCE_COLUMNS: tuple[Column, ...] = (
    ("model", lambda r: model_label(r["model"]), False),
    ("threads", lambda r: _count(r["threads"]), True),
    ("CPU pressure (ms)", lambda r: _number(r["pressure_some_us"] / 1e3, 1), True),
    ("steal (ticks)", lambda r: _count(r["steal_ticks"]), True),
    ("forced switches", lambda r: _count(r["nonvoluntary_switches"]), True),
    ("throttled (ms)", lambda r: _number(r["throttled_us"] / 1e3, 1), True),
)
FAILURE_COLUMNS: tuple[Column, ...] = (
    ("model", lambda r: model_label(r["model"]), False),
    ("threads", lambda r: _count(r["threads"]), True),
    ("plan", lambda r: r["plan_name"], False),
    ("reason", lambda r: r["reason"], False),
    ("message", lambda r: r["message"], False),
)


def _cells(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> tuple[list[Column], list[list[str]]]:
    """The table as text, without columns that are empty in every row."""
    table = [[text(row) for _, text, _ in columns] for row in rows]
    used = [i for i in range(len(columns)) if any(line[i] for line in table)]
    return [columns[i] for i in used], [[line[i] for i in used] for line in table]


def table_records(table: pd.DataFrame, plan_id: str | None = None) -> list[dict]:
    """Rows of a table of analysis.py, of one plan only where one is named."""
    if not len(table):
        return []
    return (table if plan_id is None else table[table["plan_id"] == plan_id]).to_dict("records")


def _failures(study: Study) -> list[dict]:
    return [
        {
            **row,
            "plan_name": analysis.problem_name(study.plans[row["plan_id"]])
            if row.get("plan_id") in study.plans
            else "",
        }
        for row in study.failures
    ]


def _plan_title(plan: Mapping[str, Any]) -> str:
    return f"{analysis.problem_name(plan)}; {plots.blocks_text(plan)}"


def headline(study: Study, plan_id: str) -> list[str]:
    """The answers of one plan at its largest number of threads, a sentence for each task model."""
    table = analysis.speed_table(study)
    table = table[(table["plan_id"] == plan_id) & table["model"].map(analysis.base_model).isin(analysis.TASK_MODELS)]
    table = table[table["verdict"] != ""]
    sentences = []
    for row in table[table["threads"] == table["threads"].max()].to_dict("records"):
        against = f"{model_label(row['reference'])} on {row['threads']} threads"
        ratio = f"time ratio {row['ratio']:.3f}, 95% interval {_interval(row['ratio_low'], row['ratio_high'], 3)}"
        words = {
            "faster": f"faster than {against}",
            "slower": f"slower than {against}",
            "same": f"the same as {against}, within {EQUIVALENCE_BAND:.0%}",
            "not enough data": f"not told apart from {against}: not enough data",
        }[row["verdict"]]
        ratio = ratio.removesuffix(", 95% interval ")
        sentences.append(f"{model_label(row['model'])} is {words} ({ratio}).")
    return sentences


# --- terminal -------------------------------------------------------------------------------------------------------


def text_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines of a table for the terminal."""
    columns, table = _cells(columns, rows)
    widths = [max(len(head), *(len(line[i]) for line in table)) for i, (head, _, _) in enumerate(columns)]

    def write(line):
        cells = [t.rjust(w) if c[2] else t.ljust(w) for t, w, c in zip(line, widths, columns, strict=True)]
        return "  ".join(cells).rstrip()

    return [write([c[0] for c in columns]), "  ".join("-" * w for w in widths), *map(write, table)]


def summary_text(out_dir: str | os.PathLike) -> str:
    """The tables that `compare` and `report` print.

    Raises
    ------
    UsageError
        See `analysis.study_from_rows`.
    """
    return _summary_text(analysis.load(out_dir))


def _summary_text(study: Study) -> str:
    lines: list[str] = []
    if study.smoke_test:
        lines += [plots.data_warning(study), ""]
    speeds, costs = (analysis.speed_table(study), analysis.cost_table(study)) if len(study.samples) else (None, None)
    for plan_id in study.plan_ids():
        lines += [_plan_title(study.plans[plan_id]), plots.t1_text(study, plan_id), ""]
        lines += text_table(SPEED_COLUMNS, table_records(speeds, plan_id)) + [""]
        layers = analysis.layer_table(study, plan_id)
        if len(layers):
            lines += ["Layers, serial:", *text_table(LAYER_COLUMNS, table_records(layers)), ""]
        if costs["prepare_s"].notna().any():
            lines += [
                "One-time costs, and iterations until they are earned back:",
                *text_table(COST_COLUMNS, table_records(costs, plan_id)),
                "",
            ]
        accounts = table_records(analysis.accounting_table(study), plan_id)
        if accounts:
            lines += [
                "Measured time against the floor from its own block durations:",
                *text_table(ACCOUNT_COLUMNS, accounts),
                "",
            ]
        cells = table_records(factorial.factorial_table(study), plan_id)
        if cells:
            lines += [
                "Creation x barrier x placement:",
                *text_table(FACTORIAL_COLUMNS, cells),
                "",
                "What each switch contributes:",
                *text_table(EFFECT_COLUMNS, table_records(factorial.effect_table(study), plan_id)),
                "",
                factorial.answer(study, plan_id),
            ]
        beside = [r for r in table_records(interference.interference_table(study), plan_id) if r["hogs"]]
        if beside:
            lines += ["Beside other processes:", *text_table(INTERFERENCE_COLUMNS, beside), ""]
        lines += headline(study, plan_id)
        lines += [""]
    own_best = analysis.own_best_table(study) if len(study.samples) else pd.DataFrame()
    if len(own_best):
        lines += [
            "Each model at its own best granularity:",
            *text_table((("problem", lambda r: r["problem"], False), *OWN_BEST_COLUMNS), table_records(own_best)),
            "",
        ]
    if study.failures:
        lines += ["Not measured:", *text_table(FAILURE_COLUMNS, _failures(study)), ""]
    if not len(study.samples):
        lines += ["No sample was measured.", ""]
    lines += study.warnings
    return "\n".join(lines).rstrip() + "\n"


def _plain(value: Any) -> Any:
    """A value that JSON can hold: NaN becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if hasattr(value, "item") else value


def summary_json(out_dir: str | os.PathLike) -> dict:
    """The same tables as lists of rows with raw numbers (seconds, ratios), fit for `json.dumps`."""
    return _summary_json(analysis.load(out_dir))


def _summary_json(study: Study) -> dict:
    def rows(table: pd.DataFrame) -> list[dict]:
        return [{key: _plain(value) for key, value in row.items()} for row in table_records(table)]

    answer: dict[str, Any] = {
        "data": study.data,
        "smoke_test": study.smoke_test,
        "warnings": study.warnings,
        "failures": [
            {k: row.get(k) for k in ("model", "threads", "plan_id", "reason", "message")} for row in study.failures
        ],
        "equivalence_band": EQUIVALENCE_BAND,
        "environment_id": study.run.get("environment_id"),
    }
    if len(study.samples):
        answer.update(
            speed=rows(analysis.speed_table(study)),
            own_best=rows(analysis.own_best_table(study)),
            floors=rows(analysis.floor_table(study)),
            bounds=rows(analysis.bound_table(study)),
            accounting=rows(analysis.accounting_table(study)),
            costs=rows(analysis.cost_table(study)),
            disturbances=rows(analysis.disturbance_table(study)),
            factorial=rows(factorial.factorial_table(study)),
            effects=rows(factorial.effect_table(study)),
            interference=rows(interference.interference_table(study)),
            layers={plan_id: rows(analysis.layer_table(study, plan_id)) for plan_id in study.plan_ids()},
        )
    return answer


# --- page -----------------------------------------------------------------------------------------------------------

_STYLE = """
:root { --ink: #1a1a1a; --soft: #5f6368; --line: #dadce0; --blue: #0173b2; --red: #b34700; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 68rem; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .4rem 0; } .soft, figcaption { color: var(--soft); } code { font-size: .92em; overflow-wrap: anywhere; }
.banner { margin: 1rem 0; padding: .55rem .8rem; border-left: 4px solid var(--red); background: #fdf3ec; }
figure { margin: 1rem 0 1.8rem; } figure svg { display: block; width: 100%; height: auto; max-width: 60rem; }
figcaption { font-size: .84rem; line-height: 1.45; margin-top: .4rem; max-width: 60rem; }
.note { margin: 1rem 0; padding: .55rem .8rem; border-left: 4px solid var(--line); background: #f6f7f8; }
.wide { overflow-x: auto; } td:first-child { white-space: nowrap; } table { border-collapse: collapse; font-size: .86rem; margin: .3rem 0 .8rem; }
th { text-align: left; font-weight: 600; vertical-align: bottom; border-bottom: 1.5px solid var(--ink); }
th, td { padding: .22rem .75rem .22rem 0; } td { border-bottom: 1px solid #eceff1; vertical-align: top; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.verdict { white-space: nowrap; font-weight: 600; } .faster { color: var(--blue); } .slower { color: var(--red); }
.same, .not { color: var(--soft); font-weight: 400; }
ul { margin: .4rem 0; padding-left: 1.2rem; } li { margin: .15rem 0; } details { margin: .4rem 0; }
summary { cursor: pointer; } dl { margin: .3rem 0; } dt { font-weight: 600; margin-top: .4rem; } dd { margin: 0; }
@media print { body { padding: 0; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; } }
"""

_HOW_TO_READ = (
    (
        "speedup",
        "Time of the fastest serial run of the same network and batch, at any granularity, over the time of "
        "this run; ratios are taken within each repetition block, and their median is shown.",
    ),
    ("efficiency", "Speedup divided by the number of threads."),
    (
        "time / fork-join",
        "Time over that of the better fork-join form of the same plan on as many threads. Below 1 is faster.",
    ),
    (
        "verdict",
        f"same: the 95% interval of the ratio lies within {EQUIVALENCE_BAND:.0%} of 1. faster, slower: it lies "
        f"wholly below, above 1 and is not the same. not enough data: fewer than {MIN_PAIRS} pairs, or an "
        f"interval that holds 1 and reaches beyond {EQUIVALENCE_BAND:.0%}. Each verdict stands alone: of twenty "
        f"comparisons of equals, expect about one to be wrong.",
    ),
    (
        "95% interval",
        "Of the median, for any distribution: the wider of bootstrap and sign test. With fewer than six "
        "repetitions it reaches from the lowest to the highest and holds the median in 94% of cases with "
        "five, 88% with four, 75% with three only: give --repeats 6 or more for full cover.",
    ),
    (
        "FLOP floor, roofline floor",
        "Operations over one thread's measured FMA peak; sum over loops of max(operations / "
        "peak, bytes / bandwidth). Operations are those of direct convolutions: Winograd's "
        "form needs fewer and may pass both. Otherwise a roofline ratio below 1 means that "
        "data stayed in caches which are faster than the measured memory.",
    ),
    (
        "area, fork-join bound, span, cycle mean",
        "Floors on the time of a step from the blocks' durations: all work "
        "spread evenly; the same loop by loop with a barrier; the longest chain of dependent blocks in a step; the "
        "longest cycle of the graph closed over steps, per step, below which no number of threads helps.",
    ),
    (
        "share",
        "In the table of creation, barrier and placement: part of the whole change, in logarithms, that an "
        "attribution stands for; of layers: part of the serial time.",
    ),
    (
        "excess",
        "Measured time beyond the floor computed from the same run's own block durations: barriers, task "
        "handling, and waiting because durations vary (bounds are computed from mean durations).",
    ),
    (
        "empty kernels",
        "Time of the same graph under the same model with kernels that do nothing: its barriers or tasks.",
    ),
    ("left over", "Excess less the time with empty kernels, relative to the floor: what neither explains."),
    (
        "break-even",
        "Smallest number of iterations after which recording and closing the graph have paid for "
        "themselves; never: the step itself is slower; undecided: the step times do not differ clearly.",
    ),
    ("IQR", "Distance between the quartiles of the step times, relative to the median."),
)


def _html_table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> str:
    columns, table = _cells(columns, rows)
    head = "".join(f"<th{' class=n' if number else ''}>{html.escape(name)}</th>" for name, _, number in columns)
    lines = []
    for line in table:
        cells = []
        for (name, _, number), text in zip(columns, line, strict=True):
            kind = f"verdict {text.split(' ')[0]}" if name == "verdict" and text else "n" if number else ""
            cells.append(f"<td{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{html.escape(text)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{chr(10).join(lines)}\n</tbody></table></div>'
    )


def inline_svg(svg: str, prefix: str, title: str) -> str:
    """An SVG file's text for use inside a page: no prolog, no metadata, ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)


def _environment_rows(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Leaves of the environment as (dotted name, text)."""
    if isinstance(value, Mapping) and value:
        return [row for key in value for row in _environment_rows(value[key], f"{name}.{key}" if name else str(key))]
    if isinstance(value, (list, tuple)) and any(isinstance(v, (Mapping, list)) for v in value):
        return [row for i, v in enumerate(value) for row in _environment_rows(v, f"{name}[{i}]")]
    if isinstance(value, (list, tuple)):
        return [(name, " ".join(map(str, value)))]
    return [(name, "" if value is None else str(value))]


def _html_page(study: Study, figures: Sequence[tuple[str, str, str, str]]) -> str:
    """The page. `figures` holds (plan_id, name, svg text, caption)."""
    run = study.run
    problems = list(dict.fromkeys(analysis.problem_name(study.plans[p]) for p in study.plan_ids()))
    title = "; ".join(problems) or "no samples"
    out = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>forktask: {html.escape(title)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Fork-join against tasks</h1>",
        f"<p>{html.escape(title)}</p>",
        f'<p class="soft">{html.escape(str(run.get("created", "")))} · <code>{html.escape(_command(run))}</code></p>',
    ]
    if study.smoke_test:
        out.append(
            f'<p class="{"note" if study.data == "synthetic" else "banner"}">'
            f"{html.escape(plots.data_warning(study))}</p>"
        )
    out += [f'<p class="banner">{html.escape(text)}</p>' for text in study.warnings]
    if not len(study.samples):
        out.append("<p>No sample was measured.</p>")
    speeds = analysis.speed_table(study) if len(study.samples) else pd.DataFrame()
    for plan_id in study.plan_ids():
        plan = study.plans[plan_id]
        out += [f"<h2>{html.escape(_plan_title(plan))}</h2>", f"<p>{html.escape(plots.t1_text(study, plan_id))}</p>"]
        answers = headline(study, plan_id)
        if answers:
            out.append("<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in answers) + "</ul>")
        shown = [f for f in figures if f[0] == plan_id]
        out += [_html_figure(*f[1:], prefix=f"{plan_id}-{f[1]}") for f in shown if f[1] == "speedup"]
        out += [
            "<h3>Every model and number of threads</h3>",
            _html_table(SPEED_COLUMNS, table_records(speeds, plan_id)),
        ]
        out += [_html_figure(*f[1:], prefix=f"{plan_id}-{f[1]}") for f in shown if f[1] in ("batch", "granularity")]
        layers = analysis.layer_table(study, plan_id)
        if len(layers):
            out += ["<h3>Layers, serial</h3>", _html_table(LAYER_COLUMNS, table_records(layers))]
        out += [_html_figure(*f[1:], prefix=f"{plan_id}-{f[1]}") for f in shown if f[1] == "layers"]
        costs = table_records(analysis.cost_table(study), plan_id)
        if any(math.isfinite(row["prepare_s"]) for row in costs):
            out += [
                "<h3>One-time costs, and iterations until they are earned back</h3>",
                _html_table(COST_COLUMNS, costs),
            ]
        out += [_html_figure(*f[1:], prefix=f"{plan_id}-{f[1]}") for f in shown if f[1] == "overhead"]
        limits = table_records(analysis.bound_table(study), plan_id)
        if limits:
            out += [
                "<h3>Floors on the time of a step, from serial block durations</h3>",
                _html_table(BOUND_COLUMNS, limits),
            ]
        accounts = table_records(analysis.accounting_table(study), plan_id)
        if accounts:
            out += [
                "<h3>Measured time against the floor from its own block durations</h3>",
                _html_table(ACCOUNT_COLUMNS, accounts),
            ]
        cells = table_records(factorial.factorial_table(study), plan_id)
        if cells:
            out += [
                "<h3>Creation, barrier and placement of tasks</h3>",
                f"<p>{html.escape(factorial.answer(study, plan_id))}</p>",
            ]
            out += [_html_figure(*f[1:], prefix=f"{plan_id}-{f[1]}") for f in shown if f[1] == "factorial"]
            out += [
                _html_table(FACTORIAL_COLUMNS, cells),
                _html_table(EFFECT_COLUMNS, table_records(factorial.effect_table(study), plan_id)),
            ]
        beside = [r for r in table_records(interference.interference_table(study), plan_id) if r["hogs"]]
        if beside:
            out += ["<h3>Beside other processes</h3>"]
            out += [_html_figure(*f[1:], prefix=f"{plan_id}-{f[1]}") for f in shown if f[1] == "interference"]
            out += [_html_table(INTERFERENCE_COLUMNS, beside)]
        out += [
            "<h3>Disturbances, sums over all repetitions</h3>",
            _html_table(DISTURBANCE_COLUMNS, table_records(analysis.disturbance_table(study), plan_id)),
        ]
    own_best = analysis.own_best_table(study) if len(study.samples) else pd.DataFrame()
    if len(own_best):
        out += ["<h2>Each model at its own best granularity</h2>"]
        for problem, group in own_best.groupby("problem", sort=False):
            out += [f"<h3>{html.escape(problem)}</h3>", _html_table(OWN_BEST_COLUMNS, table_records(group))]
    out.append("<h2>Not measured</h2>")
    out.append(
        _html_table(FAILURE_COLUMNS, _failures(study))
        if study.failures
        else "<p>No configuration ran out of time or memory, crashed or computed other weights.</p>"
    )
    out.append("<h2>How to read this page</h2><dl>")
    out += [f"<dt>{html.escape(word)}</dt><dd>{html.escape(text)}</dd>" for word, text in _HOW_TO_READ]
    out.append("</dl><h2>Environment</h2>")
    machine = plots.machine_text(study)
    if machine:
        out.append(f"<p>{html.escape(machine)}</p>")
    rows = _environment_rows(study.environment)
    cells = "\n".join(f"<tr><td>{html.escape(n)}</td><td><code>{html.escape(t)}</code></td></tr>" for n, t in rows)
    out.append(
        f"<details><summary>All {len(rows)} entries (environment "
        f"<code>{html.escape(str(run.get('environment_id', '')))}</code>)</summary>"
        f'<div class="wide"><table><tbody>\n{cells}\n</tbody></table></div></details>'
    )
    out.append("</body></html>")
    return "\n".join(out) + "\n"


def _command(run: Mapping[str, Any]) -> str:
    command = run.get("command", "")
    return " ".join(map(str, command)) if isinstance(command, (list, tuple)) else str(command)


def _html_figure(name: str, svg: str, text: str, prefix: str) -> str:
    return f"<figure>{inline_svg(svg, prefix, name)}<figcaption>{html.escape(text)}</figcaption></figure>"


# --- files ----------------------------------------------------------------------------------------------------------


def _stem(study: Study, plan_id: str, figure: str) -> str:
    """File name of a figure: the plain name for the main plan, with the plan's description for the others."""
    if plan_id == analysis.main_plan(study):
        return figure
    plan = study.plans[plan_id]
    words = f"{figure}-{plan['network']}-batch{plan['batch']}-{plan['phase']}-{plan.get('granularity', '')}"
    same = [
        p
        for p in study.plan_ids()
        if p != plan_id
        and analysis.problem_of(study.plans[p]) == analysis.problem_of(plan)
        and study.plans[p].get("granularity") == plan.get("granularity")
    ]
    if plan.get("interference"):
        words += f"-hogs{plan['interference']}"
    return re.sub(r"[^A-Za-z0-9_.=-]+", "_", words).strip("_-") + (f"-{plan_id}" if same else "")


def write_report(out_dir: str | os.PathLike, formats: Sequence[str] = plots.FORMATS) -> Path:
    """Write summary.csv, the figures with their captions, and report.html into a results folder.

    Parameters
    ----------
    out_dir : path
        Holds samples.jsonl.
    formats : sequence of str
        Of `plots.FORMATS`; figures of plans other than the main one are written as SVG only.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    UsageError
        Rows that must not be compared (see `analysis.study_from_rows`), or a folder that cannot be written. Files of
        an earlier report are then left as they are.
    """
    study = analysis.load(out_dir)
    return _write_report(study, Path(out_dir), formats)


def _write_report(study: Study, out_dir: Path, formats: Sequence[str]) -> Path:
    folder = out_dir / FIGURE_FOLDER
    drawn: list[tuple[str, str, str, str]] = []
    try:
        folder.mkdir(exist_ok=True)
        for plan_id in study.plan_ids():
            main = plan_id == analysis.main_plan(study)
            for name in plots.available_figures(study, plan_id):
                if name in ("batch", "granularity") and not main:
                    continue
                figure, text = plots.draw(study, name, plan_id), plots.caption(study, name, plan_id)
                stem = folder / _stem(study, plan_id, name)
                for kind in sorted({"svg", *(formats if main else ())}):
                    plots.save(figure, f"{stem}.{kind}")
                Path(f"{stem}.txt").write_text(text + "\n", encoding="utf-8")
                drawn.append((plan_id, name, Path(f"{stem}.svg").read_text(encoding="utf-8"), text))
        if len(study.samples):
            analysis.speed_table(study).to_csv(out_dir / SUMMARY, index=False, float_format="%.9g", lineterminator="\n")
        page = out_dir / REPORT
        page.write_text(_html_page(study, drawn), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the report must be writable to {str(out_dir)!r}, got: {error.strerror}; copy the folder to another place"
        ) from None
    return page


# --- commands -------------------------------------------------------------------------------------------------------


def report_folder(folder: str, as_json: bool = False) -> str:
    """Write summary, figures and report.html again, and return the tables, as text or JSON."""
    study = analysis.load(folder)
    page = _write_report(study, Path(folder), plots.FORMATS)
    if as_json:
        return json.dumps({**_summary_json(study), "report": str(page)}, indent=2)
    return f"{_summary_text(study)}\nReport: {page}"


def report_on_sweep(out_dir: str, as_json: bool = False) -> str:
    """Write summary, figures and report.html of a sweep, and return the tables, as text or JSON."""
    write_report(out_dir)
    if as_json:
        return json.dumps(summary_json(out_dir), indent=1)
    return f"{summary_text(out_dir)}\n\n{out_dir}: samples.jsonl, summary.csv, figures, report.html"


def plot_folder(
    folder: str,
    figure: str = "speedup",
    *,
    column: str = "double",
    kind: str = "pdf",
    plan: str | None = None,
    out: str | None = None,
) -> Path:
    """Draw one figure, with its caption beside it, and return its path.

    Parameters
    ----------
    folder : str
        Results folder.
    figure : str
    column : {"double", "single"}
    kind : {"pdf", "svg", "png"}
    plan : str, optional
        First characters of a plan's id; default: the one with most samples.
    out : str, optional
        Default: figures/NAME[-single].KIND in the folder.

    Raises
    ------
    UsageError
        No such figure, plan or format, or a file that cannot be written.
    """
    study = analysis.load(folder)
    plan_id = _chosen_plan(study, plan)
    if kind not in plots.FORMATS:
        raise UsageError(f"--format must be one of {', '.join(plots.FORMATS)}; got {kind!r}")
    drawn = plots.draw(study, figure, plan_id, column)
    single = "-single" if column == "single" else ""
    path = Path(out) if out else Path(folder) / FIGURE_FOLDER / f"{_stem(study, plan_id, figure)}{single}.{kind}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plots.save(drawn, path)
        path.with_suffix(".txt").write_text(plots.caption(study, figure, plan_id) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the figure must be writable to {path}, got: {error.strerror}; choose --out") from None
    return path


def _chosen_plan(study: Study, prefix: str | None) -> str:
    if not prefix:
        return analysis.main_plan(study)
    found = [p for p in study.plan_ids() if p.startswith(prefix)]
    if len(found) != 1:
        known = "; ".join(f"{p}: {_plan_title(study.plans[p])}" for p in study.plan_ids())
        raise UsageError(f"--plan must begin exactly one plan's id, got {prefix!r}; plans are {known}")
    return found[0]
