"""`forktask simulate`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_json, number_from, numbers, show, texts

HELP = "predict the speedup on more threads, or on another machine"
DESCRIPTION = (
    "Replay a measured plan's graph with its serial block durations under each model's own policy, on any number of "
    "threads, and draw the predicted speedup with measured points and bounds. The folder must hold serial runs."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="results folder of compare, run or trace")
    parser.add_argument(
        "--threads",
        type=numbers,
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
    parser.add_argument("--format", choices=("pdf", "svg", "png"), default="svg", help="default: %(default)s")
    parser.add_argument("--column", choices=("double", "single"), default="double", help="7 in or 3.3 in wide")
    parser.add_argument("--no-title", action="store_true", help="leave out the lines above the panels")
    parser.add_argument("--file", metavar="FILE", help="the figure; default: DIR/figures/simulated[-MACHINE].FORMAT")
    add_json(parser, "the table")


def call(arguments: Namespace) -> int:
    """Simulate, print a table and draw a figure."""
    from ..report.simulation import format_simulation, simulate_folder

    result = simulate_folder(
        arguments.folder,
        threads=arguments.threads,
        models=arguments.models,
        machine=arguments.machine,
        plan=arguments.plan,
        seed=arguments.seed,
        kind=arguments.format,
        out=arguments.file,
        column=arguments.column,
        title=not arguments.no_title,
    )
    show(arguments, result, format_simulation)
    return 0
