"""The report's sections, built once from a sweep; three renderers write them as text, JSON and HTML.

A new table is a `Table` in a section here and its columns in columns.py; a new figure is a file in figures/, and its
name in the section that shows it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd

from ..analysis import factorial
from ..analysis.accounting import accounting_table, faster_blocks, layer_table, remarks
from ..analysis.costs import cost_table
from ..analysis.counters import block_counts, block_sentences, counter_sentences, counter_table
from ..analysis.estimates import EQUIVALENCE_BAND
from ..analysis.gpu import gpu_table
from ..analysis.handovers import handover_table
from ..analysis.interference import interference_table
from ..analysis.limits import bound_table, floor_table
from ..analysis.memory import memory_table
from ..analysis.names import axis_label, model_label, value_text
from ..analysis.nodes import node_differences, node_limits
from ..analysis.phases import BUSY, phase_table, phases_of
from ..analysis.roofline import bound_sentences, roofline_table
from ..analysis.speeds import (
    PER,
    axis_table,
    leading_plans,
    main_plan,
    own_best_table,
    row_is_usable,
    scope,
    speed_table,
)
from ..analysis.sweep import Sweep
from ..events.events import overhead_text
from ..results.nodes import leaves
from ..subjects.models import SERIAL
from ..tables import Column, Table
from ..tables.columns import USABLE, text_column
from ..tables.numbers import format_time, plural
from . import columns
from .figures import ladder as ladder_figure
from .figures import left_out
from .figures import losses as losses_figure
from .figures import nodes as nodes_figure
from .how_to_read import DEFINITIONS
from .verdicts import answers, scope_note
from .words import axes_text, conditions, data_warning, gpu_text, order_note, plan_title, t1_text

RAW_DATA = (
    "Next to this page: samples.jsonl, with one line per process and its turns; summary.csv; layers.csv; figures. "
    "`forktask report` makes this page again from samples.jsonl, and writes it for other tools (`--csv`, `--latex`, "
    "...)."
)
JUDGING = "verdict"  # heading of columns of verdicts; for what answers hold is said below their table
PARTS = re.compile(r", (?![^()]*\))")  # of a problem's name: commas in parentheses part no words
TRACE_FILES = ("gantt.pdf", "losses.pdf", "losses.csv", "trace.json.gz", "trace.prv", "trace.paje")

ELSEWHERE = (
    "The host moved the CPUs between generations: the time of a hand-over of a cache line shows how far apart they "
    "were. All other tables have only the placement of most generations."
)
NO_ANSWERS = Table("in_short", (), [])


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes
    ----------
    level : int
        2: a plan, or a part of the whole sweep; 3: below it.
    sentences, answers : list of str
        Paragraphs, and a list of findings.
    figures : tuple of str
        Names of figures, shown where they could be drawn.
    plan_id : str
        The plan of the figures.
    definitions : sequence of (word, explanation)
    in_terminal : bool
        Whether the text for the terminal holds it too.
    folded : bool
        Whether the page shows its tables only when they are asked for.
    """

    title: str
    level: int = 3
    sentences: Sequence[str] = ()
    answers: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: tuple[str, ...] = ()
    plan_id: str = ""
    definitions: Sequence[tuple[str, str]] = ()
    in_terminal: bool = True
    folded: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing but figures to show."""
        return not (self.sentences or self.answers or self.definitions or any(t.rows for t in self.tables))


@dataclass(frozen=True)
class Report:
    """All sections of a sweep, with title, facts and warnings.

    The first screen has the table of answers, or the paragraphs of `opening`, and the figure `first` beside them.
    """

    title: str
    facts: Mapping[str, Any]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=list)
    opening: Sequence[str] = ()
    answers: Table = NO_ANSWERS
    first: str = ""


def with_usable(sweep: Sweep, table: Table) -> Table:
    """Return a table of points with a column, and an entry of each row, that says which may be used."""
    if not all({"plan_id", "model", "threads"} <= row.keys() for row in table.rows):
        return table
    rows = [{"usable": row_is_usable(sweep, row), **row} for row in table.rows]
    return Table(table.name, (*table.columns, USABLE) if table.columns else (), rows)


def with_scope(sweep: Sweep, table: Table) -> Table:
    """Return a table whose verdicts say for what they hold."""
    named = [
        column._replace(heading=f"{column.heading} {scope(sweep)}") if column.heading == JUDGING else column
        for column in table.columns
    ]
    return replace(table, columns=tuple(named))


def records_of(table: pd.DataFrame, plan_id: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table, or those of one plan."""
    if not len(table):
        return []
    return (table if plan_id is None else table[table["plan_id"] == plan_id]).to_dict("records")


