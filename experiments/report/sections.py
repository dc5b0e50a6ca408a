"""The report's sections, built once from a sweep; three renderers write them as text, JSON and HTML.

A new table is a `Table` in a section here and its columns in columns.py; a new figure is a function in figures/, and
its name in the section that shows it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd

from ..analysis import accounting, costs, factorial
from ..analysis.comparisons import PER, axis_table, interference_table, node_limits, own_best_table, recovered_text
from ..analysis.estimates import EQUIVALENCE_BAND
from ..analysis.limits import bound_table, floor_table
from ..analysis.names import axis_label, model_label, value_text
from ..analysis.roofline import bound_sentences, roofline_table
from ..analysis.speeds import leading_plans, row_is_usable, scope, speed_table
from ..analysis.sweep import Sweep
from ..events.events import overhead_text
from ..results.nodes import leaves
from ..results.rows import RunRow
from ..subjects.calls import NOT_PLANNED
from ..subjects.models import SERIAL
from ..tables import USABLE, Column, Table, text_column
from ..tables.numbers import format_time, plural
from . import columns
from .figures import left_out
from .figures.ladder import ladder_rows
from .figures.layers import rows_of as loss_rows
from .verdicts import answers, node_rows, scope_note
from .words import axes_text, conditions, data_warning, gpu_text, order_note, plan_title, t1_text

RAW_DATA = (
    "Next to this page: samples.jsonl, with one line per process and its turns; tables as CSV; figures. "
    "`forktask report` makes this page again from samples.jsonl, and writes it for other tools (`--csv`, `--bmf`). "
    "The pages `guide/verdicts` and `reference/measuring` of forktask explain the words of the tables."
)
JUDGING = "verdict"  # heading of columns of verdicts; for what answers hold is said below their table
PARTS = re.compile(r", (?![^()]*\))")  # of a problem's name: commas in parentheses part no words
ACCOUNTED = (
    "Floor: what the blocks of the same run allow at best; excess: by how much the run takes longer; per unit: per "
    "barrier, or per task and thread; time / both: over floor and empty kernels together."
)
TRACE_FILES = ("gantt.pdf", "losses.pdf", "losses.csv", "trace.json.gz", "trace.prv")

NO_ANSWERS = Table("in_short", (), [])
MOST_OPENING = 3  # plans whose sentence opens the report


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    title: str
    level: int = 2  # 2: a plan, or a part of the whole; 3: below it
    # sentences, answers: paragraphs, and a list of findings
    sentences: Sequence[str] = ()
    answers: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: tuple[str, ...] = ()  # names of figures, shown where they could be drawn
    plan_id: str = ""  # the plan of the figures
    # in_terminal, folded: whether the text for the terminal holds it too; whether the page shows its tables only when
    # they are asked for
    in_terminal: bool = True
    folded: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing but figures to show."""
        return not (self.sentences or self.answers or any(t.rows for t in self.tables))


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


def facts_of(run: RunRow, title: str, **facts: Any) -> dict[str, Any]:
    """Return the facts of a report and of its run."""
    about = {"title": title, "created": run.created, "forktask": run.environment.get("forktask", "")}
    node, cpu = (run.environment.get(name) or {} for name in ("node", "cpu"))
    about |= {"processor": cpu.get("model", ""), "host": node.get("host", "")}
    return {**about, "command": run.command, **facts, "environment_id": run.environment_id}


def section(title: str, *tables: Table, about: Sequence[str] = (), **parts: Any) -> Section:
    """Return a section; sentences `about` its tables are left out where these have no rows."""
    told = about if any(table.rows for table in tables) else ()
    return Section(title, tables=tables, **{"sentences": told, **parts})


def judged_table(sweep: Sweep, table: Table) -> Table:
    """Return a table whose verdicts say for what they hold; one of points with a column, and an entry of each row, that
    says which may be used."""
    scoped = {JUDGING: f"{JUDGING} {scope(sweep)}"} if table.name != NO_ANSWERS.name else {}
    named = [c._replace(heading=scoped.get(c.heading, c.heading)) for c in table.columns]
    if not all({"plan_id", "model", "threads"} <= row.keys() for row in table.rows):
        return replace(table, columns=named)
    rows = [{"usable": row_is_usable(sweep, row), **row} for row in table.rows]
    return Table(table.name, [*named, USABLE] if named else (), rows)


