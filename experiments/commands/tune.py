"""`forktask tune`, also a function."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.lowering import PlanOptions
from ...cython_src.networks.layers import Network
from ...cython_src.records import takes
from ..machine.topology import core_counts
from ..results.folder import dated_folder
from ..subjects.models import check_ours, parse_models
from ..sweep.configuration import Grid
from ..sweep.tuned import MODELS, SearchSettings
from . import arguments as shared
from .functions import NothingMeasured, Result, call_function, call_text, fields_of, named_network

DESCRIPTION = (
    "Search the granularity at which each execution model is fastest, with the same candidates for each: a sweep, "
    "which writes a results folder with a report. `forktask compare --tuned DIR` takes the best granularities from it."
)


def add_arguments(parser: ArgumentParser) -> None:
    shared.add_plan_options(parser, leave_out=("granularity",))
    shared.add_models(parser, MODELS)
    shared.add_threads(parser, None, "the physical cores of this process")
    shared.add_fields(parser, SearchSettings)
    shared.add_out(parser, "tune")
    shared.add_json(parser)


@takes(SearchSettings, PlanOptions)
def tune(
    network: str | Network = "cifar10_cnn",
    *,
    models: str | Sequence[str] = MODELS,
    threads: int | Sequence[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    command: str = "",
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
    command : str
        Command that continues the search, which the folder names; default: this call.
    **settings
        Options of the search: `budget` (granularities that are tried for each model), `seconds` (that each is timed),
        `seed`, `places`, `bind`, ...; and of the plan, such as `batch=16`.

    Raises
    ------
    UsageError
        An unknown name or value, a folder that holds something else, or no model could be measured.
    """
    import pandas as pd

    from ..report.files import write_report
    from ..sweep.comparison import measure_comparison
    from ..sweep.tune import as_text, search_of, search_result

    if "granularity" in settings:
        raise UsageError(f"tune() searches the granularity, got granularity={settings['granularity']!r}; leave it out")
    specs = check_ours(parse_models(shared.several(models)))
    counts = core_counts()[-1:] if threads is None else shared.thread_counts(threads, specs)
    folder = Path(out or dated_folder("tune"))
    plan = {"network": named_network(network, folder.parent), **fields_of(PlanOptions, settings)}
    grid = Grid(**{name: (value,) for name, value in plan.items()}, models=specs, threads=counts)
    search = search_of(grid, SearchSettings(**fields_of(SearchSettings, settings)))
    shown = {"network": plan["network"], "models": models, "threads": counts, **settings, "out": str(folder)}
    if not measure_comparison(search, str(folder), command or call_text("tune", shown)).usable:
        raise NothingMeasured(f"no model could be measured; the rows of {folder} say why")
    write_report(folder)
    data = search_result(folder)
    table = pd.DataFrame([{**row, "model": str(row["model"])} for row in data["rows"]])
    return Result(f"granularities in {folder}", table, as_text(data, str(folder)), folder, data=data)


def call(arguments: Namespace) -> int:
    """Measure the candidates, and print the best ones. Exit code 1: no model could be measured."""
    try:
        call_function(tune, arguments, **shared.given_options(arguments))
    except NothingMeasured:  # what failed is printed
        return 1
    return 0
