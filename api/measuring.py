"""Further commands as functions: what tasks cost, tuning, this machine, training, evaluation. Each returns a
`Result`."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .comparison import call_text, named_network
from .cython_src.errors import UsageError, check_choice
from .cython_src.lowering import PlanOptions
from .cython_src.networks.layers import Network
from .cython_src.records import fields
from .cython_src.shown import Shown
from .experiments.machine.topology import core_counts
from .experiments.metg.graphs import TaskBenchOptions, graph_name, requested_graphs
from .experiments.metg.metg import MetgSettings
from .experiments.results.folder import dated_folder
from .experiments.sweep.configuration import Grid
from .experiments.sweep.tuned import MODELS, SearchSettings
from .experiments.training.config import TrainingConfig
from .experiments.training.evaluate import EvaluationSettings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .experiments.report.figures.chart import Chart

__all__ = ["Result", "evaluate", "info", "metg", "train", "tune"]

SETTINGS = {  # names that `**settings` takes
    name: [field.name for record in records for field in fields(record)]
    for name, records in {
        "metg": (TaskBenchOptions, MetgSettings, PlanOptions),
        "tune": (SearchSettings, PlanOptions),
        "train": (TrainingConfig,),
        "evaluate": (TrainingConfig, EvaluationSettings),
    }.items()
}


class Result(Shown):
    """What `metg`, `tune`, `info`, `train` and `evaluate` return, and base of `Simulation` and `Diagnosis`. Printing
    one prints what the command prints.

    Attributes
    ----------
    table : DataFrame
    figures : list of str
        Names of the figures that there are.
    folder : Path or None
        Where files were left.
    """

    def __init__(
        self,
        title: str,
        table: pd.DataFrame,
        text: str,
        folder: Path | None = None,
        charts: dict[str, Any] | None = None,
    ):
        self.table, self.folder, self._title, self._text = table, folder, title, text
        self._charts = dict(charts or {})
        self.figures = list(self._charts)

    def figure(
        self, name: str | None = None, *, column: str = "double", title: bool = True, ax: Axes | None = None
    ) -> Figure:
        """Draw a figure, by default the first, 7 in ("double") or 3.3 in ("single") wide; of one panel into `ax`.

        Raises
        ------
        UsageError
            Another name or column, or axes for several panels.
        """
        from .experiments.report.figures.chart import drawn
        from .experiments.report.figures.style import COLUMN_WIDTH_IN, in_style

        check_choice("the column", column, COLUMN_WIDTH_IN)
        with in_style():
            return drawn(self._chart(name), column, title, ax)

    def figure_data(self, name: str | None = None) -> pd.DataFrame:
        """Return the numbers behind a figure, one row per value, as `Comparison.figure_data` does."""
        from .experiments.analysis.names import with_texts

        return with_texts(self._chart(name).data())

    def caption(self, name: str | None = None) -> str:
        """Return a figure's caption."""
        return self._chart(name).text

    def _chart(self, name: str | None) -> Chart:
        if not self.figures:
            raise UsageError(
                f"name of figure must be one that {self!r} has, and there is none, got {name!r}; print it, or take its "
                f"table"
            )
        name = self.figures[0] if name is None else name
        check_choice("name of figure", name, self.figures)
        return self._charts[str(name)]()

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table.to_dict("records")
        return rows

    def __repr__(self) -> str:
        return f"<{self._title}: {len(self.table)} rows>"

    def __str__(self) -> str:
        return self._text