def build(sweep: Sweep) -> Report:
    """Return the report of a sweep."""
    sections: list[Section] = []
    rows = answers(sweep) if len(sweep.samples) else []
    varying = [c for c in (text_column("plan"), columns.THREADS) if len({c.text(row) for row in rows}) > 1]
    table = Table("in_short", (*varying, *columns.ANSWER), rows)
    if not len(sweep.samples):
        sections.append(Section("No sample was measured", level=2, sentences=["No sample was measured."]))
    if sweep.run.how_to_read:
        sections.append(
            Section("How to read the curves", level=2, sentences=[sweep.run.how_to_read], in_terminal=False)
        )
    for plan_id in sweep.plan_ids():
        sections += _sections_of_models(sweep, plan_id)
        sections += _sections_of_time(sweep, plan_id)
        sections += _sections_of_cost(sweep, plan_id)
    if len(sweep.samples):
        sections += _comparisons(sweep)
    shown = [[with_scope(sweep, with_usable(sweep, t)) for t in section.tables] for section in sections]
    sections = [replace(section, tables=tables) for section, tables in zip(sections, shown, strict=True)]
    table = with_scope(sweep, with_usable(sweep, table))
    sections += _closing_sections(sweep)
    return Report(
        title=_title(sweep),
        facts={
            "title": sweep.config.get("title", ""),
            "created": sweep.run.created,
            "forktask": sweep.environment.get("forktask", ""),
            "command": sweep.run.command,
            "data": sweep.data,
            "smoke_test": sweep.smoke_test,
            "swept": list(sweep.axes),
            "equivalence_band": EQUIVALENCE_BAND,
            "scope": scope(sweep),
            "environment_id": sweep.run.environment_id,
        },
        notes=[
            *([scope_note(sweep)] if rows else []),
            *([data_warning(sweep)] if sweep.smoke_test else []),
            *filter(None, [left_out(sweep)]),
        ],
        warnings=sweep.warnings,
        sections=sections,
        opening=[text for plan_id in sweep.plan_ids() if (text := order_note(sweep, plan_id))],
        answers=table,
        first="forest",
    )


def _title(sweep: Sweep) -> str:
    """Return the name of a sweep's problem; of several what they share, and what they differ by."""
    problems = list(dict.fromkeys(sweep.problem_name(p) for p in sweep.plan_ids()))
    if len(problems) < 2:
        return "".join(problems) or "no samples"
    words = [PARTS.split(name) for name in problems]
    shared = ", ".join(word for word in words[0] if all(word in others for others in words))
    values = {axis: dict.fromkeys(value_text(sweep.named[p][axis]) for p in sweep.plan_ids()) for axis in sweep.axes}
    differing = "; ".join(f"{axis_label(axis)} {', '.join(values[axis])}" for axis in values)
    return f"{shared or plural(len(problems), 'plan')}: {differing}"


def _sections_of_models(sweep: Sweep, plan_id: str) -> Iterable[Section]:
    """Yield how models compare: on each number of threads, over nodes and plans, rung by rung."""
    of_plan = partial(_section, plan_id)
    floors = Table("floors", (), records_of(floor_table(sweep), plan_id))
    facts = {"level": 2, "sentences": [t1_text(sweep, plan_id)]}
    yield of_plan(plan_title(sweep, plan_id), floors, figures=("speedup", "simulated"), **facts)
    by_node = [row for row in nodes_figure.rows_of(sweep, plan_id) if row["node"]]
    yield of_plan("On each node", Table("by_node", columns.BY_NODE, by_node), figures=("nodes",))
    table = Table("speed", columns.SPEED, speed_rows(sweep, plan_id))
    yield of_plan("Every model and number of threads", table, figures=("turns", "handover"))
    if plan_id in leading_plans(sweep):
        over = ("batch", "run_time_over_batch", "memory", "granularity", "overlay", "options", "bound")
        yield of_plan("Over a property of the plan", figures=over)
    rungs = ladder_figure.rows_of(sweep, plan_id)
    title = f"The ladder from fork-join to tasks, {rungs[0]['threads']} threads" if rungs else ""
    yield of_plan(title, Table("ladder", columns.LADDER, rungs), figures=("ladder",))


