"""Why a run takes as long as it does: logs of what every thread did, simulations, and findings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .comparison import Comparison, configuration_from
from .cython_src.errors import UsageError, check_choice
from .cython_src.networks.layers import Network
from .cython_src.reading import Count, Number
from .cython_src.shown import Shown, as_html
from .experiments.events.events import EventLog
from .experiments.traces.sweep import TRACED, once
from .measuring import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Diagnosis", "Simulation", "Trace", "diagnose", "simulate", "trace"]


class Trace(Shown):
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
    """

    def __init__(self, folder: str | os.PathLike[str], plan: str | None = None):
        from .experiments.analysis.load import load
        from .experiments.events.events import events_files, read_events
        from .experiments.report.files import chosen_plan
        from .experiments.traces.sweep import plan_folder

        self.folder = Path(folder)
        sweep = load(self.folder)
        plan_id = chosen_plan(sweep, plan)
        self.title = sweep.problem_name(plan_id)
        place = plan_folder(self.folder, sweep.plans[plan_id])
        self.logs: list[EventLog] = [read_events(p) for p in events_files(place)]
        if not self.logs:
            raise UsageError(f"a trace needs event logs, got none of {self.title} in {str(folder)!r}; trace it")

    @cached_property
    def _losses(self) -> list[Any]:
        from .experiments.analysis.losses import all_losses

        return all_losses(self.logs)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a model: seconds of an iteration by what they were spent on, and the factors of its efficiency."""
        import pandas as pd

        from .experiments.analysis.names import with_texts

        return with_texts(pd.DataFrame(self._rows()))

    @cached_property
    def layers(self) -> pd.DataFrame:
        """One row a model, phase and layer, as in losses.csv: seconds of all threads per iteration."""
        from .experiments.analysis.losses import as_table

        return as_table(self._losses)

    @property
    def figures(self) -> list[str]:
        """Names of the figures."""
        return ["gantt", "losses"]

    def figure(
        self, name: str = "gantt", *, iterations: Number = 3, column: str = "double", title: bool = True
    ) -> Figure:
        """Draw what every thread did ("gantt", so many typical iterations), or where the time went ("losses"), 7 in
        ("double") or 3.3 in ("single") wide.

        Raises
        ------
        UsageError
            Another name or column.
        """
        from .experiments.analysis.windows import typical
        from .experiments.report.figures.losses import draw_traced
        from .experiments.report.figures.style import COLUMN_WIDTH_IN
        from .experiments.report.gantt import draw_gantt

        check_choice("name of figure", name, self.figures)
        check_choice("the column", column, COLUMN_WIDTH_IN)
        text = self.title if title else ""
        if name == "gantt":
            return draw_gantt([typical(log, iterations) for log in self.logs], column=column, title=text)
        return draw_traced(self._rows(), column, text)

    def caption(self, name: str = "gantt", *, iterations: Number = 3) -> str:
        """Return a figure's caption."""
        from .experiments.analysis.windows import typical
        from .experiments.report.figures.losses import losses_chart
        from .experiments.report.gantt import gantt_caption

        check_choice("name of figure", name, self.figures)
        if name == "gantt":
            return gantt_caption([typical(log, iterations) for log in self.logs], self.title)
        return f"{self.title}. {losses_chart(self._rows(), ()).text}"

    def write_report(self) -> Path:
        """Write the page report.html, as `Comparison.write_report`."""
        return Comparison(self.folder).write_report()

    def _rows(self) -> list[dict[str, Any]]:
        from .experiments.analysis.losses import as_rows

        return as_rows(self._losses)

    def __repr__(self) -> str:
        return f"<Trace of {', '.join(log.title for log in self.logs)} in {self.folder}>"

    def __str__(self) -> str:
        from .experiments.analysis.losses import as_text

        return as_text(self._losses)


class Simulation(Result):
    """What `simulate` returns. Printing one prints the table of the command line.

    Attributes
    ----------
    table : DataFrame
        One row a model and number of threads: simulated and measured step time, error, speedup, efficiency, idle.
    title : str
        What was simulated: network, options and blocks.
    error : str
        How far the simulation is off at measured points, in a sentence; empty for another machine.
    """

    def __init__(self, title: str, error: str, table: pd.DataFrame, text: str, charts: dict[str, Any]):
        super().__init__(f"Simulation of {title}", table, text, charts=charts)
        self.title, self.error = title, error