def metg(
    pattern: str | Sequence[str] = "stencil_1d",
    *,
    network: str | Network | None = None,
    models: str | Sequence[str] | None = None,
    threads: int | Literal["cores"] | Sequence[int] = "cores",
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Result:
    """Measure what a runtime costs per task, as `forktask metg` does; a figure for each graph.

    Parameters
    ----------
    pattern : str or several
        Of Task Bench graphs.
    network : str or Network, optional
        Its graph in place of those.
    models : str or several, optional
        Default: those of `compare` that run tasks, and the built outside references.
    threads : int or several, or "cores"
        As for `compare`.
    out : path, optional
        Results folder; default: metg/<date and time>.
    **settings
        Size and kernel of a graph (`width`, `steps`, `kernel`, ...) or options of the network's plan, and how to
        measure (`repeats`, `interference`, `quick`, ...).

    Raises
    ------
    UsageError
        An unknown name or value, or a folder that holds other results.
    """
    import pandas as pd

    from .experiments.metg.figure import chart
    from .experiments.metg.metg import default_models, measure_metg
    from .experiments.metg.table import as_csv, format_table

    folder = Path(dated_folder("metg") if out is None else out)
    of_graph, measuring, plan = (_of(record, settings) for record in (TaskBenchOptions, MetgSettings, PlanOptions))
    name = network if network is None else named_network(network, folder.parent)
    graphs = requested_graphs(_several(pattern), name, of_graph, plan)
    chosen = default_models() if models is None else _several(models)
    shown = {"network": name, "models": chosen, "threads": threads, **settings, "out": str(folder)}
    call = call_text("metg", {"pattern": pattern, **shown})
    result = measure_metg(graphs, chosen, _counts(threads), MetgSettings(**measuring), folder, call)
    by_name: dict[str, list] = {}
    for entry in result["results"]:
        if entry["repeats"]:
            by_name.setdefault(graph_name(entry["graph"]), []).append(entry)
    table = pd.read_csv(io.StringIO(as_csv(result)), keep_default_na=False, na_values=[""])
    charts = {name: partial(chart, own) for name, own in by_name.items()}
    return Result(f"METG in {folder}", table, format_table(result), folder, charts)


def tune(
    network: str | Network = "cifar10_cnn",
    *,
    models: str | Sequence[str] = MODELS,
    threads: int | Sequence[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Result:
    """Search the granularity at which each model is fastest, as `forktask tune` does.

    Parameters
    ----------
    network : str or Network
    models : str or several
    threads : int or several, optional
        Default: the physical cores that this process may use.
    out : path, optional
        New or empty folder, or one of the same search, which goes on; `compare(..., tuned=out)` reads it. Default:
        tune/<date and time>.
    **settings
        Options of the search: `budget` (granularities that are tried for each model), `seconds` (that each is timed),
        `seed`, `places`, `bind`, ...; and of the plan, such as `batch=16`.

    Raises
    ------
    UsageError
        An unknown name or value, a folder that holds something else, or no model could be measured.
    """
    import pandas as pd

    from .experiments.sweep.comparison import measure_comparison
    from .experiments.sweep.tune import as_text, search_of, search_result

    if "granularity" in settings:
        raise UsageError(f"tune() searches the granularity, got granularity={settings['granularity']!r}; leave it out")
    counts = _counts(core_counts()[-1] if threads is None else threads)
    folder = Path(out or dated_folder("tune"))
    plan = {"network": named_network(network, folder.parent), **_of(PlanOptions, settings)}
    grid = Grid(**{name: (value,) for name, value in plan.items()}, models=_several(models), threads=counts)
    search = search_of(grid, SearchSettings(**_of(SearchSettings, settings)))
    shown = {"network": plan["network"], "models": models, "threads": counts, **settings, "out": str(folder)}
    if not measure_comparison(search, str(folder), call_text("tune", shown)).usable:
        raise UsageError(f"no model could be measured; the rows of {folder} say why")
    result = search_result(folder)
    rows = [{**row, "model": str(row["model"])} for row in result["rows"]]
    return Result(f"granularities in {folder}", pd.DataFrame(rows), as_text(result, str(folder)), folder)


def info() -> Result:
    """Describe this machine and say whether it is fit for measuring, as `forktask info` does (about a second)."""
    import pandas as pd

    from .experiments.machine.info import describe_machine, format_page, machine_topics

    result = describe_machine()
    table = pd.DataFrame(machine_topics(result).items(), columns=["topic", "text"])
    return Result(f"machine, {result['verdict']['level']} for measuring", table, format_page(result))


def train(
    network: str | Network = "cifar10_cnn",
    data: str = TrainingConfig().data,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **settings: Any,
) -> Result:
    """Train a network as `forktask train` does, with checkpoints, and a figure of accuracy over time.

    Parameters
    ----------
    network : str or Network
    data : str
        Such as "digits" or "cifar10:FOLDER".
    out : path, optional
        New or empty folder; default: trainings/<date and time>.
    resume : bool
        Go on after the last checkpoint in `out`.
    **settings
        Options of the training and of its plan: `epochs`, `model`, `threads`, `learning_rate`, `batch`, ...

    Raises
    ------
    UsageError
        An unknown name or value, data that the network cannot learn, or a folder that holds something else.
    """
    import pandas as pd

    from .experiments.training.curves import accuracy_chart, history_table
    from .experiments.training.train import configure, histories_of, summary_text
    from .experiments.training.train import train as run_training

    folder = Path(dated_folder("trainings") if out is None else out)
    given = {"network": named_network(network, folder.parent), "data": data, "out": str(folder), **settings}
    summary = run_training(configure(given, resume), resume, lambda _: None)
    histories = histories_of(folder)
    names, rows = history_table(histories)
    charts = {"accuracy": partial(accuracy_chart, histories, summary)}
    return Result(summary.title, pd.DataFrame(rows, columns=names), summary_text(summary), folder, charts)


def evaluate(
    weights: str | os.PathLike[str],
    network: str | Network = "cifar10_cnn",
    data: str = TrainingConfig().data,
    *,
    conv: str | Sequence[str] = TrainingConfig().conv,
    out: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Result:
    """Evaluate given weights on a data set as `forktask evaluate` does; a row for each form of convolutions: accuracy,
    median seconds of a pass, and of each kind of layer in blocks, summed over threads.

    Parameters
    ----------
    weights : path
        File of parameters: safetensors, or .pt and .pth of PyTorch.
    network, data
        As for `train`.
    conv : str or several
        Forms of convolutions, which take turns.
    out : path, optional
        New or empty folder; default: evaluations/<date and time>.
    **settings
        What is evaluated and how often (`split`, `images`, `passes`), and options of the plan (`batch`, ...), of data
        and model (`threads`, `model`, ...).

    Raises
    ------
    UsageError
        An unknown name or value, weights that are not the network's, data that it cannot read, or a folder that holds
        something else.
    """
    import pandas as pd

    from .experiments.training.evaluate import configure_evaluation, evaluation_table, evaluation_text
    from .experiments.training.evaluate import evaluate as run_evaluation

    folder = Path(dated_folder("evaluations") if out is None else out)
    given = {"network": named_network(network, folder.parent), "data": data, "out": str(folder)}
    config = configure_evaluation({**given, **_of(TrainingConfig, settings)}, _several(conv))
    measuring = EvaluationSettings(weights=str(weights), **_of(EvaluationSettings, settings))
    rows = run_evaluation(config, _several(conv), measuring, lambda _: None)
    table = pd.DataFrame(evaluation_table(rows, config))
    return Result(f"evaluation in {folder}", table, evaluation_text(rows, config), folder)


def _of(record: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are fields of a record."""
    return {field.name: settings[field.name] for field in fields(record) if field.name in settings}


def _several(value: Any) -> tuple[Any, ...]:
    result = (value,) if isinstance(value, str | int) else tuple(value)
    if not result:
        raise UsageError(f"what has several values must have one at least, got {value!r}; leave it out for the default")
    return result


def _counts(threads: int | Literal["cores"] | Sequence[int]) -> tuple[int, ...]:
    return core_counts() if threads == "cores" else _several(threads)
