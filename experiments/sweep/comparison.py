"""A comparison from beginning to end: the sweep, the machine for simulations, traces, and what failed of it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ...cython_src.errors import UsageError
from ..analysis.windows import first_early_block
from ..events.events import EventLog
from ..results.folder import LASTING_FAILURES, Results, wrong_models
from ..results.rows import FailureRow, PlanRow, SampleRow
from ..simulate.predict import keep_machine
from ..subjects.calls import NOT_PLANNED
from ..subjects.memory import check_some_fit
from ..tables.progress import say
from ..traces.sweep import collect_traces, trace_injected, trace_sweep
from .configuration import Configuration, Measure
from .runner import SweepRunner
from .status import failure_report, standing_failures, undecided

TraceWriter = Callable[[Path, str, Sequence[EventLog]], list[str]]


@dataclass
class Compared:
    """What a comparison left."""

    results: Results
    failures: list[str]  # a sentence for each failure
    usable: bool  # whether there is something to report on: samples of models that computed the same
    complete: bool = False  # whether giving the same command again would mend nothing
    traced: list[str] = field(default_factory=list)  # sentences about the files of traces, and their losses


def measure_comparison(
    configuration: Configuration,
    out_dir: str,
    command: str,
    *,
    quick: bool = False,
    trace: TraceWriter | None = None,
    adds_sessions: bool = True,
) -> Compared:
    """Measure a sweep and all that its report shows, and say on standard error what failed.

    Parameters
    ----------
    command : str
        That continues it.
    quick : bool
        Measure the small form.
    trace : callable, optional
        Log what every thread does, once for each plan and model on most threads, and write files of it: called with the
        folder, the title and the logs of a plan, it returns sentences about them.
    adds_sessions : bool
        Whether a folder whose last session is whole gets another one.

    Raises
    ------
    MachineError
        No plan can fit into memory.
    UsageError
        Traces of models of a GPU.
    """
    on_gpu = ", ".join(str(spec) for spec in configuration.grid.models if spec.is_gpu)
    if trace and on_gpu:
        raise UsageError(
            f"traces are of models of the CPU, got {on_gpu}; leave traces out, and trace a GPU with nsys profile"
        )
    if quick:
        configuration = configuration.quick()
        configuration.check_machine()  # nothing is said of a form that this machine cannot run
        say(configuration.left_out)
    if configuration.grid.models[0].model.is_call:
        say(NOT_PLANNED)
    elif not any(model.is_serial for model in configuration.grid.models):
        say(
            "without model serial there are no speedups, efficiencies, layers and bounds; add it to the models for them"
        )
    configuration.check_algorithms()
    options = configuration.measure
    check_some_fit(configuration.plans(), options.memory_limit)
    compared = judge(
        SweepRunner(configuration, out_dir, command, undecided=undecided, adds_sessions=adds_sessions).run()
    )
    lines = compared.failures
    lines += _mismatches(compared.results, options)
    if compared.usable:
        if options.simulate:
            keep_machine(out_dir)
        untraced = _trace(compared, configuration, out_dir, trace, again=not adds_sessions)
        lines += [f"not traced: {failure}" for failure in untraced]
        compared.complete = compared.complete and not untraced
    for line in lines:
        say(line)
    if options.inject and compared.usable:
        say(f"outliers are traced; forktask diagnose {out_dir} says what it finds")
    return compared


def judge(results: Results) -> Compared:
    """Return what failed of a sweep, and whether there is something to report on."""
    lines, agree = failure_report(results)
    known, right = True, results.of(SampleRow)
    try:
        wrong = wrong_models(right, results.of(FailureRow))
        right = [row for row in right if (row.plan_id, row.model) not in wrong]
    except UsageError as error:
        known = False
        lines.append(f'no figures: {error}; see the rows "failure" in {results.path}')
    if known and not right:
        lines.append("no figures: every configuration failed")
    again = any(row.reason not in LASTING_FAILURES for row in standing_failures(results))
    return Compared(results, lines, known and bool(right), complete=agree and not again)


def _mismatches(results: Results, options: Measure) -> list[str]:
    """Log each model whose bits are wrong once more, and return what the logs say of the order of its blocks."""
    plans = {row.plan_id: row for row in results.of(PlanRow)}
    rows = {
        (r.plan_id, r.model): r
        for r in results.of(FailureRow)
        if r.reason == "mismatch" and not (r.model.is_gpu or r.model.is_peer)
    }
    lines = []
    for (plan_id, model), row in rows.items():
        with TemporaryDirectory() as folder:
            new = collect_traces(
                plans[plan_id].options, [model], row.threads, folder, seconds=options.target_s, placement=options
            )
        lines += [f"{model}, other bits: not logged: {failure}" for failure in new.failures]
        for log in new.logs:
            early = first_early_block(log) or "no block began before its predecessors had ended: suspect its operands"
            lines.append(f"{model}, other bits: in a logged run of {log.about['iterations']} iterations {early}")
    return lines


def _trace(
    compared: Compared, configuration: Configuration, out_dir: str, trace: TraceWriter | None, again: bool
) -> list[str]:
    """Write the traces that were asked for; return why some are missing."""
    grid, options, results = configuration.grid, configuration.measure, compared.results
    requested = {"threads": max(grid.threads), "seconds": options.target_s, "placement": options}
    failures: list[str] = []
    ours = [spec for spec in grid.models if not spec.is_peer]
    if trace:
        for folder, title, logs, failed in trace_sweep(out_dir, results, ours, again, **requested):
            compared.traced += [f"{title}:", *trace(folder, title, logs), ""] if logs else []
            failures += failed
    if options.inject:
        on_cpu = [spec for spec in ours if not spec.is_gpu]
        failures += trace_injected(out_dir, results, on_cpu, causes=options.inject, **requested)
    return failures
