"""Rates of false alarms and missed regressions of the clock tier, measured on this machine (`forktask scaling-power`).

Kinds of tests take turns: A/A tests, of a model against itself, whose failures are false alarms; and tests in which one
side is made slower by a known part, which should fail. Each is a whole test of its own, with fresh processes,
tossed rounds, discarded ones, and the budget. Rows are appended to a file, so that measuring can be done in slices.

Beside the measured rates stand those of the same rounds drawn again (labelled *resampled*): runs of consecutive rounds
of the A/A tests, with the sign of each tossed, shifted by the slowdown. There are enough of these to see rates of a per
mille, and other limits and slowdowns can be asked for.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...cython_src.errors import UsageError
from ...cython_src.reading import Amount, Count, Name, Number, Real, Text, checked, decode_json, read_regular
from ...cython_src.records import Record, about
from ..analysis.statistics import binomial_interval
from ..machine.topology import available_cpus, cpu_order
from ..sampling.hogs import MOST_HOGS, hogs_running
from ..sampling.models import check_threads, parse_model
from ..sampling.results import canonical_json
from ..sampling.subject import name_of
from . import clock
from .clock import FIRST_ROUNDS
from .sequential import first_decision
from .testing import as_row

RESAMPLES = 4000
BLOCK = 5  # consecutive rounds drawn together, because a disturbance lasts longer than a round
SEED = 20260101
MOST_SLOWDOWN = 1e6
COUNTS = ("tests", "slowed", "slowdown")  # Tests that differ in these settings only are counted together.
# Verdict of a whole test -> verdict of the sequential test.
VERDICTS = {"fail": "fail", "pass": "pass", "inconclusive": "go on"}


class PowerSettings(Record, frozen=True):
    """Settings of the tests that are run, and their number."""

    model: Annotated[str, about("execution model")] = "taskiter"
    threads: Annotated[int, about("threads", least=1, below=4097)] = 2
    tests: Annotated[int, about("A/A tests in all", least=0, below=100_001)] = 100
    slowed: Annotated[int, about("tests with each slowdown in all", least=0, below=100_001)] = 60
    slowdown: Annotated[tuple, about("parts by which a run is made longer, with commas between: 0.5 is 1.5 times")] = (
        0.1,
    )
    at_most: Annotated[float, about("the claim", least=0.01, below=1e6)] = 1.05
    budget_s: Annotated[float, about("of a test", least=1, below=1e7)] = 120.0
    interference: Annotated[int, about("processes that spin on the same CPUs", least=0, below=MOST_HOGS + 1)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in self.slowdown:
            if not isinstance(value, int | float) or not 0 < value < MOST_SLOWDOWN:
                raise UsageError(f"slowdown must be numbers in (0, {MOST_SLOWDOWN:g}), got {value!r}")


class PowerPlan(msgspec.Struct, kw_only=True):
    """Fields of a test's plan that tables show."""

    network: Name
    batch: Number | UnsetType = UNSET


class StoredSettings(msgspec.Struct, kw_only=True):
    """Conditions of a test that was run."""

    plan: PowerPlan
    model: Name
    threads: Number
    at_most: Amount
    budget_s: Amount
    interference: Count


class StoredRound(msgspec.Struct, kw_only=True):
    """Fields of a round that are read."""

    log_ratio: Real | None
    discarded: Text


class PowerRow(msgspec.Struct, kw_only=True):
    """A test that was run."""

    kind: Literal["power"]
    settings: StoredSettings
    slowdown: Amount
    verdict: Literal["fail", "pass", "inconclusive"]
    elapsed_s: Amount
    num_rounds: Count
    num_discarded: Count
    load: Annotated[list[Amount], Meta(min_length=1)]
    rounds: list[StoredRound]


def measure_power(
    plan: Mapping[str, Any], settings: PowerSettings, path: Path, seconds: float | None = None
) -> list[dict[str, Any]]:
    """Run clock tests until the file holds as many as asked for, and return the tables of `summarise`.

    Parameters
    ----------
    plan : mapping
        Network and options that differ from the defaults.
    settings : PowerSettings
    path : path
        JSON Lines, appended to.
    seconds : float, optional
        No further test begins after this time.
    """
    check_threads(settings.threads)
    settings = settings.with_changes(model=str(parse_model(settings.model)))
    conditions = {"plan": dict(plan), **{k: v for k, v in settings.as_dict().items() if k not in COUNTS}}
    rows = read_rows(path)
    start = time.monotonic()
    cpus = cpu_order(settings.threads, available_cpus())
    with hogs_running(settings.interference, cpus):
        while (slowdown := next_kind(rows, conditions, settings)) is not None:
            if seconds is not None and time.monotonic() - start >= seconds:
                break
            rows.append(measure_test(conditions, slowdown))
            append(path, rows[-1])
    return summarise(rows)


