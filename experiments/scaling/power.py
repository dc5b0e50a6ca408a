"""`forktask scaling-power`: how often the clock tier cries wolf, and how often it misses one, measured on
this machine.

Two kinds of tests take turns: A/A tests, of a model against itself, whose failures are false alarms; and
tests in which one side is made slower by a known part, whose failures are what is wanted. Each is a whole
test of its own, with fresh processes, tossed rounds, discarded ones, and the budget. Rows are appended to a
file, so that measuring can be done in slices.

Beside what was measured stands what the same rounds give when they are drawn again (labelled *resampled*):
runs of consecutive rounds of the A/A tests, with the sign of each tossed, shifted by the slowdown. There are
enough of these to see rates of a per mille, and other limits and slowdowns can be asked for.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError

RESAMPLES = 4000
BLOCK = 5  # consecutive rounds drawn together: what disturbs a machine lasts a while
SEED = 20260101
VERDICTS = {"fail": "fail", "pass": "pass", "inconclusive": "go on"}  # of a whole test, and of the sequential one


def add_parser(subparsers) -> None:
    """Add `scaling-power`."""
    parser = subparsers.add_parser(
        "scaling-power",
        help="measure false alarms and power of the clock tier of scaling tests",
        description="Run whole clock tests of a model against itself, and against itself made slower, and count. Rows are "
        "appended to the file; the same command goes on.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", metavar="FILE", help="JSON Lines, appended to")
    what.add_argument(
        "--simulate",
        type=int,
        metavar="N",
        help="measure nothing: N tests with random numbers for each noise and ratio, 60 rounds at most",
    )
    parser.add_argument("--tests", type=int, default=100, metavar="N", help="A/A tests in all; default: %(default)s")
    parser.add_argument(
        "--slowed", type=int, default=60, metavar="N", help="tests with a slowdown in all; default: %(default)s"
    )
    parser.add_argument("--slowdown", type=float, default=0.1, metavar="X", help="injected; default: %(default)s")
    parser.add_argument("--at-most", type=float, default=1.05, metavar="X", help="the claim; default: %(default)s")
    parser.add_argument("--budget", type=float, default=120.0, metavar="S", help="of a test; default: %(default)s")
    parser.add_argument("--interference", type=int, default=0, metavar="K", help="processes that spin on the same CPUs")
    parser.add_argument("--network", default="cifar10_cnn", help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--model", default="taskiter", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, metavar="S", help="begin no further test after this long")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """`forktask scaling-power`."""
    from ..sampling.environment import available_cpus, cpu_order
    from ..sampling.models import check_threads, parse_model
    from ..sweep.run import hogs_running

    if arguments.simulate is not None:
        if arguments.simulate < 1:
            raise UsageError(f"--simulate must be at least 1, got {arguments.simulate}")
        rows = simulated(arguments.simulate, arguments.at_most)
        print(json.dumps(rows, indent=1) if arguments.json else format_simulated(rows))
        return 0
    model = str(parse_model(arguments.model))
    check_threads(arguments.threads)
    for name, least in (
        ("tests", 0),
        ("slowed", 0),
        ("interference", 0),
        ("slowdown", 0),
        ("budget", 1),
        ("at_most", 0.01),
    ):
        if getattr(arguments, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(arguments, name)}")
    settings = {
        "model": model,
        "threads": arguments.threads,
        "network": arguments.network,
        "batch": arguments.batch,
        "at_most": arguments.at_most,
        "budget_s": arguments.budget,
        "interference": arguments.interference,
    }
    path = Path(arguments.out)
    rows = read_rows(path)
    start = time.monotonic()
    cpus = cpu_order(arguments.threads, available_cpus())
    with hogs_running(arguments.interference, cpus):
        while (slowdown := next_kind(rows, settings, arguments)) is not None:
            if arguments.seconds is not None and time.monotonic() - start >= arguments.seconds:
                break
            rows.append(measure_test(settings, slowdown))
            append(path, rows[-1])
    tables = summarise(rows)
    print(json.dumps(tables, indent=1) if arguments.json else format_tables(tables))
    return 0


def next_kind(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], arguments: Namespace) -> float | None:
    """The slowdown of the next test, 0 for an A/A test: the kind that is further from done; None when both are."""
    mine = [row["slowdown"] for row in rows if row["settings"] == settings]
    wanted = {0.0: arguments.tests, arguments.slowdown: arguments.slowed}
    left = {s: 1 - mine.count(s) / n for s, n in wanted.items() if n and mine.count(s) < n}
    return max(left, key=left.__getitem__) if left else None


def measure_test(settings: Mapping[str, Any], slowdown: float) -> dict[str, Any]:
    """One whole clock test."""
    from . import clock
    from .testing import as_row

    plan = {"network": settings["network"], "batch": settings["batch"]}
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
    """Rows of earlier slices.

    Raises
    ------
    UsageError
        A line that is no row, or a file that cannot be read.
    """
    if not path.exists():
        return []
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if not all(row["kind"] == "power" for row in rows):
            raise ValueError("a row of another kind")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--out must be a new file or one of this command, got {path} ({error})") from None
    return rows


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Write one row, at once."""
    try:
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise UsageError(f"--out must be a file that can be written, got {path} ({error.strerror})") from None


