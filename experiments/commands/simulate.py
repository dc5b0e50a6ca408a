"""`forktask simulate`, also a function."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from ...cython_src.errors import UsageError
from ...cython_src.reading import Count
from .arguments import add_json, number_from, several, several_of, show, texts
from .functions import Result

DESCRIPTION = (
    "Replay a measured plan's graph with its serial block durations under each model's own policy, on any number of "
    "threads, and draw the predicted speedup with measured points and bounds. The folder must hold serial runs."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="results folder of compare, run or trace")
    parser.add_argument(
        "--threads",
        type=several_of(number_from(0)),
        metavar="N[,N...]",
        help="numbers of threads, up to 1024; default: powers of two up to four times the measured ones",
    )
    parser.add_argument(
        "--models", type=texts, metavar="M[,M...]", help="models to simulate; default: those that were measured"
    )
    parser.add_argument(
        "--machine",
        metavar="FILE",
        help="another machine, as `forktask info --machine FILE` writes it; default: the one that measured",
    )
    parser.add_argument("--plan", metavar="ID", help="plan, by the first characters of its id; default: the main one")
    parser.add_argument("--seed", type=number_from(0), default=0, metavar="N", help="of stealing; default: %(default)s")
    parser.add_argument("--file", metavar="FILE", help="the figure; default: DIR/figures/simulated[-MACHINE].svg")
    add_json(parser, "the table")


def simulate(
    results: str | os.PathLike[str],
    *,
    threads: int | Sequence[int] | None = None,
    models: str | Sequence[str] | None = None,
    machine: str | os.PathLike[str] | None = None,
    plan: str | None = None,
    seed: Count = 0,
) -> Result:
    """Predict the speedup on more threads, or on another machine, as `forktask simulate` does; a row a model and number
    of threads: simulated and measured step time, error, speedup, efficiency, idle.

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
    from ..analysis.names import with_texts
    from ..report.simulation import format_simulation, simulate_plan
    from ..simulate.machine_model import MAX_CORES, read_machine
    from ..subjects.models import parse_models

    counts = several(threads) if threads else None
    if counts and not all(1 <= n <= MAX_CORES for n in counts):
        raise UsageError(f"--threads of a simulation must be in [1, {MAX_CORES}], got {', '.join(map(str, counts))}")
    specs, other = parse_models(several(models)) if models else None, read_machine(machine) if machine else None
    data, table, chart = simulate_plan(Path(results), counts, specs, other, plan, seed)
    text, charts = format_simulation(data), {"simulated": lambda: chart}
    return Result(f"Simulation of {data['title']}", with_texts(table), text, charts=charts, data=data)


def call(arguments: Namespace) -> int:
    """Simulate, print a table and draw a figure."""
    from ..report.figures.style import save_asked
    from ..report.simulation import format_simulation

    a = arguments
    result = simulate(a.folder, threads=a.threads, models=a.models, machine=a.machine, plan=a.plan, seed=a.seed)
    name = "simulated" + (f"-{Path(a.machine).stem}" if a.machine else "")
    path = save_asked(result.figure(), a.folder, name, "double", "svg", a.file, result.caption() + "\n")
    show(a, {**result.data, "figure": str(path)}, format_simulation)
    return 0
