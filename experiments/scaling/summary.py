"""Results of scaling tests as text for a terminal, Markdown, JUnit properties, and JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..machine.environment import collect

VERDICTS = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive"}
OUTCOMES = {"pass": "within", "fail": "**beyond**", "inconclusive": "inconclusive"}


def json_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the environment and all rows as JSON Lines."""
    first = {"kind": "run", "schema_version": 1, "environment": collect()}
    return "".join(json.dumps(row) + "\n" for row in (first, *rows))


def junit_properties(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return (name, value) pairs for a test case: tiers, predictions and claims."""
    found = []
    for row in rows:
        if row["kind"] == "tier":
            verdict = "; ".join(row["failures"]) or "ok"
            found.append((f"scaling.{row['tier']} {row['subject']}", verdict))
        elif row["kind"] == "model":
            for count, values in row["predicted"]["threads"].items():
                for name, speedup in values["speedup"].items():
                    found.append((f"scaling.predicted_speedup {name} on {count}, {row['subject']}", f"{speedup:g}"))
        elif row["kind"] == "clock":
            verdict = (
                f"{row['verdict']}: {row['value_text']}, {row['said']}, {row['num_rounds']} rounds, "
                f"{row['num_discarded']} discarded, {row['elapsed_s']:.1f} s"
            )
            found.append((f"scaling.clock {row['claim']}, {row['subject']}", verdict))
    return found


def terminal_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each tier and claim."""
    lines = []
    for row in rows:
        if row["kind"] == "tier":
            lines.append(f"{row['tier']:5} {row['subject']}: {'; '.join(row['failures']) or 'ok'}")
        elif row["kind"] == "clock":
            lines.append(
                f"clock {row['subject']}: {row['claim']} is {row['value_text']}, claimed {row['said']}: "
                f"{row['verdict']} ({row['num_rounds']} rounds, {row['num_discarded']} discarded, "
                f"{row['elapsed_s']:.0f} s)"
            )
        elif row["kind"] == "untimed":
            lines.append(f"clock {row['subject']}: {row['claim']} was not timed, the budget is 0")
    verdicts = [row["verdict"] for row in rows if row["kind"] == "clock"]
    if verdicts:
        counts = (f"{verdicts.count(name)} {said}" for name, said in VERDICTS.items() if name in verdicts)
        lines.append(f"claims about times: {', '.join(counts)}")
    return lines


def markdown(rows: Sequence[Mapping[str, Any]], title: str = "Scaling tests") -> str:
    """Format the tables of a job: graphs, claims, discarded rounds, failures."""
    lines = [f"## {title}", ""]
    outcomes = [row["outcome"] for row in rows if row["kind"] == "test"]
    if outcomes:
        counts = [f"{outcomes.count(o)} {o}" for o in ("passed", "failed", "skipped") if o in outcomes]
        lines += [f"{', '.join(counts)}.", ""]
    graphs = [row for row in rows if row["kind"] == "model"]
    if graphs:
        lines += [
            (
                "| subject | tasks | edges | work | span | cycle mean | "
                "best speedup on threads: fork-join, taskgraph, taskiter |"
            ),
            "|---|--:|--:|--:|--:|--:|---|",
        ]
        for row in graphs:
            graph, predicted = row["graph"], row["predicted"]
            speedups = "; ".join(
                f"{n}: {', '.join(f'{s:.2f}' for s in values['speedup'].values())}"
                for n, values in predicted["threads"].items()
            )
            lines.append(
                f"| {_cell(row['subject'])} | {graph['tasks']} | {graph['edges'] + graph['cross_edges']} | "
                f"{predicted['work_us']:g} us | {predicted['span_us']:g} us | {predicted['cycle_mean_us']:g} us | "
                f"{speedups} |"
            )
        lines.append("")
    claims = [row for row in rows if row["kind"] == "clock"]
    if claims:
        lines += [
            "| subject | claim | measured | claimed | verdict | rounds | discarded | time |",
            "|---|---|---|---|---|--:|--:|--:|",
        ]
        for row in claims:
            lines.append(
                f"| {_cell(row['subject'])} | {_cell(row['claim'])} | {row['value_text']} | {row['said']} | "
                f"{OUTCOMES[row['verdict']]} | {row['num_rounds']} | {row['num_discarded']} | "
                f"{row['elapsed_s']:.0f} s |"
            )
        lines.append("")
    for row in claims:
        discarded = [f"{k + 1} ({r['discarded']})" for k, r in enumerate(row["rounds"]) if r["discarded"]]
        if discarded:
            lines += [f"Disturbed rounds of {row['claim']}, discarded and repeated: {', '.join(discarded)}.", ""]
        if row.get("same_results") is False:
            lines += [f"{row['claim']}: the commits leave different results.", ""]
    broken = [row for row in rows if row["kind"] == "tier" and row["failures"]]
    for row in broken:
        lines += [
            f"### {row['tier']} tier, {row['subject']}",
            "",
            *(f"- {_cell(line)}" for line in row["failures"]),
            "",
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