# --- what it says
# ----------------------------------------------------------------------------------------------------


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each setting: measured rates with exact 95 % intervals, and resampled ones.

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
    from ..analysis.statistics import binomial_interval

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
        ratios = [r["log_ratio"] for row in null for r in row["rounds"] if not r["discarded"]]
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


def resampled(
    log_ratios: Sequence[float], slowdown: float, limit: float, rounds: int, seed: int = SEED
) -> dict[str, Any]:
    """Rates of verdicts over tests put together from measured A/A rounds.

    Parameters
    ----------
    log_ratios : sequence of float
        Of A/A rounds, in the order measured.
    slowdown : float
        Added: log(1 + slowdown) to each round.
    limit : float
    rounds : int
        That fit into the budget.
    """
    from .clock import FIRST_ROUNDS
    from .sequential import first_decision

    generator = random.Random(seed)
    verdicts, lengths = [], []
    for _ in range(RESAMPLES):
        drawn: list[float] = []
        while len(drawn) < rounds:
            at = generator.randrange(len(log_ratios))
            drawn += [log_ratios[(at + k) % len(log_ratios)] for k in range(BLOCK)]
        # Neither side of an A/A test is the slower one: the toss that named them is made again.
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
    """Rates of verdicts where noise and true ratio are known: rounds are random numbers.

    Returns
    -------
    list of dict
        "noise", "scale" (of a round's log ratio: standard deviation, or the distribution's own scale),
        "ratio", "fail",
        "pass", "inconclusive", "median_rounds", "rounds_95".
    """
    import numpy as np

    from .clock import FIRST_ROUNDS
    from .sequential import first_decision

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
    """The table as text."""
    lines = ["noise of a round     true ratio     fail     pass  inconclusive  rounds: median, 95 %"]
    lines += [
        f"{row['noise'] + ', ' + format(row['scale'], '.0%'):19}  {row['ratio']:10.4f}  {row['fail']:7.2%}  {row['pass']:7.2%}  "
        f"{row['inconclusive']:12.2%}  {row['median_rounds']:14.0f}, {row['rounds_95']:.0f}"
        for row in rows
    ]
    return "\n".join(lines)


def _median(values: Sequence[float]) -> float:
    import statistics

    return float(statistics.median(values))


def format_tables(tables: Sequence[Mapping[str, Any]]) -> str:
    """The tables as text: measured rates above, resampled ones (marked) below."""
    blocks = []
    for table in tables:
        s = table["settings"]
        hogs = f", {s['interference']} hog{'s' if s['interference'] > 1 else ''} beside it" if s["interference"] else ""
        spread = f", spread of its log ratio {table['spread']:.3f}" if "spread" in table else ""
        lines = [
            f"{s['network']}, batch {s['batch']}, {s['model']} on {s['threads']} against itself{hogs}",
            f"at most {s['at_most']:g} within {s['budget_s']:g} s; a round takes {table['round_s']:.2f} s{spread}",
            "measured           tests   fail  95 % interval     pass  open  time: median, longest  rounds  discarded  load",
        ]
        for m in table["measured"]:
            interval = f"[{m['fail_low']:.1%}, {m['fail_high']:.1%}]"
            lines.append(
                f"{_what(m['slowdown']):17}  {m['tests']:5}  {m['fail'] / m['tests']:5.1%}  {interval:15}  "
                f"{m['pass'] / m['tests']:5.1%}  {m['inconclusive']:4}  {m['median_s']:12.0f} s, {m['longest_s']:.0f} s  "
                f"{m['median_rounds']:6.0f}  {m['discarded']:9}  {m['low_load']:.0f} to {m['high_load']:.0f}"
            )
        if table["resampled"]:
            lines.append("resampled          limit    fail     pass    open  rounds")
        for r in table["resampled"]:
            lines.append(
                f"{_what(r['slowdown']):17}  {r['at_most']:5g}  {r['fail']:6.2%}  {r['pass']:6.1%}  {r['inconclusive']:6.1%}"
                f"  {r['median_rounds']:.0f} of {r['most_rounds']}"
            )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _what(slowdown: float) -> str:
    return f"slowed by {slowdown:.0%}" if slowdown else "A/A"
