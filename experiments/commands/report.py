"""`forktask report`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...cython_src.errors import UsageError, check_choice
from .arguments import add_json, texts

DESCRIPTION = (
    "Write summary.csv, figures/ and report.html again from samples.jsonl, and print the verdicts; or what one of the "
    "options requests instead."
)
_EXPORTS = {
    "csv": "raw samples, one row each, to DIR/exports, like the other exports",
    "bmf": "step times with their intervals for Bencher, as Bencher Metric Format",
    "github-action-benchmark": "the same for github-action-benchmark, tool `customSmallerIsBetter`",
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="results folder of compare, run or trace")
    parser.add_argument("--all", action="store_true", help="print all tables, which the page has too")
    parser.add_argument(
        "--figure", metavar="NAME", help="one figure, and its table: speedup, run_time, layers, batch, gantt, ..."
    )
    parser.add_argument("--column", help="of --figure: double (7 in, default) or single (3.3 in)")
    parser.add_argument("--format", dest="kind", help="of --figure: pdf (default), svg or png; else of all figures too")
    parser.add_argument(
        "--plan",
        metavar="ID",
        help="of --figure: first characters of a plan's id; default: main plan (gantt: of several, ID,ID; all)",
    )
    parser.add_argument("--panels", type=texts, metavar="a[,b...]", help="of --figure: letters of its panels")
    parser.add_argument("--no-title", action="store_true", help="of --figure: leave out the lines above the panels")
    parser.add_argument(
        "--models", type=texts, metavar="M[,M...]", help="of --figure and exports: these, in this order"
    )
    parser.add_argument(
        "--names", type=texts, metavar="N[,N...]", help="of --figure and exports: names of the --models"
    )
    parser.add_argument("--file", metavar="FILE", help="of --figure; default: below DIR/figures")
    for kind, text in _EXPORTS.items():
        parser.add_argument(f"--{kind}", dest="kinds", action="append_const", const=kind, help=text)
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Write the report, or the part of it that is asked for."""
    parts = [name for name in _PARTS if name and getattr(arguments, name)]
    if len(parts) > 1:
        requested = ", ".join(_OPTIONS[name] for name in parts)
        raise UsageError(f"one part of a report is written at a time, got {requested}; give a command for each")
    part = parts[0] if parts else ""
    write, belonging = _PARTS[part]
    for name in ("all", "column", "kind", "plan", "panels", "no_title", "models", "names", "file", "json"):
        if getattr(arguments, name) and name not in belonging:
            homes = [_OPTIONS[other] for other, (_, names) in _PARTS.items() if name in names]
            raise UsageError(
                f"{_OPTIONS[name]} belongs to {', '.join(homes)}, got it with {_OPTIONS[part]}; leave it out"
            )
    write(arguments)
    return 0


def _report(arguments: Namespace) -> None:
    from ..report.figures.style import FORMATS
    from ..report.files import report_folder
    from ..studies.running import results_of
    from ..survey import surveys_in

    if surveys_in(folder := Path(arguments.folder)):
        from ..survey.joined import report_surveys

        if option := "--format" if arguments.kind else "--all" if arguments.all else "":
            raise UsageError(f"{option} is for a sweep or a study, {arguments.folder!r} holds a survey; leave it out")
        print(report_surveys(folder, arguments.json))
        return
    if arguments.kind:
        check_choice("--format", arguments.kind, FORMATS)
    form = arguments.json, [arguments.kind] if arguments.kind else (), arguments.all
    if results := results_of(folder):
        from ..studies.report import write_study_report

        print(write_study_report(results, folder, *form))
    else:
        print(report_folder(folder, *form))


def _figure(arguments: Namespace) -> None:
    from ..report.files import draw_folder, figure_tables
    from ..studies.running import results_of

    form = {"column": arguments.column or "double", "kind": arguments.kind or "pdf"}
    form |= {"out": arguments.file, "title": not arguments.no_title}
    folder, models = Path(arguments.folder), _names(arguments)
    if results := results_of(folder):
        for name in ("plan", "panels", "models"):
            if getattr(arguments, name):
                raise UsageError(f"--{name} is for figures of samples, got a folder of trainings; leave it out")
        from ..studies.report import draw_study

        print(draw_study(results, folder, arguments.figure, **form))
    else:
        which = {"plan": arguments.plan, "models": models, "panels": arguments.panels}
        print(draw_folder(folder, arguments.figure, **which, **form))
        if tables := figure_tables(folder, arguments.figure, arguments.plan):
            print(f"\n{tables.rstrip()}")


def _names(arguments: Namespace) -> dict[str, str]:
    """Return the names of the models that are shown, "" for their own; none: all models."""
    models = arguments.models or ()
    names = arguments.names or [""] * len(models)
    if len(names) != len(models):
        raise UsageError(
            f"--names must name each of --models, got {len(names)} for {len(models)} models; give both alike"
        )
    return dict(zip(models, names, strict=True))


def _exports(arguments: Namespace) -> None:
    from ..report.exports import export_folder

    print(*export_folder(arguments.folder, arguments.kinds, _names(arguments)), sep="\n")


# Name of the part's argument -> what writes it, and the arguments that belong to it; "": the whole.
_PARTS = {
    "": (_report, ("all", "kind", "json")),
    "figure": (_figure, ("column", "kind", "plan", "panels", "no_title", "models", "names", "file")),
    "kinds": (_exports, ("models", "names")),
}
_NAMES = ("all", "figure", "column", "plan", "panels", "models", "names", "file", "json")
_OPTIONS = {"": "the whole report", "kinds": "exports", "kind": "--format", "no_title": "--no-title"}
_OPTIONS |= {name: f"--{name}" for name in _NAMES}
