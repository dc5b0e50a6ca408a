"""`forktask diagnose`, also a function."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from .arguments import add_json
from .functions import Result, call_function

DESCRIPTION = (
    "Look through the results of compare or run, and the event logs of trace, for what costs time: chains of dependent "
    "blocks, imbalance, barriers, creation, block sizes, bandwidth, outliers. Gains are estimated by simulation."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", metavar="DIR", help="results folder of compare, run or trace")
    add_json(parser, "the findings")


def diagnose(results: str | os.PathLike[str]) -> Result:
    """Say what costs time, what to try, and what that would bring, as `forktask diagnose` does; a row for each finding:
    case, kind, seconds of a step that it costs, text, what to try, what that brings.

    Parameters
    ----------
    results : path, Comparison or Trace
        A results folder.

    Raises
    ------
    UsageError
        No results there, or nothing in them.
    """
    import pandas as pd

    from ..report.findings import diagnose_folder, format_findings

    data = diagnose_folder(Path(results))
    rows = [{"case": case["title"], **finding} for case in data["cases"] for finding in case["findings"]]
    table = pd.DataFrame(rows, columns=["case", "kind", "cost_s", "text", "attempt", "brings"])
    title = f"Diagnosis of {len(data['cases'])} plans and logs"
    return Result(title, table, format_findings(data), data=data)


def call(arguments: Namespace) -> int:
    """Print the findings."""
    call_function(diagnose, arguments)
    return 0
