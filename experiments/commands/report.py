"""`forktask report` and `forktask plot`: tables and figures from the samples of a folder."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from ...cython_src.errors import UsageError


def add_parser(subparsers) -> None:
    """Add the commands `report` and `plot`."""
    report = subparsers.add_parser(
        "report",
        help="write summary, figures and report.html again from the samples of a folder",
        description="Write summary.csv, figures/ and report.html again from samples.jsonl, and print the tables.",
    )
    report.add_argument("folder", metavar="DIR", help="results folder of compare or run")
    report.add_argument("--json", action="store_true", help="print the tables as JSON")
    report.set_defaults(run=run_report)
    plot = subparsers.add_parser(
        "plot",
        help="draw one figure from the samples of a folder",
        description="Draw one figure from samples.jsonl, with a caption text file beside it.",
    )
    plot.add_argument("folder", metavar="DIR", help="results folder of compare or run")
    plot.add_argument(
        "--figure",
        default="speedup",
        metavar="NAME",
        help="speedup (default), or another one of the report: layers, overhead, batch, ...",
    )
    plot.add_argument("--column", default="double", help="double (7 in, default) or single (3.3 in)")
    plot.add_argument("--format", default="pdf", dest="kind", help="pdf (default), svg or png")
    plot.add_argument(
        "--plan",
        metavar="ID",
        help="plan to draw, by the first characters of its id; default: the one with most samples",
    )
    plot.add_argument("--out", metavar="FILE", help="default: DIR/figures/NAME[-single].FORMAT")
    plot.set_defaults(run=run_plot)


def run_report(arguments: Namespace) -> int:
    """Write the report of a folder and print its tables."""
    from ..analysis.load import load  # pandas and seaborn take a second
    from ..report.files import write_study
    from ..report.render_json import render_json
    from ..report.render_text import render_text
    from ..report.sections import build

    study = load(arguments.folder)
    page = write_study(study, Path(arguments.folder))
    if arguments.json:
        print(json.dumps({**render_json(build(study)), "report": str(page)}, indent=2))
    else:
        print(render_text(build(study)))
        print(f"Report: {page}")
    return 0


def run_plot(arguments: Namespace) -> int:
    """Draw one figure of a folder."""
    from ..analysis.load import load  # pandas and seaborn take a second
    from ..report import figures
    from ..report.figures.style import FORMATS, save
    from ..report.files import FIGURE_FOLDER, figure_stem

    study = load(arguments.folder)
    plan_id = _chosen_plan(study, arguments.plan)
    if arguments.kind not in FORMATS:
        raise UsageError(f"--format must be one of {', '.join(FORMATS)}; got {arguments.kind!r}")
    figure = figures.draw(study, arguments.figure, plan_id, arguments.column)
    if arguments.out:
        path = Path(arguments.out)
    else:
        single = "-single" if arguments.column == "single" else ""
        stem = figure_stem(study, plan_id, arguments.figure)
        path = Path(arguments.folder) / FIGURE_FOLDER / f"{stem}{single}.{arguments.kind}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(figure, path)
        path.with_suffix(".txt").write_text(figures.caption(study, arguments.figure, plan_id) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the figure must be writable to {path}, got: {error.strerror}; choose --out") from None
    print(path)
    return 0


def _chosen_plan(study, prefix: str | None) -> str:
    from ..analysis.speeds import main_plan  # pandas and seaborn take a second
    from ..report.words import plan_title

    if not prefix:
        return main_plan(study)
    found = [p for p in study.plan_ids() if p.startswith(prefix)]
    if len(found) != 1:
        known = "; ".join(f"{p}: {plan_title(study, p)}" for p in study.plan_ids())
        raise UsageError(f"--plan must begin exactly one plan's id, got {prefix!r}; plans are {known}")
    return found[0]
