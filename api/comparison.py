"""Comparing execution models: a sweep in fresh processes, as `forktask compare` runs it, and its results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .cython_src.errors import UsageError
from .cython_src.networks.layers import Network
from .cython_src.networks.own import short_name
from .cython_src.records import takes
from .cython_src.shown import as_html
from .experiments.commands.compare import comparison_of
from .experiments.commands.functions import InFolder, call_text
from .experiments.subjects.calls import OF_PROGRAMS
from .experiments.subjects.models import DEFAULT_MODELS
from .experiments.sweep.configuration import KEYS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .experiments.analysis.sweep import Sweep
    from .experiments.report.sections import Report

__all__ = ["Comparison", "Ratio", "compare"]

# Columns of the table that a notebook shows.
SHOWN = (
    "model",
    "threads",
    "usable",
    *("sessions", "generations", "time_s", "speedup", "speedup_low", "speedup_high", "ratio", "verdict"),
)


@dataclass(frozen=True)
class Ratio:
    """A ratio of two models' times, with its 95 % interval.

    Attributes
    ----------
    value, low, high : float
        Below 1 the first model is faster; NaN without enough samples.
    n : int
        Generations that it rests on.
    verdict : str
        "faster", "slower", "same", "undecided", or why there is none.
    """

    value: float
    low: float
    high: float
    n: int
    verdict: str


class Comparison(InFolder):
    """Results of `compare`, of `forktask compare` or of `forktask run`, read from their folder when they are asked for.

    Printing one prints the tables of the command line.

    Parameters
    ----------
    folder : path
        Folder that holds samples.jsonl.

    Raises
    ------
    UsageError
        No such folder, or rows that must not be compared: models that computed other weights, several machines.

    Attributes
    ----------
    folder : Path
    """

    def __init__(self, folder: str | os.PathLike[str]):
        from .experiments.analysis.load import load
        from .experiments.analysis.speeds import main_plan

        self.folder = Path(folder)
        self._sweep: Sweep = load(self.folder)
        main_plan(self._sweep)  # raises if nothing was measured

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a plan, model and number of threads, as in summary.csv: what was swept, model, times, verdict,
        phases, and last all other options."""
        from .experiments.analysis.accounting import summary_table

        return summary_table(self._sweep)

    @property
    def samples(self) -> pd.DataFrame:
        """One row a sample: times, hashes of weights and losses, disturbance of the machine."""
        from .experiments.analysis.names import with_texts

        return with_texts(self._sweep.samples)

    @property
    def recovered(self) -> pd.DataFrame:
        """One row a plan, number of threads and task model: `busy`, the share of the time in which fork-join keeps its
        cores busy (serial time over threads times fork-join's), `ratio` over fork-join, and `recovered`, the share of
        1 - busy that the model gains; each with its interval (`..._low`, `..._high`)."""
        from .experiments.analysis.comparisons import recovered_table
        from .experiments.analysis.names import with_texts

        return with_texts(recovered_table(self._sweep))

    @property
    def warnings(self) -> list[str]:
        """Sentences that a reader of the table must know."""
        return list(self._sweep.warnings)

    @property
    def figures(self) -> list[str]:
        """Names of the figures that these samples allow."""
        from .experiments.analysis.speeds import main_plan
        from .experiments.report import figures

        return figures.available_figures(self._sweep, main_plan(self._sweep))

    def figure(
        self,
        name: str | None = None,
        *,
        column: str = "double",
        title: bool = True,
        models: Mapping[str, str] | None = None,
        plan: str | None = None,
        ax: Axes | None = None,
    ) -> Figure:
        """Draw a figure of a plan.

        Parameters
        ----------
        name : str, optional
            One of `figures`; default: "speedup", or the first that there is without a serial run.
        column : {"double", "single"}
            7 in wide, or 3.3 in and at most 6 in tall.
        title : bool
            Whether the plan is named above the panels.
        models : mapping of str to str, optional
            Models that are drawn, in this order, by the names that they get; default: all.
        plan : str, optional
            First characters of a plan's id; default: the one with most samples.
        ax : Axes, optional
            Your axes, in which a figure of one panel is drawn, instead of in a new figure.

        Raises
        ------
        UsageError
            Unknown figure, column, model or plan, axes for several panels, or samples that do not hold what the figure
            shows.
        """
        from .experiments.report import figures

        return figures.draw(self._sweep, *self._chosen(name, plan), column, title, models, ax)

    def figure_data(
        self, name: str | None = None, *, models: Mapping[str, str] | None = None, plan: str | None = None
    ) -> pd.DataFrame:
        """Return the numbers behind a figure, one row per value: panel, quantity, model (or what else is drawn, such as
        a bound), x, value, low and high (ends of the 95 % interval), usable; arguments as for `figure`."""
        from .experiments.report import figures

        return figures.figure_data(self._sweep, *self._chosen(name, plan), models)

    def caption(
        self, name: str | None = None, *, models: Mapping[str, str] | None = None, plan: str | None = None
    ) -> str:
        """Return a figure's caption: what was measured where, and what the figure shows; arguments as for `figure`."""
        from .experiments.report import figures

        return figures.caption(self._sweep, *self._chosen(name, plan), models, alone=True)

    def _chosen(self, name: str | None, plan: str | None) -> tuple[str, str]:
        """Return a figure's name and a plan's id."""
        from .experiments.report import figures
        from .experiments.report.files import chosen_plan

        plan_id = chosen_plan(self._sweep, plan)
        return name or figures.first_figure(self._sweep, plan_id), plan_id

    def ratio(self, model: str, reference: str, *, threads: int | None = None, plan: str | None = None) -> Ratio:
        """Return the time of a model over that of another.

        The interval is that of these two; in tables it spans all forms of fork-join that may be the fastest.

        Parameters
        ----------
        model, reference : str
            Specs such as "taskiter".
        threads : int, optional
            Of both; of a model that has one thread only, one. Default: the most that each was measured on.
        plan : str, optional
            First characters of a plan's id, column `plan_id` of `table`; needed where there are several.

        Raises
        ------
        UsageError
            A model that was not measured on this plan and number of threads; several plans, and none named.
        """
        from .experiments.analysis.speeds import Pair, ratio_rows
        from .experiments.report.files import chosen_plan
        from .experiments.report.words import axes_text

        if plan is None and len(plans := self._sweep.plan_ids()) > 1:
            listed = "; ".join(f"{each}: {axes_text(self._sweep, each)}" for each in plans)
            raise UsageError(f"plan must say of which of {len(plans)} plans a ratio is, got none; take one of {listed}")
        plan_id = chosen_plan(self._sweep, plan)
        point, other = (self._sweep.measured(plan_id, name, threads) for name in (model, reference))
        (row,) = ratio_rows(self._sweep, [Pair(point, [other])])
        return Ratio(*(row[name] for name in ("ratio", "ratio_low", "ratio_high", "generations", "verdict")))

    def write_report(self) -> Path:
        """Write tables, figures and the page report.html with everything into the folder, and return the page."""
        from .experiments.report.files import write_sweep

        return write_sweep(self._sweep, self._built, self.folder)

    @cached_property
    def _built(self) -> Report:
        from .experiments.report.sections import build

        return build(self._sweep)

    def _title(self) -> str:
        if self._sweep.reference_call:
            return "functions and programs"
        networks = dict.fromkeys(
            f"{short_name(plan.network)} at batch {plan.batch}" for plan in self._sweep.plans.values()
        )
        return ", ".join(networks)

    def __repr__(self) -> str:
        models = self.samples["model"].nunique()
        return f"<Comparison of {models} models on {self._title()}: {len(self.samples)} samples in {self.folder}>"

    def __str__(self) -> str:
        from .experiments.report.rendering import render_text

        return render_text(self._built)

    def _rows(self) -> list[dict[str, Any]]:
        return self.table[[name for name in SHOWN if name in self.table]].to_dict("records")

    def _repr_html_(self) -> str:
        return as_html(repr(self), self._rows(), self.warnings)


