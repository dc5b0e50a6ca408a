"""`forktask study`."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import ArgumentParser, Namespace
from datetime import datetime
from pathlib import Path

from .arguments import add_device_of_file, add_json

HELP = "run a training study described in a TOML file"
DESCRIPTION = (
    "Train all combinations of networks, batches, models, optimisers and seeds that a TOML file names, or one of those "
    "shipped with forktask, and report losses, errors, accuracy over time, time and memory. A study that was "
    "interrupted goes on in its folder."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    from ..results.files import SHIPPED

    parser.epilog = f"Shipped: {', '.join(sorted(p.stem for p in SHIPPED['study'].glob('*.toml')))}."
    parser.add_argument("file", metavar="FILE", help="a TOML file, or the name of a shipped one")
    add_device_of_file(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the runs")
    parser.add_argument(
        "--out", metavar="DIR", help="results folder, new or of the same study; default: studies/<date and time>"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few epochs: a check that it works")
    add_json(parser, "the tables")


def call(arguments: Namespace) -> int:
    """Train what is missing, and print and write the report. Exit code 1: a run failed, or weights differ."""
    from ..studies.configuration import find_study
    from ..studies.report import as_json, write_study_report
    from ..studies.running import obstacles, run_study
    from ..studies.tables import agreement

    study = find_study(arguments.file).on(arguments.device)
    if arguments.quick:
        study = study.quick()
    if arguments.dry_run:
        for text in filter(None, (study.title, study.how_to_read)):
            print(f"{text}\n")
        for run in study.runs():
            print(f"{run.label}, seed {run.seed}, {' + '.join(str(s.epochs) for s in run.stages)} epochs")
        for text in obstacles(study):
            print(f"\ncannot run: {text}")
        return 0
    out = Path(arguments.out or f"studies/{datetime.now().strftime('%Y%m%d-%H%M%S')}")

    def report(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    try:
        results = run_study(study, out, report)
    except KeyboardInterrupt:
        print(f"\nstopped; go on with: forktask study {arguments.file} --out {out}", file=sys.stderr)
        raise
    text = write_study_report(results, out, shlex.join(["forktask", *sys.argv[1:]]))
    print(json.dumps(as_json(results), indent=1) if arguments.json else text)
    return 1 if results.failed() or agreement(results)[1] else 0