def next_kind(
    rows: Sequence[Mapping[str, Any]], conditions: Mapping[str, Any], settings: PowerSettings
) -> float | None:
    """Return the slowdown of the next test, of the less complete kind (0: an A/A test); None if both are complete."""
    wanted_conditions = canonical_json(conditions)
    mine = [row["slowdown"] for row in rows if canonical_json(row["settings"]) == wanted_conditions]
    wanted = {0.0: settings.tests, **dict.fromkeys(map(float, settings.slowdown), settings.slowed)}
    left = {s: 1 - mine.count(s) / n for s, n in wanted.items() if n and mine.count(s) < n}
    return max(left, key=left.__getitem__) if left else None


def measure_test(settings: Mapping[str, Any], slowdown: float) -> dict[str, Any]:
    """Run one whole clock test and return its row."""
    plan = settings["plan"]
    slow = clock.Side(settings["model"], settings["threads"], plan, slowdown)
    base = clock.Side(settings["model"], settings["threads"], plan)
    result = clock.run_clock_test("A/A", (slow, base), settings["at_most"], budget_s=settings["budget_s"])
    return {
        "kind": "power",
        "settings": dict(settings),
        "slowdown": slowdown,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": list(os.getloadavg()),
        **as_row(result),
    }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of earlier slices.

    Raises
    ------
    UsageError
        A line that is no row, or a file that cannot be read.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(read_regular(path, "file of rows", 1 << 30).splitlines(), 1):
        try:
            row = decode_json(line, dict)
            settings = row.get("settings")
            if isinstance(settings, dict) and "plan" not in settings:  # An older version wrote this row.
                settings["plan"] = {name: settings.pop(name, None) for name in ("network", "batch")}
            checked(row, PowerRow)
        except ValueError as error:
            raise UsageError(
                f"--file must be a new file or one of this command, got {path}, line {number}: {error}; name another"
            ) from None
        rows.append(row)
    return rows


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Write one row, at once."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise UsageError(f"--file must be a file that can be written, got {path} ({error.strerror})") from None


# --- what it says
# ----------------------------------------------------------------------------------------------------


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each setting, measured rates with exact 95 % intervals, and resampled ones.

    Returns
    -------
    list of dict
        "settings"; "measured": list of {"slowdown", "tests", "fail", "pass", "inconclusive", "fail_low",
        "fail_high",
        "median_s", "longest_s", "median_rounds", "discarded"}; "resampled": list of {"slowdown", "at_most",
        "fail",
        "pass", "inconclusive"} as rates; "round_s", "spread" (standard deviation of a round's log ratio,
        robust).
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps(row["settings"], sort_keys=True), []).append(row)
    tables = []
    for group in groups.values():
        settings = group[0]["settings"]
        measured = []
        for slowdown in sorted({row["slowdown"] for row in group}):
            mine = [row for row in group if row["slowdown"] == slowdown]
            counts = {v: sum(row["verdict"] == v for row in mine) for v in ("fail", "pass", "inconclusive")}
            low, high = binomial_interval(counts["fail"], len(mine))
            measured.append(
                {
                    "slowdown": slowdown,
                    "tests": len(mine),
                    **counts,
                    "fail_low": low,
                    "fail_high": high,
                    "median_s": _median([row["elapsed_s"] for row in mine]),
                    "longest_s": max(row["elapsed_s"] for row in mine),
                    "median_rounds": _median([row["num_rounds"] for row in mine]),
                    "discarded": sum(row["num_discarded"] for row in mine),
                    "low_load": min(row["load"][0] for row in mine),
                    "high_load": max(row["load"][0] for row in mine),
                }
            )
        null = [row for row in group if row["slowdown"] == 0]
        ratios = [
            r["log_ratio"] for row in null for r in row["rounds"] if not r["discarded"] and r["log_ratio"] is not None
        ]
        all_rounds = sum(len(row["rounds"]) for row in group)
        round_s = sum(row["elapsed_s"] for row in group) / max(1, all_rounds)
        table = {"settings": settings, "measured": measured, "round_s": round_s, "resampled": []}
        if len(ratios) >= 4 * BLOCK:
            table["spread"] = 1.4826 * _median([abs(x) for x in ratios])
            kept = sum(row["num_rounds"] for row in group) / all_rounds
            rounds = max(1, int(settings["budget_s"] / round_s * kept))
            slowdowns = sorted({0.0, *(row["slowdown"] for row in group)})
            cases = [(s, settings["at_most"]) for s in slowdowns] + [(0.0, 1.0)]
            table["resampled"] = [
                {"slowdown": s, "at_most": limit, **resampled(ratios, s, limit, rounds)} for s, limit in cases
            ]
        tables.append(table)
    return tables


