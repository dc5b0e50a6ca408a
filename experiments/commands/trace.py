"""`forktask trace`, also a function."""

from __future__ import annotations

import os
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ...cython_src.errors import UsageError, check_choice
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import named_network
from ...cython_src.reading import Number
from ...cython_src.records import Record, about, fields_of, takes
from ...cython_src.typed_text import MOST_SECONDS
from ..events.events import EventLog, events_files, read_events
from ..machine.placement import Placement
from ..machine.topology import core_counts
from ..results.folder import dated_folder
from ..sampling.hogs import INJECTIONS
from ..subjects.models import check_counts, check_ours, models_on
from ..sweep.configuration import KEYS, Measure, configuration_from
from ..traces.sweep import SHOWN, TRACED, once
from . import arguments as shared
from .functions import InFolder, Result, arguments_of, call_text
from .sweeping import command_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..sweep.comparison import Compared

DESCRIPTION = (
    "Run each model with its event log on and write what every thread did at every moment: running a block, "
    "scheduling, waiting and why, asleep, without a CPU. Writes a results folder, as compare --trace with one "
    "generation does: logs, a Gantt picture, losses that add up, and traces for Perfetto and Paraver."
)


class TraceSettings(Record, frozen=True):
    """How models are logged, beside the options of a sweep."""

    seconds: Annotated[float, about("about how long each logged run lasts", above=0, below=MOST_SECONDS)] = 0.5
    show: Annotated[int, about("iterations in pictures", least=1)] = SHOWN


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_plan_options(parser)
    shared.add_models(parser, TRACED)
    parser.add_argument("--threads", type=shared.thread_count, metavar="N", help=f"default: {core_counts()[-1]}")
    shared.add_fields(parser, TraceSettings)
    parser.add_argument(
        "--inject",
        action="append",
        choices=INJECTIONS,
        default=SUPPRESS,
        help="log a further run that meets a cause of outliers, for `forktask diagnose` to find",
    )
    shared.add_fields(parser, Measure, only=("check",), check=True)
    shared.add_fields(parser, Placement)
    shared.add_out(parser, "traces")
    shared.add_json(parser, "folder and losses")


class Trace(Result, InFolder):
    """Event logs of a plan under several models, read from the results folder of `trace` or `forktask trace`.

    Printing one prints where the time went.

    Parameters
    ----------
    folder : path
    plan : str, optional
        First characters of a plan's id; default: the one with most samples.

    Raises
    ------
    UsageError
        No such folder or plan, or one that was not traced.

    Attributes
    ----------
    folder : Path
    title : str
        The plan's: network, batch and the options that were swept or changed.
    logs : list of EventLog
        One a model.
    table : DataFrame
        One row a model: seconds of an iteration by what they were spent on, and the factors of its efficiency.
    layers : DataFrame
        One row a model, phase and layer, as in losses.csv: seconds of all threads per iteration.
    figures : list of str
        "gantt", what every thread did, and "losses", where the time went.
    """

    def __init__(self, folder: str | os.PathLike[str], plan: str | None = None):
        import pandas as pd

        from ..analysis.load import load
        from ..analysis.losses import all_losses, as_rows, as_table, as_text
        from ..analysis.names import with_texts
        from ..report.figures.layers import losses_chart
        from ..report.files import chosen_plan
        from ..traces.sweep import plan_folder

        sweep = load(folder)
        plan_id = chosen_plan(sweep, plan)
        self.title = sweep.problem_name(plan_id)
        self.logs: list[EventLog] = [read_events(p) for p in events_files(plan_folder(folder, sweep.plans[plan_id]))]
        if not self.logs:
            raise UsageError(f"a trace needs event logs, got none of {self.title} in {str(folder)!r}; trace it")
        losses = all_losses(self.logs)
        rows, self.layers = as_rows(losses), as_table(losses)
        charts = {"losses": lambda: losses_chart(rows, [self.title])}
        title = f"Trace of {', '.join(log.title for log in self.logs)} in {folder}"
        super().__init__(title, with_texts(pd.DataFrame(rows)), as_text(losses), Path(folder), charts)
        self.figures = ["gantt", "losses"]

    def figure(  # type: ignore[override]
        self, name: str = "gantt", *, iterations: Number = 3, column: str = "double", title: bool = True
    ) -> Figure:
        """Draw a figure, 7 in ("double") or 3.3 in ("single") wide; "gantt" of `iterations` typical ones.

        Raises
        ------
        UsageError
            Another name or column.
        """
        from ..analysis.windows import typical
        from ..report.gantt import draw_gantt

        check_choice("name of figure", name, self.figures)
        if name != "gantt":
            return super().figure(name, column=column, title=title)
        windows = [typical(log, iterations) for log in self.logs]
        return draw_gantt(windows, column=column, title=self.title if title else "")

    def caption(self, name: str = "gantt", *, iterations: Number = 3) -> str:
        """Return a figure's caption."""
        from ..analysis.windows import typical
        from ..report.gantt import gantt_caption

        if name != "gantt":
            return f"{self.title}. {super().caption(name)}"
        return gantt_caption([typical(log, iterations) for log in self.logs], self.title)