def records_of(table: pd.DataFrame, plan_id: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table, or those of one plan."""
    if not len(table):
        return []
    return (table if plan_id is None else table[table["plan_id"] == plan_id]).to_dict("records")


def _opening(sweep: Sweep) -> list[str]:
    """Return the sentences before the table of answers; of many plans what fork-join loses stands in their sections."""
    plans = sweep.plan_ids()
    notes = [order_note(sweep, plan_id) for plan_id in plans]
    if len(plans) <= MOST_OPENING:
        named = [f"{axes_text(sweep, plan)}: " if len(plans) > 1 else "" for plan in plans]
        texts = [recovered_text(sweep, plan_id) for plan_id in plans]
        notes = [name + text if text else "" for name, text in zip(named, texts, strict=True)] + notes
    return [*filter(None, notes)]


def build(sweep: Sweep) -> Report:
    """Return the report of a sweep."""
    sections: list[Section] = []
    rows = answers(sweep)
    varying = [c for c in (text_column("plan"), columns.THREADS) if len({c.text(row) for row in rows}) > 1]
    table = Table("in_short", (*varying, *columns.ANSWER), rows)
    if not len(sweep.samples):
        sections.append(Section("No sample was measured", sentences=["No sample was measured."]))
    if sweep.run.how_to_read:
        sections.append(Section("How to read the curves", sentences=[sweep.run.how_to_read], in_terminal=False))
    if len(sweep.samples):
        sections.append(section("When do tasks pay?", plan_id=leading_plans(sweep)[0], figures=("when",)))
    for plan_id in sweep.plan_ids():
        sections += (_sections_of_calls if sweep.reference_call else _sections_of_plan)(sweep, plan_id)
    if len(sweep.samples):
        sections += _comparisons(sweep)
    sections = [replace(s, tables=[judged_table(sweep, table) for table in s.tables]) for s in sections]
    notes = [scope_note(sweep) if rows else "", data_warning(sweep) if sweep.smoke_test else "", left_out(sweep)]
    return Report(
        title=_title(sweep),
        facts=facts_of(
            sweep.run,
            sweep.config.get("title", ""),
            data=sweep.data,
            smoke_test=sweep.smoke_test,
            swept=list(sweep.axes),
            equivalence_band=EQUIVALENCE_BAND,
            scope=scope(sweep),
        ),
        notes=[*filter(None, notes)],
        warnings=sweep.warnings,
        sections=[*sections, *_closing_sections(sweep)],
        opening=_opening(sweep),
        answers=judged_table(sweep, table),
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


def _sections_of_plan(sweep: Sweep, plan_id: str) -> Iterator[Section]:
    """Yield how models compare; where the time of a step goes: phases, a GPU's parts, layers, kernels, threads; and
    what is spent: one-time costs, time over bounds and floors, loss to competing processes, memory, energy."""
    part = partial(section, plan_id=plan_id, level=3)

    def table(name: str, shown: Sequence[Column], rows: pd.DataFrame | Sequence[dict[str, Any]]) -> Table:
        return Table(name, shown, records_of(rows, plan_id) if isinstance(rows, pd.DataFrame) else [*rows])

    floors = table("floors", (), floor_table(sweep))
    title, texts = plan_title(sweep, plan_id), [t1_text(sweep, plan_id)]
    if len(sweep.plan_ids()) > MOST_OPENING:
        texts += filter(None, [recovered_text(sweep, plan_id)])
    yield part(title, floors, figures=("speedup", "simulated"), sentences=texts, level=2)
    yield part("On each node", table("by_node", columns.BY_NODE, node_rows(sweep, plan_id)))
    speeds = table("speed", columns.SPEED, speed_rows(sweep, plan_id))
    yield part("Every model and number of threads", speeds, figures=("turns", "handover"))
    if plan_id in leading_plans(sweep):
        over = ("batch", "granularity", "options", "bound")
        yield part("Over a property of the plan", figures=over)
    rungs = ladder_rows(sweep, plan_id)
    title = f"The ladder from fork-join to tasks, {rungs[0]['threads']} threads" if rungs else ""
    yield part(title, table("ladder", columns.LADDER, rungs), figures=("ladder",))

    shown = columns.phase_columns(accounting.phases_of(sweep, plan_id))
    phases = table("phases", shown, accounting.phase_table(sweep))
    about, texts = phase_sentences(phases.rows), accounting.unlike_text(sweep, plan_id)
    yield part("Phases of a step", phases, figures=("run_time",), about=about, answers=texts)
    gpu = table("gpu", columns.GPU, costs.gpu_table(sweep))
    if any(row["threads"] > 1 for row in gpu.rows):  # of the host
        gpu = replace(gpu, columns=(columns.MODEL, columns.THREADS, *columns.GPU[1:]))
    yield part("Models of a GPU", gpu, about=[gpu_text(sweep)])
    serial = {"plan_id": plan_id, "model": SERIAL, "threads": 1}
    layers = [{**serial, **row} for row in records_of(accounting.layer_table(sweep, plan_id))]
    step = f"Shares of the serial run of this plan, {format_time(sum(row['time_s'] for row in layers))}."
    shown = table("layers", columns.LAYER, layers)
    yield part("Layers, serial", shown, figures=("layers", "layer_times"), about=[step])
    kernels = table("roofline", columns.ROOFLINE, roofline_table(sweep, plan_id))
    title, texts = "What bounds the kernels, serial: arithmetic or memory", bound_sentences(sweep, plan_id)
    yield part(title, kernels, figures=("roofline",), answers=texts)
    losses = loss_rows(sweep, plan_id)
    tables = table("losses", columns.LOSS, losses), table("efficiencies", columns.EFFICIENCY, losses)
    title, texts = "Where the time of the threads went, in logged runs", _logging(sweep, plan_id)
    yield part(title, *tables, figures=("losses", "gantt"), answers=texts)

    once = records_of(costs.cost_table(sweep), plan_id)
    shown = table("costs", columns.COST, once if any(math.isfinite(row["prepare_s"]) for row in once) else [])
    yield part("One-time costs", shown)
    bounds = table("bounds", columns.BOUND, bound_table(sweep))
    yield part("Bounds on the time of a step, from serial block durations", bounds, in_terminal=False)
    accounts = table("accounting", columns.ACCOUNT, accounting.accounting_table(sweep))
    title = "Measured time against the floor from its own block durations"
    yield part(title, accounts, about=[ACCOUNTED])
    tables = (
        table("factorial", columns.FACTORIAL, factorial.factorial_table(sweep)),
        table("effects", columns.EFFECT, factorial.effect_table(sweep)),
    )
    texts = [text for text in [factorial.answer(sweep, plan_id)] if text]
    yield part("Creation, barrier, placement and order of tasks", *tables, figures=("factorial",), about=texts)
    beside = [row for row in records_of(interference_table(sweep), plan_id) if row["hogs"]]
    shown = table("interference", columns.INTERFERENCE, beside)
    yield part("With competing processes", shown, figures=("interference",))
    memory = table("memory", columns.MEMORY, costs.memory_table(sweep))
    yield part("Peak resident memory of a measuring process, and what it is for", memory, in_terminal=False)
    counters = table("counters", columns.COUNTERS, costs.counter_table(sweep))
    title, texts = "Hardware counters and energy of the timed runs, medians", costs.counter_sentences(sweep)
    yield part(title, counters, about=texts)
    counts = zip(("kernel", "thread"), costs.block_counts(sweep, plan_id), strict=True)
    tables = [Table(f"counters by {what}", columns.block_counter_columns(what, rows), rows) for what, rows in counts]
    title = "Events in blocks, by kernel and by thread, medians of runs of their own"
    yield part(title, *tables, about=costs.block_sentences(sweep), in_terminal=False, folded=True)


def _sections_of_calls(sweep: Sweep, plan_id: str) -> Iterator[Section]:
    """Yield what is known of functions and programs, which run no plan."""
    part = partial(section, plan_id=plan_id, level=3)
    yield part(plan_title(sweep, plan_id), sentences=[NOT_PLANNED], figures=("speedup",), level=2)
    samples = sweep.samples.assign(cpus_busy=sweep.samples["timed_cpu_s"] / sweep.samples["timed_wall_s"])
    busy = samples.groupby(["model", "threads"])["cpus_busy"].median()
    rows = [{**row, "cpus_busy": busy[row["model"], row["threads"]]} for row in speed_rows(sweep, plan_id)]
    yield part("On every number of threads", Table("speed", columns.CALL, rows), figures=("turns", "handover"))
    once = [row for row in records_of(costs.cost_table(sweep), plan_id) if math.isfinite(row["prepare_s"])]
    yield part("One-time costs: setup, and the first call", Table("costs", columns.CALL_COST, once))
    beside = [row for row in records_of(interference_table(sweep), plan_id) if row["hogs"]]
    shown = Table("interference", columns.INTERFERENCE, beside)
    yield part("With competing processes", shown, figures=("interference",))


def _logging(sweep: Sweep, plan_id: str) -> list[str]:
    """Say where the pictures and traces of a plan are, and what logging cost."""
    rows = [row for row in sweep.traces if row.plan_id == plan_id]
    if not rows:
        return []
    folder = rows[-1].path.partition("/events/")[0]
    files = ", ".join(f"`{folder}/{name}`" for name in TRACE_FILES)
    spent = [f"{overhead_text(row.overhead, row.overheads)} ({model_label(row.model)})" for row in rows]
    sentences = [
        f"Each model ran once more with its event log on. Pictures, losses, and traces for other tools: {files}.",
        f"Logging changed the time of a run by {', '.join(spent)}.",
    ]
    if not all(row.losses.against_serial for row in rows):
        sentences.append("Without a serial run all running time counts as useful.")
    return sentences


def _comparisons(sweep: Sweep) -> Iterator[Section]:
    """Yield the sections that compare plans."""
    ratios = records_of(axis_table(sweep))
    for axis in dict.fromkeys(row["axis"] for row in ratios):
        rows = [row for row in ratios if row["axis"] == axis]
        per = f" (of a {PER[axis]})" if axis in PER else ""
        title = f"Along {axis_label(axis)}: time{per} with one value over that with another, all else equal"
        yield section(title, Table("axes", _varying(columns.AXIS, rows), rows))
    own_best = records_of(own_best_table(sweep))
    table = Table("own_best", _varying((columns.PROBLEM, *columns.OWN_BEST), own_best), own_best)
    yield section("Each model at its own best granularity", table)


def _varying(table_columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns except plan, problem or granularity where these are the same in every row."""
    constant = {c.heading for c in table_columns if len({c.text(r) for r in rows}) < 2}
    return [c for c in table_columns if c.heading not in constant & {"plan", "problem", "granularity"}]


def environment_section(run: RunRow, *sentences: str) -> Section:
    """Return all entries of a run's environment."""
    rows = [{"entry": name, "value": text} for name, text in leaves(run.environment)]
    table = Table("environment", columns.ENVIRONMENT, rows)
    return section("Environment", table, sentences=sentences, in_terminal=False, folded=True)


def _closing_sections(sweep: Sweep) -> list[Section]:
    """Return failures, how it was measured, and the environment."""
    names = ("model", "threads", "plan_id", "reason", "message")
    failures = [
        {**{name: getattr(row, name) for name in names}, "plan_name": plan_title(sweep, row.plan_id)}
        for row in sweep.failures
    ]
    limits = node_limits(sweep) if len(sweep.nodes) > 1 else []
    about_nodes = ["Ratios are taken within nodes. Their intervals hold for these nodes."]
    none = "No configuration ran out of time or memory, crashed or computed something else."
    table = Table("failures", columns.FAILURE, failures)
    measured = [*dict.fromkeys(text for plan_id in sweep.plan_ids() for text in conditions(sweep, plan_id)), RAW_DATA]
    return [
        section("What differs between nodes", Table("nodes", columns.NODE, limits), about=about_nodes),
        section("Not measured", table, sentences=[none] * (not failures), in_terminal=bool(failures)),
        Section("How it was measured", sentences=measured, in_terminal=False),
        environment_section(sweep.run),
    ]


def phase_sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what wall and busy times of phases are, for the models among rows of `phase_table`."""
    text = "Wall: from the end of the phase before to its own end; the phases add up to the step."
    if busy := dict.fromkeys(model_label(row["model"]) for row in rows if row["timed"] == accounting.BUSY):
        text += f" Busy: time in blocks, mean over the threads, of {'; '.join(busy)}, whose phases run into each "
        text += "other: waiting belongs to none of them and is left out."
    return [text]


def speed_rows(sweep: Sweep, plan_id: str) -> list[dict[str, Any]]:
    """Return the rows of `speed_table` of a plan, with the reasons of efficiencies above 1."""

    def above_one(row: Mapping[str, Any]) -> str:
        return accounting.faster_blocks(sweep, (plan_id, row["model"], row["threads"]), row["efficiency"])

    return [{**row, "above_one": above_one(row)} for row in records_of(speed_table(sweep), plan_id)]
