"""Surveys of several machines: a row of a table for each, and a folder with all of them and a page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from statistics import median
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.reading import decoding, read_regular
from ..report.files import REPORT
from ..report.rendering import render_html, render_text
from ..report.sections import Report, section
from ..results.files import output_folder, write_atomically
from ..subjects.models import TASKITER
from ..tables import Table, percent_column, text_column, time_column
from ..tables.numbers import plural
from . import is_survey, surveys_in
from .handovers import read_handovers
from .page import SURVEY, write_survey

JOINED = "surveys.json"  # rows of the table
MACHINES = (
    text_column("machine"),
    text_column("date"),
    text_column("cores", "cores, sockets, nodes"),
    text_column("peak", "GFLOP/s, one core"),
    text_column("bandwidth", "GB/s, all cores"),
    time_column("handover", "hand-over, median"),
    text_column("ratio", "cifar10_cnn, batch 64, all cores: taskiter / fork-join"),
    percent_column("off", "simulator off by"),
)


def machine_row(folder: Path) -> dict[str, Any]:
    """Return the row of a survey, from its survey.json and hand-overs. Raises `UsageError`: survey.json is missing or
    damaged."""
    content = read_regular(folder / SURVEY, "survey")
    with decoding(folder / SURVEY, "survey", f"write it again with forktask report {folder}"):
        result = json.loads(content)
        environment, most = result["environment"], max(result["limits"], key=lambda row: row["threads"])
        replayed = [
            row
            for row in result.get("answers of cifar10_cnn", ())
            if (row["model"], row["threads"], row["against"]) == (TASKITER, most["threads"], "forkjoin")
        ]
        known = replayed and replayed[0]["ratio"] is not None
        off = [row["error"] for row in result["simulator"] if row["threads"] == most["threads"]]
        pairs = read_handovers(folder)
        return {
            "folder": folder.name,
            "node": environment["node"],
            "created": result["created"],
            "machine": environment["cpu"]["model"] or "unknown",
            "date": result["created"][:10],
            "cores": ", ".join(str(environment["topology"][name]) for name in ("cores", "sockets", "nodes")),
            "peak": f"{result['machine']['peak_flops_per_s_1thread'] / 1e9:.0f}",
            "bandwidth": f"{most['bandwidth'] / 1e9:.0f}",
            "handover": median(pairs.values()) if pairs else None,
            "ratio": f"{replayed[0]['ratio']:.2f}, {replayed[0]['verdict']}" if known else "",
            "off": median(off) if off else None,
        }


def join_surveys(folders: Sequence[Path | str], out_dir: Path | str, as_json: bool) -> str:
    """Copy surveys into a folder, each once, and return its text as `report_surveys` does. `folders`: surveys, or
    folders of joined ones; they stay as they are; `out_dir`: new, empty, or with joined surveys. Raises `UsageError`: a
    folder that holds no survey, or a damaged one; an `out_dir` that is a survey or holds other files."""
    out, rows = Path(out_dir), {}
    for folder in map(Path, folders):
        if not (surveys := surveys_in(folder)):
            raise UsageError(
                f"folders that are joined must all be surveys or all results folders, got {str(folder)!r} without a "
                f"survey; leave it out"
            )
        rows |= {survey: machine_row(survey) for survey in surveys}
    if is_survey(out) or any(out.resolve().is_relative_to(survey.resolve()) for survey in rows):
        raise UsageError(
            f"--out must be a folder for several surveys, got {str(out)!r}, which is a survey or in one; choose another"
        )
    if not (output_folder(out, JOINED) / JOINED).exists():
        write_atomically(out / JOINED, "[]\n")
    there = [_same(machine_row(survey)) for survey in surveys_in(out)]
    for survey, row in rows.items():
        if _same(row) not in there:
            there.append(_same(row))
            copy = _free(out, re.sub(r"[^a-z0-9]+", "_", row["machine"].lower()).strip("_"))
            part = out / f".{copy.name}.part"
            try:
                shutil.copytree(survey, part, dirs_exist_ok=True)
                part.rename(copy)
            except OSError as error:
                shutil.rmtree(part, ignore_errors=True)
                # The copy of a folder has a list of failures, of which the first says enough.
                reason = error.strerror or str(error.args[0][0][2]).partition("] ")[2].partition(":")[0]
                raise UsageError(f"{survey} cannot be copied to {copy} ({reason}); choose another folder") from None
    return report_surveys(out, as_json)


def _same(row: dict[str, Any]) -> tuple:
    """Return what two copies of a survey have in common."""
    return row["node"], row["created"]


def _free(out: Path, name: str) -> Path:
    """Return a path of this name that is not there yet, with a number behind it where needed."""
    names = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(out / free for free in names if not (out / free).exists())


def write_joined(folder: Path) -> str:
    """Write report.html and surveys.json of joined surveys, and return the text for a terminal."""
    rows = [machine_row(survey) for survey in surveys_in(folder)]
    pages = ", ".join(f"`{row['folder']}/{REPORT}`" for row in rows)
    facts = {
        "title": f"Surveys of {plural(len(rows), 'machine')}",
        "created": max(row["created"] for row in rows),
        "command": f"forktask merge FOLDER... --out {folder.name}",
    }
    table = Table("machines", MACHINES, rows)
    sections = [section("Machines", table, sentences=[f"Pages: {pages}."])]
    report = Report(facts["title"], facts, sections=sections)
    write_atomically(folder / REPORT, render_html(report, []))
    write_atomically(folder / JOINED, json.dumps(rows, indent=1) + "\n")
    return f"{render_text(report)}\nReport: {folder / REPORT}"


def report_surveys(folder: Path, as_json: bool) -> str:
    """Write the page of a survey, or of joined ones, and return the text for a terminal, or their rows as JSON."""
    write, kept = (write_survey, SURVEY) if is_survey(folder) else (write_joined, JOINED)
    text = write(folder)
    return (folder / kept).read_text(encoding="utf-8").rstrip() if as_json else text
