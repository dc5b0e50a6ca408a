"""Results of scaling tests as text for a terminal, Markdown, JUnit properties, and JSON Lines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..machine.environment import collect
from ..results.files import LINES, check_appendable, check_writable, write_atomically
from ..tables import Column, markdown_cell, markdown_table
from ..tables.numbers import plural
from .clock import describe_null

TITLE = "Scaling tests"
OUTCOMES = {"pass": "within", "fail": "**beyond**", "inconclusive": "inconclusive"}
ENDS = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive"}


def _time(name: str) -> Column:
    heading = name.removesuffix("_us").replace("_", " ")
    return Column(heading, lambda r: f"{r['predicted'][name]:g} µs", True)


def _speedups(row: Mapping[str, Any]) -> str:
    threads = row["predicted"]["threads"].items()
    return "; ".join(f"{n}: {', '.join(f'{s:.2f}' for s in result['speedup'].values())}" for n, result in threads)


SUBJECT = Column("subject", lambda r: r["subject"])
GRAPHS = (
    SUBJECT,
    Column("tasks", lambda r: str(r["graph"]["tasks"]), True),
    Column("edges", lambda r: str(r["graph"]["edges"] + r["graph"]["cross_edges"]), True),
    *map(_time, ("work_us", "span_us", "cycle_mean_us")),
    Column("best speedup on threads: fork-join, taskgraph, taskiter", _speedups),
)
CLAIMS = (
    SUBJECT,
    Column("claim", lambda r: r["claim"]),
    Column("measured", lambda r: r["value_text"]),
    Column("claimed", lambda r: r["said"]),
    Column("verdict in this session", lambda r: OUTCOMES[r["verdict"]]),
    Column("generations", lambda r: str(r["num_generations"]), True),
    Column("undisturbed rounds", lambda r: str(r["num_rounds"]), True),
    Column("disturbed", lambda r: str(r["num_disturbed"]), True),
    Column("time", lambda r: f"{r['elapsed_s']:.0f} s", True),
)


def describe_claim(row: Mapping[str, Any]) -> str:
    """Return what came out for a claim, and what it cost."""
    return (
        f"{row['claim']} is {row['value_text']}, claimed {row['said']}: {row['verdict']} "
        f"in this session ({plural(row['num_generations'], 'generation')}, "
        f"{plural(row['num_disturbed'], 'round')} disturbed{row['cores']}, {row['elapsed_s']:.0f} s)"
    )


def junit_properties(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (name, value) pairs for a test case: tiers, predictions and claims."""
    result = []
    for row in rows:
        if row["kind"] == "tier":
            result.append((f"scaling.{row['tier']} {row['subject']}", "; ".join(row["failures"]) or "ok"))
        elif row["kind"] == "model":
            for count, values in row["predicted"]["threads"].items():
                for name, speedup in values["speedup"].items():
                    result.append((f"scaling.predicted_speedup {name} on {count}, {row['subject']}", f"{speedup:g}"))
        elif row["kind"] == "clock":
            result.append((f"scaling.clock {row['claim']}, {row['subject']}", describe_claim(row)))
    return result


def terminal_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each tier and claim."""
    lines = []
    for row in rows:
        if row["kind"] == "tier":
            lines.append(f"{row['tier']:5} {row['subject']}: {'; '.join(row['failures']) or 'ok'}")
        elif row["kind"] == "clock":
            lines.append("; ".join(filter(None, (f"clock {row['subject']}: {describe_claim(row)}", row["reason"]))))
        elif row["kind"] == "untimed":
            lines.append(f"clock {row['subject']}: {row['claim']} was not timed, {row['reason']}")
        elif row["kind"] == "null":
            lines.append(f"null  {row['subject']}: {row['claim']}, at most {row['limit']:g}: {describe_null([row])}")
    if nulls := [row for row in rows if row["kind"] == "null"]:
        lines.append(f"in all {describe_null(nulls)}")
    verdicts = [row["verdict"] for row in rows if row["kind"] == "clock"]
    if verdicts:
        counts = (f"{verdicts.count(name)} {text}" for name, text in ENDS.items() if name in verdicts)
        lines.append(f"claims about times: {', '.join(counts)}")
    return lines


def markdown(rows: Sequence[Mapping[str, Any]], title: str = TITLE) -> str:
    """Format the tables of a job: graphs, claims, failures."""
    lines = [f"## {title}", ""]
    outcomes = [row["outcome"] for row in rows if row["kind"] == "test"]
    if outcomes:
        counts = [f"{outcomes.count(o)} {o}" for o in ("passed", "failed", "skipped") if o in outcomes]
        lines += [f"{', '.join(counts)}.", ""]
    graphs = [row for row in rows if row["kind"] == "model"]
    if graphs:
        lines += [*markdown_table(GRAPHS, graphs), ""]
    claims = [row for row in rows if row["kind"] == "clock"]
    if claims:
        lines += [*markdown_table(CLAIMS, claims), ""]
    if nulls := [row for row in rows if row["kind"] == "null"]:
        lines += [f"In all {describe_null(nulls)}.", ""]
    for row in claims:
        if row.get("same_results") is False:
            lines += [f"{row['claim']}: the commits leave different results.", ""]
    for row in rows:
        if row["kind"] == "tier" and row["failures"]:
            listed = (f"- {markdown_cell(line)}" for line in row["failures"])
            lines += [f"### {row['tier']} tier, {row['subject']}", "", *listed, ""]
    return "\n".join(lines) + "\n"


def summaries(requested: str | None) -> list[str]:
    """Return the files to which a Markdown summary is appended: the one asked for, and that of GitHub Actions."""
    return [path for path in (requested, os.environ.get("GITHUB_STEP_SUMMARY")) if path]


def check_outputs(jsonl: str | None, requested: str | None) -> None:
    """Raise `UsageError` unless `write` can write its files, before anything is measured."""
    for path in summaries(requested):
        check_appendable(path)
    if jsonl:
        check_writable(jsonl, LINES)


def write(rows: Sequence[Mapping[str, Any]], jsonl: str | None, requested: str | None, title: str = TITLE) -> None:
    """Write the environment and all rows as JSON Lines to a file where one is named, and append the summary to the
    files of `summaries`."""
    if jsonl:
        lines = [{"kind": "run", "schema_version": 1, "environment": collect()}, *rows]
        write_atomically(jsonl, "".join(json.dumps(line, default=str) + "\n" for line in lines), kind=LINES)
    for path in summaries(requested):
        with open(path, "a", encoding="utf-8") as file:
            file.write(markdown(rows, title))