class Diagnosis(Result):
    """What `diagnose` returns. Printing one prints the findings as the command line does.

    Attributes
    ----------
    cases : list of dict
        One for each plan and event log: "title", "findings" (the most costly first), "skipped" (why there are none).
    table : DataFrame
        One row a finding: case, kind, seconds of a step that it costs, text, what to try, what that brings.
    """

    def __init__(self, cases: list[dict[str, Any]]):
        import pandas as pd

        from .experiments.report.findings import format_findings

        self.cases = cases
        rows = [{"case": case["title"], **finding} for case in cases for finding in case["findings"]]
        table = pd.DataFrame(rows, columns=["case", "kind", "cost_s", "text", "attempt", "brings"])
        super().__init__(f"Diagnosis of {len(cases)} plans and logs", table, format_findings({"cases": cases}))

    def _repr_html_(self) -> str:
        skipped = [f"{case['title']}: {case['skipped']}" for case in self.cases if case["skipped"]]
        return as_html(repr(self), self._rows(), skipped)


def trace(
    network: str | Network = "cifar10_cnn",
    *,
    models: str | Sequence[str] = TRACED,
    threads: int | None = None,
    out: str | os.PathLike[str] | None = None,
    seconds: float = 0.5,
    iterations: int | None = None,
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
    seconds : float
        About how long each logged run lasts.
    iterations : int, optional
        Length of each logged run instead.
    **settings
        As for `compare`, one value each: `batch=16`.

    Raises
    ------
    UsageError
        As in `compare`.
    RuntimeError
        No model could be measured and traced.
    """
    from .experiments.machine.topology import core_counts
    from .experiments.report.files import write_report, write_trace_files
    from .experiments.results.folder import dated_folder
    from .experiments.sweep.comparison import measure_comparison

    given = {"network": network, "models": models, "threads": threads or core_counts()[-1], **settings}
    folder = dated_folder("traces") if out is None else os.fspath(out)
    measured = {**given, **once(seconds)}
    configuration = configuration_from("Traces of execution models", measured, Path(folder).parent)
    call = f"forktask.trace({', '.join(f'{n}={v!r}' for n, v in given.items())}, out={folder!r})"
    requested = {"trace": write_trace_files, "iterations": iterations, "adds_sessions": False}
    if not measure_comparison(configuration, folder, call, **requested).usable:
        raise RuntimeError(f"nothing to trace in {folder}: every model failed, as was said above")
    write_report(folder)
    return Trace(folder)


def simulate(
    results: str | os.PathLike[str] | Comparison | Trace,
    *,
    threads: int | Sequence[int] | None = None,
    models: str | Sequence[str] | None = None,
    machine: str | os.PathLike[str] | None = None,
    plan: str | None = None,
    seed: Count = 0,
) -> Simulation:
    """Predict the speedup on more threads, or on another machine, as `forktask simulate` does.

    Parameters
    ----------
    results : path, Comparison or Trace
        A results folder, which must hold serial runs with their profile.
    threads : int or several, optional
        Up to 1024; default: powers of two up to four times the measured ones.
    models : str or several, optional
        Default: those that were measured.
    machine : path, optional
        Another machine, as `forktask info --machine FILE` writes it.
    plan : str, optional
        First characters of a plan's id; default: the one with most samples.
    seed : int
        Of stealing.

    Raises
    ------
    UsageError
    """
    from .experiments.analysis.names import with_texts
    from .experiments.report.simulation import format_simulation, simulate_plan

    result = simulate_plan(
        _folder(results),
        threads=[threads] if isinstance(threads, int) else threads,
        models=[models] if isinstance(models, str) else models,
        machine=machine,
        plan=plan,
        seed=seed,
    )
    text, charts = format_simulation(result.as_row()), {"simulated": lambda: result.chart}
    return Simulation(result.title, result.error, with_texts(result.table), text, charts)


def diagnose(results: str | os.PathLike[str] | Comparison | Trace) -> Diagnosis:
    """Say what costs time, what to try, and what that would bring, as `forktask diagnose` does.

    Parameters
    ----------
    results : path, Comparison or Trace
        A results folder.

    Raises
    ------
    UsageError
        No results there, or nothing in them.
    """
    from .experiments.report.findings import diagnose_folder

    return Diagnosis(diagnose_folder(_folder(results))["cases"])


def _folder(results: str | os.PathLike[str] | Comparison | Trace) -> str | os.PathLike[str]:
    return results.folder if isinstance(results, Comparison | Trace) else results