def _sections_of_time(sweep: Sweep, plan_id: str) -> Iterable[Section]:
    """Yield where the time of a step goes: phases, a GPU's parts, layers, kernels, threads."""
    of_plan = partial(_section, plan_id)
    phases = records_of(phase_table(sweep), plan_id)
    table = Table("phases", columns.phase_columns(phases_of(sweep, plan_id)), phases)
    texts = {"sentences": phase_sentences(phases), "answers": remarks(phases)}
    yield of_plan("Phases of a step", table, figures=("run_time",), **texts)
    of_gpu = records_of(gpu_table(sweep), plan_id)
    table, sentences = Table("gpu", _gpu_columns(of_gpu), of_gpu), [gpu_text(sweep)] if of_gpu else ()
    yield of_plan("Models of a GPU", table, sentences=sentences)
    serial = {"plan_id": plan_id, "model": SERIAL, "threads": 1}
    layers = [{**serial, **row} for row in records_of(layer_table(sweep, plan_id))]
    step = f"Shares of the serial run of this plan, {format_time(sum(row['time_s'] for row in layers))}."
    table, sentences = Table("layers", columns.LAYER, layers), [step] if layers else ()
    yield of_plan("Layers, serial", table, figures=("layers", "layer_times"), sentences=sentences)
    table = Table("roofline", columns.ROOFLINE, records_of(roofline_table(sweep, plan_id)))
    title = "What bounds the kernels, serial: arithmetic or memory"
    yield of_plan(title, table, figures=("roofline",), answers=bound_sentences(sweep, plan_id))
    losses = losses_figure.rows_of(sweep, plan_id)
    tables = Table("losses", columns.LOSS, losses), Table("efficiencies", columns.EFFICIENCY, losses)
    title = "Where the time of the threads went, in logged runs"
    yield of_plan(title, *tables, figures=("losses", "gantt"), answers=_logging(sweep, plan_id))


def _sections_of_cost(sweep: Sweep, plan_id: str) -> Iterable[Section]:
    """Yield what is spent: one-time costs, time over bounds and floors, loss to competing processes, memory, energy."""
    of_plan = partial(_section, plan_id)
    costs = records_of(cost_table(sweep), plan_id)
    table = Table("costs", columns.COST, costs if any(math.isfinite(row["prepare_s"]) for row in costs) else [])
    yield of_plan("One-time costs, and iterations until they are earned back", table)
    table = Table("bounds", columns.BOUND, records_of(bound_table(sweep), plan_id))
    yield of_plan("Bounds on the time of a step, from serial block durations", table, in_terminal=False)
    accounts = records_of(accounting_table(sweep), plan_id)
    table = Table("accounting", columns.ACCOUNT, accounts)
    yield of_plan("Measured time against the floor from its own block durations", table, answers=remarks(accounts))
    tables = (
        Table("factorial", columns.FACTORIAL, records_of(factorial.factorial_table(sweep), plan_id)),
        Table("effects", columns.EFFECT, records_of(factorial.effect_table(sweep), plan_id)),
    )
    texts = [text for text in [factorial.answer(sweep, plan_id)] if text]
    yield of_plan("Creation, barrier and placement of tasks", *tables, figures=("factorial",), sentences=texts)
    beside = [row for row in records_of(interference_table(sweep), plan_id) if row["hogs"]]
    table = Table("interference", columns.INTERFERENCE, beside)
    yield of_plan("With competing processes", table, figures=("interference",))
    table = Table("memory", columns.MEMORY, records_of(memory_table(sweep), plan_id))
    yield of_plan("Peak resident memory of a measuring process, and what it is for", table, in_terminal=False)
    table = Table("counters", columns.COUNTERS, records_of(counter_table(sweep), plan_id))
    title = "Hardware counters and energy of the timed runs, medians"
    yield of_plan(title, table, sentences=counter_sentences(sweep))
    counts = zip(("kernel", "thread"), block_counts(sweep, plan_id), strict=True)
    tables = [Table(f"counters by {what}", columns.block_counter_columns(what, rows), rows) for what, rows in counts]
    title = "Events in blocks, by kernel and by thread, medians of runs of their own"
    yield of_plan(title, *tables, sentences=block_sentences(sweep), in_terminal=False, folded=True)


def _section(plan_id: str, title: str, *tables: Table, **parts: Any) -> Section:
    return Section(title, tables=tables, plan_id=plan_id, **parts)


def _gpu_columns(rows: Sequence[Mapping[str, Any]]) -> Sequence[Column]:
    """Return the columns of models of a GPU, with the host's threads where some model has several."""
    model, *others = columns.GPU
    return columns.GPU if {row["threads"] for row in rows} <= {1} else (model, columns.THREADS, *others)


def _logging(sweep: Sweep, plan_id: str) -> list[str]:
    """Say where the pictures and traces of a plan are, and what logging cost."""
    rows = [row for row in sweep.traces if row.plan_id == plan_id]
    if not rows:
        return []
    folder = rows[-1].path.partition("/events/")[0]
    files = ", ".join(f"`{folder}/{name}`" for name in TRACE_FILES)
    costs = [f"{overhead_text(row.overhead, row.overheads)} ({model_label(row.model)})" for row in rows]
    sentences = [
        f"Each model ran once more with its event log on. Pictures, losses, and traces for other tools: {files}.",
        f"Logging changed the time of a run by {', '.join(costs)}.",
    ]
    if not all(row.losses.against_serial for row in rows):
        sentences.append("Without a serial run all running time counts as useful.")
    return sentences


