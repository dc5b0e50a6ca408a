"""Published findings, measured again: does another run, on another day or machine, confirm them?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...cython_src.errors import UsageError
from ...cython_src.reading import read_toml
from ..analysis.estimates import NOT_USABLE, UNDECIDED, Estimate
from ..analysis.factorial import effect_table
from ..analysis.load import load
from ..analysis.speeds import Pair, estimate_of, ratio_rows, scope
from ..analysis.sweep import Point, Sweep
from ..results.folder import canonical_json
from ..results.grids import given_or_shipped
from ..subjects.models import parse_model
from ..tables.numbers import JUDGED_AT, interval
from .words import axes_text

FINDINGS = Path("results", "findings.toml")  # of a clone
CONFIRMED, DIFFERS, OPEN = "confirmed", "differs", "not decided"


class Published(NamedTuple):
    """A finding that can be measured again: its number, the published folder, the file that measures it, and its ratios
    or effects as `FINDINGS` names them."""

    number: int
    folder: Path
    file: Path | str
    ratios: Sequence[Sequence[str]]
    effects: Sequence[str]


def findings(path: Path = FINDINGS) -> dict[int, Published]:
    """Return the findings of a clone by their numbers."""
    result = {}
    for number, about in read_toml(path, "list of findings")[0].items():
        folder = path.parent / about["folder"]
        own = folder / "sweep.toml"
        file = own if own.exists() else given_or_shipped(folder.name)
        result[int(number)] = Published(int(number), folder, file, about.get("ratios", ()), about.get("effects", ()))
    return result


def finding_named(name: str) -> Published | None:
    """Return the finding that a name such as finding3 means; None for another name. Raises `UsageError`: no clone is
    here, or no finding of this number is a ratio of times."""
    if not (match := re.fullmatch(r"finding(\d+)", name)):
        return None
    if not FINDINGS.exists():
        raise UsageError(f"{name} must be given in a clone of forktask, which has {FINDINGS}, got none here; go to one")
    known = findings()
    if int(match[1]) not in known:
        numbers = ", ".join(map(str, known))
        raise UsageError(
            f"findings whose ratios can be compared are {numbers}, got {match[1]}; docs/findings.md says what the "
            f"others are measured with"
        )
    return known[int(match[1])]


def _values(sweep: Sweep, finding: Published) -> Iterator[tuple[tuple[str, str], Estimate, str]]:
    """Yield plan and name of each value of a finding, the value, and its verdict."""
    for plan_id in sweep.plan_ids():
        plan, threads = canonical_json(sweep.plans[plan_id].options), max(n for _, n in sweep.points_of(plan_id))
        for pair in finding.ratios:
            point, *others = (Point(plan_id, parse_model(model), threads) for model in pair)
            for row in ratio_rows(sweep, [Pair(point, others)] if {point, *others} <= sweep.turns.keys() else ()):
                yield (plan, " / ".join(pair[:2])), estimate_of(row), row["verdict"]
    for row in effect_table(sweep).to_dict("records") if finding.effects else ():
        if row["effect"] in finding.effects:
            plan = canonical_json(sweep.plans[row["plan_id"]].options)
            yield (plan, row["effect"]), Estimate(row["ratio"], row["low"], row["high"], 0), row["verdict"]


def judgement(published: Estimate, here: Estimate, *verdicts: str) -> str:
    """Return whether a value confirms a published one: "differs" where their intervals are apart, "not decided" where
    one of them says nothing, else "confirmed"."""
    if published.known and here.known and (published.high < here.low or here.high < published.low):
        return DIFFERS
    return OPEN if {UNDECIDED, NOT_USABLE} & {*verdicts} else CONFIRMED


def reproduced(finding: Published, folder: Path | str) -> list[dict[str, Any]]:
    """Return a row for each published value of a finding: plan, name, published, here (None: not measured), scope,
    judgement."""
    before, now = load(finding.folder), load(folder)
    own = {key: (value, verdict) for key, value, verdict in _values(now, finding)}
    titles = {canonical_json(plan.options): axes_text(before, plan_id) for plan_id, plan in before.plans.items()}
    rows = []
    for key, published, verdict in _values(before, finding):
        here, again = own.get(key, (None, UNDECIDED))
        text = judgement(published, here, verdict, again) if here else OPEN
        about = {"plan": titles[key[0]], "name": key[1], "scope": scope(now)}
        rows.append({**about, "published": published, "here": here, "judgement": text})
    return rows


def reproduced_text(finding: Published, folder: Path | str) -> str:
    """Say what became of a finding, one line for each of its values."""

    def written(value: Estimate | None) -> str:
        if value is None:
            return "not measured"
        return f"{value.value:.3f} {interval(value.low, value.high, 3, JUDGED_AT)}".strip()

    lines = [f"finding {finding.number}, published in {finding.folder}:"]
    for row in reproduced(finding, folder):
        named = ", ".join(filter(None, [row["plan"], row["name"]]))
        here = f"published {written(row['published'])}, here {written(row['here'])} {row['scope']}"
        lines.append(f"  {row['judgement']}: {named}: {here}")
    return "\n".join(lines)
