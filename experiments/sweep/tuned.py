"""The file in which `forktask tune` keeps the best granularity of each model, network and options."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import Granularity, PlanOptions, plan_options
from ...cython_src.reading import Amount, Name, Number, read_json
from ..results.files import locked_file, write_atomically
from ..results.folder import short_id

FORMAT_VERSION = 1


def problem_id(network: str, options: PlanOptions) -> str:
    """Return the identity of a plan's options without the granularity."""
    return short_id({"network": network, **options.with_changes(granularity="auto").as_dict()})


def _stored_id(plan: Mapping[str, Any]) -> str:
    """Return the `problem_id` of a plan in a file of any version."""
    if not isinstance(plan["network"], str):
        raise TypeError(f"network {plan['network']!r}")
    return problem_id(plan["network"], plan_options(plan))


class TunedRow(msgspec.Struct, kw_only=True):
    """What was found for a model on a number of threads; the times are for people."""

    model: Name
    threads: Number
    granularity: Name
    step_time_s: Amount | UnsetType | None = UNSET
    auto_time_s: Amount | UnsetType | None = UNSET
    seconds: Amount | UnsetType = UNSET
    times: dict[str, list[Amount]] | UnsetType = UNSET


class TunedProblem(msgspec.Struct, kw_only=True):
    """What was searched for."""

    plan: dict[str, Any]
    rows: list[TunedRow]
    candidates: list[str] | UnsetType = UNSET


class TunedFile(msgspec.Struct, kw_only=True):
    """Content of the file."""

    format_version: Literal[1]
    problems: list[TunedProblem]


def _read(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Return the problems of a file, once all of it is known to be right."""
    content = read_json(path, "file of forktask tune", TunedFile, "name another one")
    try:
        for problem in content.problems:
            _stored_id(problem.plan)
            for row in problem.rows:
                Granularity.parse(row.granularity)
        return msgspec.to_builtins(content)["problems"]
    except (UsageError, KeyError, TypeError) as error:
        raise UsageError(
            f"tuned must be a file of forktask tune, got {str(path)!r}: {error}; name another one"
        ) from None


def read_tuned(path: str | os.PathLike) -> dict[tuple[str, str, int], str]:
    """Read the granularities that `forktask tune` found, by (problem, model, threads).

    Raises
    ------
    UsageError
        No such file, or a file of another kind.
    """
    return {
        (_stored_id(problem["plan"]), row["model"], row["threads"]): row["granularity"]
        for problem in _read(path)
        for row in problem["rows"]
    }


def keep_tuned(path: str | os.PathLike, problem: Mapping[str, Any]) -> None:
    """Write a problem into the file, beside what it holds.

    Its rows take the place of those of the same model, number of threads and options; all others stay, also those that
    another process writes meanwhile.
    """
    path = Path(path)
    with locked_file(path.parent, wait=True):
        kept, former = [], []
        for other in _read(path) if path.exists() else []:
            same = _stored_id(other["plan"]) == _stored_id(problem["plan"])
            (former.extend(other["rows"]) if same else kept.append(other))
        found = {(row["model"], row["threads"]) for row in problem["rows"]}
        rows = [*(row for row in former if (row["model"], row["threads"]) not in found), *problem["rows"]]
        content = {"format_version": FORMAT_VERSION, "problems": [*kept, {**problem, "rows": rows}]}
        write_atomically(path, json.dumps(content, indent=1, default=str) + "\n")