def _comparisons(sweep: Sweep) -> Iterable[Section]:
    """Return the sections that compare plans."""
    ratios = records_of(axis_table(sweep))
    for axis in dict.fromkeys(row["axis"] for row in ratios):
        rows = [row for row in ratios if row["axis"] == axis]
        per = f" (of a {PER[axis]})" if axis in PER else ""
        yield Section(
            f"Along {axis_label(axis)}: time{per} with one value over that with another, all else equal",
            level=2,
            tables=[Table("axes", _varying(columns.AXIS, rows), rows)],
        )
    overheads = [row for row in records_of(accounting_table(sweep)) if math.isfinite(row["over_expected"])]
    overheads = [{**row, "plan_name": plan_title(sweep, row["plan_id"])} for row in overheads]
    yield Section(
        "Overhead: time over the floor and what barriers or tasks cost with empty kernels",
        level=2,
        tables=[Table("overhead", _varying((columns.PLAN, *columns.OVERHEAD), overheads), overheads)],
    )
    own_best = records_of(own_best_table(sweep))
    yield Section(
        "Each model at its own best granularity",
        level=2,
        tables=[Table("own_best", _varying((columns.PROBLEM, *columns.OWN_BEST), own_best), own_best)],
    )


def _varying(table_columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns without those that hold the same plan, problem or granularity in every row."""
    constant = {c.heading for c in table_columns if len({c.text(r) for r in rows}) < 2}
    return [c for c in table_columns if c.heading not in constant & {"plan", "problem", "granularity"}]


def _closing_sections(sweep: Sweep) -> list[Section]:
    """Return failures, explanations and the environment."""
    failures = [
        {
            **{key: getattr(row, key) for key in ("model", "threads", "plan_id", "reason", "message")},
            "plan_name": plan_title(sweep, row.plan_id),
        }
        for row in sweep.failures
    ]
    limits = node_limits(sweep) if len(sweep.nodes) > 1 else []
    environment = [{"entry": name, "value": text} for name, text in leaves(sweep.environment)]
    places = [{**row, "plan_name": axes_text(sweep, row["plan_id"])} for row in handover_table(sweep)]
    return [
        Section(
            "Near and far CPUs",
            level=2,
            sentences=[ELSEWHERE] if places else [],
            tables=[Table("handovers", _varying(columns.BY_HANDOVER, places), places)],
        ),
        Section(
            "What differs between nodes",
            level=2,
            sentences=["Ratios are taken within nodes. Their intervals hold for these nodes."] if limits else [],
            tables=[
                Table("nodes", columns.NODE, limits),
                Table("node_differences", columns.NODE_DIFFERENCE, node_differences(sweep) if limits else []),
            ],
        ),
        Section(
            "Not measured",
            level=2,
            sentences=[]
            if failures
            else ["No configuration ran out of time or memory, crashed or left other weights."],
            tables=[Table("failures", columns.FAILURE, failures)],
            in_terminal=bool(failures),
        ),
        Section(
            "How it was measured",
            level=2,
            sentences=[*(conditions(sweep, main_plan(sweep)) if len(sweep.samples) else ()), RAW_DATA],
            in_terminal=False,
        ),
        Section("Words", level=2, definitions=DEFINITIONS, in_terminal=False),
        Section(
            "Environment",
            level=2,
            tables=[Table("environment", columns.ENVIRONMENT, environment)],
            in_terminal=False,
            folded=True,
        ),
    ]


def phase_sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what wall and busy times of phases are, for the models among rows of `phase_table`."""
    busy = list(dict.fromkeys(model_label(row["model"]) for row in rows if row["timed"] == BUSY))
    if not rows:
        return []
    walls = "Wall: from the end of the phase before to its own end; the phases add up to the step."
    times = (
        f" Busy: time in blocks, mean over the threads, of {'; '.join(busy)}, whose phases run into each other: "
        f"waiting belongs to none of them and is left out."
    )
    return [walls + (times if busy else "")]


def speed_rows(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return the rows of `speed_table` of a plan, with the reasons of efficiencies above 1."""
    return [
        {**row, "above_one": faster_blocks(sweep, (plan_id, row["model"], row["threads"]), row["efficiency"])}
        for row in records_of(speed_table(sweep), plan_id)
    ]