def resampled(log_ratios: Sequence[float], slowdown: float, limit: float, rounds: int) -> dict[str, Any]:
    """Return rates of verdicts over tests put together from measured A/A rounds.

    Parameters
    ----------
    log_ratios : sequence of float
        Log ratios of A/A rounds, in the order of measuring.
    slowdown : float
        log(1 + slowdown) is added to each round.
    limit : float
    rounds : int
        Number of rounds that fit into the budget.
    """
    generator = random.Random(SEED)
    verdicts, lengths = [], []
    for _ in range(RESAMPLES):
        drawn: list[float] = []
        while len(drawn) < rounds:
            at = generator.randrange(len(log_ratios))
            drawn += [log_ratios[(at + k) % len(log_ratios)] for k in range(BLOCK)]
        # Neither side of an A/A test is slower, so the toss that named them is repeated.
        x = [math.log1p(slowdown) + generator.choice((-1, 1)) * value for value in drawn[:rounds]]
        verdict, length = first_decision(x, limit, min(FIRST_ROUNDS, rounds))
        verdicts.append(verdict)
        lengths.append(length)
    rates = {name: verdicts.count(said) / RESAMPLES for name, said in VERDICTS.items()}
    return {**rates, "tests": RESAMPLES, "median_rounds": _median(lengths), "most_rounds": rounds}


SIMULATED_ROUNDS = 60
NOISES = (
    ("normal", 0.01),
    ("normal", 0.02),
    ("normal", 0.05),
    ("normal", 0.08),
    ("Student t(2)", 0.03),
    ("Cauchy", 0.03),
)


def simulated(num_tests: int, limit: float) -> list[dict[str, Any]]:
    """Return rates of verdicts for simulated rounds of known noise and true ratio.

    Returns
    -------
    list of dict
        "noise", "scale" (of a round's log ratio: standard deviation, or the distribution's own scale),
        "ratio", "fail",
        "pass", "inconclusive", "median_rounds", "rounds_95".
    """
    import numpy as np

    generator = np.random.default_rng(SEED)
    draw = {
        "normal": generator.standard_normal,
        "Student t(2)": lambda n: generator.standard_t(2, n),
        "Cauchy": generator.standard_cauchy,
    }
    rows = []
    for noise, scale in NOISES:
        for ratio in (1.0, limit, limit**2):
            done = [
                first_decision(math.log(ratio) + scale * draw[noise](SIMULATED_ROUNDS), limit, FIRST_ROUNDS)
                for _ in range(num_tests)
            ]
            verdicts, lengths = [v for v, _ in done], [n for _, n in done]
            rows.append(
                {
                    "noise": noise,
                    "scale": scale,
                    "ratio": ratio,
                    **{name: verdicts.count(said) / num_tests for name, said in VERDICTS.items()},
                    "median_rounds": _median(lengths),
                    "rounds_95": float(np.quantile(lengths, 0.95)),
                }
            )
    return rows


def format_simulated(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the table as text."""
    lines = ["noise of a round     true ratio     fail     pass  inconclusive  rounds: median, 95 %"]
    lines += [
        f"{row['noise'] + ', ' + format(row['scale'], '.0%'):19}  {row['ratio']:10.4f}  {row['fail']:7.2%}  "
        f"{row['pass']:7.2%}  {row['inconclusive']:12.2%}  {row['median_rounds']:14.0f}, {row['rounds_95']:.0f}"
        for row in rows
    ]
    return "\n".join(lines)


def _median(values: Sequence[float]) -> float:
    import statistics

    return float(statistics.median(values))


def format_tables(tables: Sequence[Mapping[str, Any]]) -> str:
    """Format the tables as text: measured rates above, resampled ones (marked) below."""
    blocks = []
    for table in tables:
        s = table["settings"]
        hogs = f", {s['interference']} hog{'s' if s['interference'] > 1 else ''} beside it" if s["interference"] else ""
        spread = f", spread of its log ratio {table['spread']:.3f}" if "spread" in table else ""
        lines = [
            f"{name_of(s['plan'])}, {s['model']} on {s['threads']} against itself{hogs}",
            f"at most {s['at_most']:g} within {s['budget_s']:g} s; a round takes {table['round_s']:.2f} s{spread}",
            (
                "measured           tests  fail          95 % interval    pass  open  "
                "time: median, longest  rounds  discarded  load"
            ),
        ]
        for m in table["measured"]:
            interval = f"[{m['fail_low']:.1%}, {m['fail_high']:.1%}]"
            lines.append(
                f"{_what(m['slowdown']):17}  {m['tests']:5}  {m['fail']:4}  {m['fail'] / m['tests']:6.1%}  "
                f"{interval:15}  {m['pass']:4}  {m['inconclusive']:4}  {m['median_s']:12.0f} s, {m['longest_s']:.0f} s "
                f" {m['median_rounds']:6.0f}  {m['discarded']:9}  {m['low_load']:.0f} to {m['high_load']:.0f}"
            )
        if table["resampled"]:
            lines.append("resampled          limit    fail     pass    open  rounds")
        for r in table["resampled"]:
            lines.append(
                f"{_what(r['slowdown']):17}  {r['at_most']:5g}  {r['fail']:6.2%}  {r['pass']:6.1%}  "
                f"{r['inconclusive']:6.1%}  {r['median_rounds']:.0f} of {r['most_rounds']}"
            )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _what(slowdown: float) -> str:
    if not slowdown:
        return "A/A"
    return f"slowed by {slowdown:.0%}" if slowdown < 1 else f"{1 + slowdown:g} times as long"
