"""`forktask diagnose`, also a function."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import Any

from ...cython_src.shown import as_html
from .arguments import add_json
from .functions import InFolder, Result, call_function, folder_of_results

DESCRIPTION = (
    "Look through the results of compare or run, and the event logs of trace, for what costs time: chains of dependent "
    "blocks, imbalance, barriers, creation, block sizes, bandwidth, outliers. Gains are estimated by simulation."
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("results", metavar="DIR", help="results folder of compare, run or trace")
    add_json(parser, "the findings")


class Diagnosis(Result):
    """What `diagnose` returns. Printing one prints the findings as the command line does.

    Attributes
    ----------
    cases : list of dict
        One for each plan and event log: "title", "findings" (the most costly first), "skipped" (why there are none).
    table : DataFrame
        One row a finding: case, kind, seconds of a step that it costs, text, what to try, what that brings.
    """

    def __init__(self, cases: list[dict[str, Any]], remark: str = ""):
        import pandas as pd

        from ..report.findings import format_findings

        self.cases = cases
        rows = [{"case": case["title"], **finding} for case in cases for finding in case["findings"]]
        table = pd.DataFrame(rows, columns=["case", "kind", "cost_s", "text", "attempt", "brings"])
        data = {"cases": cases, "remark": remark}
        super().__init__(f"Diagnosis of {len(cases)} plans and logs", table, format_findings(data), data=data)

    def _repr_html_(self) -> str:
        skipped = [f"{case['title']}: {case['skipped']}" for case in self.cases if case["skipped"]]
        return as_html(repr(self), self._rows(), skipped)


def diagnose(results: str | os.PathLike[str] | InFolder) -> Diagnosis:
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
    from ..report.findings import diagnose_folder

    return Diagnosis(**diagnose_folder(folder_of_results(results)))


def call(arguments: Namespace) -> int:
    """Print the findings."""
    call_function(diagnose, arguments)
    return 0