@takes(TraceSettings, names=KEYS)
def trace(
    network: str | Network = "cifar10_cnn",
    *,
    models: str | Sequence[str] = TRACED,
    threads: int | None = None,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Trace:
    """Log what every thread does at every moment of a run, as `forktask trace` does.

    Parameters
    ----------
    network : str or Network
        As for `compare`.
    models : str or several
        Specs; `serial` tells how long blocks take by themselves.
    threads : int, optional
        Default: the physical cores that this process may use.
    out : path, optional
        Results folder; default: traces/<date and time>.
    **settings
        `seconds` (that each logged run lasts); how many iterations pictures `show`; others as for `compare`, one value
        each: `batch=16`.

    Raises
    ------
    UsageError
        As in `compare`.
    RuntimeError
        No model could be measured and traced.
    """
    folder = os.fspath(out or dated_folder("traces"))
    name = named_network(network, Path(folder).parent)
    given = {"network": name, "models": models, "threads": threads, **settings, "out": folder}
    if not _measured(call_text("trace", given), **given).usable:
        raise RuntimeError(f"nothing to trace in {folder}: every model failed, as reported above")
    return Trace(folder)


def _measured(
    command: str, *, out: str, models: str | Sequence[str], threads: int | None = None, **settings: Any
) -> Compared:
    """Measure and trace each model once, and write the report; arguments as for `trace`."""
    from ..report.files import write_report, write_trace_files
    from ..sweep.comparison import measure_comparison

    own = TraceSettings(**fields_of(TraceSettings, settings))
    specs = check_ours(models_on(None, shared.several(models), TRACED))
    counts = core_counts()[-1:] if threads is None else check_counts(specs, [threads])
    settings = {name: value for name, value in settings.items() if name in KEYS}
    settings |= {"models": [*map(str, specs)], "threads": [*counts], **once(own.seconds)}
    configuration = configuration_from(settings, Path(out).parent, "Traces of execution models").cut_for_threads()
    write = partial(write_trace_files, shown=own.show)
    compared = measure_comparison(configuration, out, command, trace=write, adds_sessions=False)
    if compared.usable:
        write_report(out)
    return compared


def call(arguments: Namespace) -> int:
    """Measure each model once, trace it, and write all files. Exit code 1: some model failed."""
    from ..results.folder import read_results
    from ..results.rows import TraceRow, values_of

    given = {**arguments_of(trace, arguments), **shared.plan_options(arguments).as_dict()}
    folder = given["out"]
    compared = _measured(command_line(folder), **given)
    if not compared.usable:
        return 1
    losses = [values_of(row.losses) for row in read_results(folder).of(TraceRow)]
    text = [*compared.traced, "", f"{folder}: samples.jsonl, summary.csv, figures, traces, report.html"]
    shared.show(arguments, {"folder": folder, "losses": losses}, lambda _: "\n".join(text))
    return 0 if compared.complete else 1