@takes(names=(*KEYS, *OF_PROGRAMS))
def compare(
    network: str | Network | Sequence[str | Network] = "cifar10_cnn",
    *,
    batch: int | Sequence[int] | None = None,
    models: str | Sequence[str] = DEFAULT_MODELS,
    threads: int | Literal["cores"] | Sequence[int] = "cores",
    out: str | os.PathLike[str] | None = None,
    quick: bool = False,
    functions: Mapping[str, str] | Sequence[str] = (),
    programs: Mapping[str, str] | Sequence[str] = (),
    reference: str = "",
    **settings: Any,
) -> Comparison:
    """Train a network under several execution models in fresh processes, and compare them.

    The same as `forktask compare`, with the same defaults: generations are measured until every comparison is decided
    within 1 %, or `budget_s` (180) is spent; `repeats` alone gives their number. The weights of all models are checked
    to be the same bits, and samples, summary.csv, figures and report.html are left in a folder. The same call with the
    same `out` continues an interrupted session, or else adds one; `sessions` measures several.

    Parameters
    ----------
    network : str or Network, or several
        A name, `module:function` or `file.py:function` of your own, or a network. One of your own is written as a
        program beside the results folder, from which measuring processes make it again.
    batch : int or several, optional
        Samples of a step; default: 64 images, 4 of tokens.
    models : str or several
        Specs such as "taskiter" or "forkjoin:schedule=dynamic".
    threads : int or several, or "cores"
        "cores": 1, 2, 4, ... up to the physical cores that this process may use.
    out : path, optional
        Results folder; default: results/<date and time>.
    quick : bool
        Measure one short generation: a check that it works.
    functions, programs : mapping of name to text, or texts
        In place of a network and models: calls such as "solver:step(n=1000)" or "./a.out 2000", whose times are
        compared; with programs also `threads_variable` and `time_pattern`.
    reference : str
        The function or program with which the others are compared; default: the first.
    **settings
        Options of the plan, each one value or several (`granularity`, `memory`, `fusion`, ...), `interference`,
        `arguments` of the functions that make the networks (a mapping of names to values or lists of such), and how to
        measure (`repeats`, `seed`, `profile`, `time_limit_s`, ...): the keys of the tables [grid] and [measure] in a
        sweep's TOML file.

    Raises
    ------
    UsageError
        An unknown name or value, a network that cannot be written down, or a folder that holds other results.
    RuntimeError
        The models did not compute the same weights, or nothing could be measured.

    Examples
    --------
    >>> comparison = compare("cifar10_cnn", models=["forkjoin", "taskiter"], threads=[1, 2], quick=True)
    >>> comparison.table[["model", "threads", "time_s", "speedup", "verdict"]]
    >>> comparison.figure("speedup").savefig("speedup.pdf")
    """
    from .experiments.results.folder import dated_folder
    from .experiments.sweep.comparison import measure_comparison

    folder = dated_folder("results") if out is None else os.fspath(out)
    given = {"network": network, "models": models, "threads": threads, **settings}
    if batch is not None:
        given["batch"] = batch
    calls = {"functions": functions, "programs": programs, "reference": reference}
    configuration = comparison_of({**given, **calls}, Path(folder).parent)
    if configuration.uses_gpu:
        raise UsageError(f"compare() compares models of the CPU, got {models!r}; use `forktask compare --device gpu`")
    shown = {name: value for name, value in given.items() if name not in OF_PROGRAMS}
    grid = vars(configuration.grid)
    shown |= {"network": [*grid["network"]], "out": folder}
    if functions or programs:
        shown["models"] = [*map(str, grid["models"])]
    shown |= {"quick": True} if quick else {}
    compared = measure_comparison(configuration, folder, call_text("compare", shown), quick=quick)
    if not compared.usable:
        raise RuntimeError(f"nothing to compare in {folder}: {'; '.join(compared.failures)}")
    comparison = Comparison(folder)
    comparison.write_report()
    return comparison
