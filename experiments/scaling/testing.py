"""Objects behind the fixture `scaling`: subjects, which are checked at once, and claims about their times."""

from __future__ import annotations

import functools
import math
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from ...cython_src.arguments import fits, rule
from ...cython_src.errors import UsageError
from ...cython_src.reading import Amount, Number
from ..machine.topology import available_cpus
from ..results.folder import short_id
from ..subjects import subject
from ..subjects.calls import CALLS, call_specs, check_call, label, spec_of
from ..subjects.models import SERIAL, ModelSpec, parse_models, runnable
from ..tables.numbers import plural
from . import clock, exact, model
from .bench import Bench, Side

MOST_EFFICIENT = 2.0  # above this a part of 1 was written in per cent
MARKED = {
    "models": Sequence[str],
    "threads": Sequence[Number],
    "rtol": Amount | None,
    "compare_results": bool,
}  # what the marker may say


def without_internals(function: Callable) -> Callable:
    """The function, whose errors about the user's test show the user's line alone in pytest's traceback."""

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        try:
            return function(*arguments, **options)
        except (AssertionError, UsageError) as error:
            raise error.with_traceback(None) from None

    return called


@dataclass
class ScalingTest:
    """The fixture: call it with a subject.

    Parameters
    ----------
    rtol : float or None
        Relative tolerance for results of plans that are not deterministic, and of functions.
    compare_results : bool
        False: what functions return is not compared.
    folder : Path
        Folder of the test's file.
    test : str
        Name of the test in the baseline.
    budget_s : float
        Budget of each claim about times.
    xdist : bool
        Whether tests run side by side, so that times mean nothing.
    null : int
        Above 0: each claim about a ratio is replaced by this many claims about identical code.

    Attributes
    ----------
    rows : list of dict
        Facts, predictions and claims, for the reports.
    inconclusive : list of str
        Claims without a verdict, with the reason.
    """

    models: Sequence[str]
    threads: Sequence[int]
    _: KW_ONLY
    rtol: float | None = None
    baselines: model.Baselines
    folder: Path
    test: str
    budget_s: float
    xdist: bool = False
    null: int = 0
    compare_results: bool = True
    rows: list[dict[str, Any]] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, kind in MARKED.items():
            if not fits(kind)(value := getattr(self, name)) or value == []:
                raise UsageError(
                    f"{name} of a scaling test must be {rule(kind, value)}, got {value!r:.80}; mend its marker"
                )
        self.models = list(parse_models(self.models))
        self.threads = sorted(set(self.threads))

    @without_internals
    def __call__(self, what: str | Callable, /, **arguments: Any) -> Claims:
        """Check a network or a function's graph by the exact and the model tier.

        Parameters
        ----------
        what : str or callable
            A network's name, with the arguments of `lower`; or a function of a module's top level that
            returns a `UserGraph`, a `Plan` or a `BoundPlan`, with its own.

        Returns
        -------
        Claims

        Raises
        ------
        AssertionError
            Some fact or prediction does not hold; the message has all of these.
        """
        return Claims(self, subject.describe(what, arguments))

    @without_internals
    def function(self, function: Callable[..., Any], /, **arguments: Any) -> Call:
        """Test ordinary code: a function of a module's top level, each call of which is a step.

        It gets `threads` if it takes them. One that returns a function is setup, and the returned function is timed.
        What is returned must be the same at each call, on each number of threads, and under each function of a claim;
        or within the marker's `rtol`, unless that says `compare_results=False`.

        Returns
        -------
        Call

        Raises
        ------
        UsageError
            A function that a fresh process cannot import, or arguments that it does not take or that are no scalars.
        """
        return Call(self, *spec_of(function, arguments), arguments)

    @without_internals
    def program(
        self, command: str | Sequence[str], /, *, threads_variable: str = "OMP_NUM_THREADS", time_pattern: str = ""
    ) -> Call:
        """Test a program, each run of which is a step: `scaling.program(["./stencil", "1000"])`.

        Parameters
        ----------
        command : str or sequence of str
            Program and arguments; `{threads}` stands for the number of threads.
        threads_variable : str
            Environment variable that holds it.
        time_pattern : str
            Regular expression with one group, the seconds that the program prints; "": the time of the process.

        Returns
        -------
        Call

        Raises
        ------
        UsageError
            No such program, or a pattern without one group.
        """
        text = command if isinstance(command, str) else shlex.join(map(str, command))
        (spec,) = call_specs(programs={"": text}, threads_variable=threads_variable, time_pattern=time_pattern)
        check_call(spec)
        return Call(self, spec)


class Timed:
    """Base of what makes claims about times."""

    name: str

    def __init__(self, test: ScalingTest):
        self._test = test

    def _threads(self, threads: int | None) -> int:
        if threads is None:
            return max(self._test.threads)
        if not fits(Number)(threads):
            raise UsageError(f"threads must be a whole number from 1 on, got {threads!r}")
        return threads

    def _side(self, model: Any, threads: int) -> Side:
        raise NotImplementedError

    def _claim_ratio(self, names: str, sides: tuple[Side, Side], at_most: float, threads: int) -> None:
        _check_limit("at_most", at_most)
        self._claim(f"{names} on {threads}", sides, at_most, f"at most {at_most:g}", False)

    def _claim_efficiency(self, name: str, models: tuple[Any, Any], at_least: float, threads: int | None) -> None:
        """Claim the efficiency of a model; `models`: it, and the one that runs on one thread."""
        threads = self._threads(threads)
        _check_limit("at_least", at_least)
        if at_least > MOST_EFFICIENT:
            raise UsageError(f"at_least must be a part of 1, got {at_least!r}; write 0.6 for 60 %")
        sides = (self._side(models[0], threads), self._side(models[1], 1))
        self._claim(f"efficiency of {name} on {threads}", sides, 1 / at_least, f"at least {at_least:g}", True)

    def _claim(self, claim: str, sides: tuple[Side, Side], limit: float, text: str, efficiency: bool) -> None:
        test = self._test
        row = {"subject": self.name, "claim": claim, "said": text}
        if test.budget_s == 0 or (test.null and efficiency):
            reason = "an efficiency compares no identical code" if test.budget_s else "the budget is 0"
            test.rows.append({**row, "kind": "untimed", "reason": reason})
            return
        if test.xdist:
            raise UsageError(
                "claims about times need the machine for themselves, got pytest-xdist; run such tests with -n 0"
            )
        needed, available = max(side.threads for side in sides), len(available_cpus())
        result, refused = clock.ClockResult(claim, limit), None
        try:
            if needed > available:
                result.reason = f"it needs {needed} CPUs to be timed, this process may use {available}"
            elif test.null:
                done = clock.run_null(claim, sides[0], limit, test.null, budget_s=test.budget_s, bench=Bench())
                test.rows.append({**row, **done})
                return
            else:
                result = clock.run_clock_test(claim, sides, limit, budget_s=test.budget_s, per_capacity=efficiency)
        except clock.SampleError as error:
            result.verdict, result.reason, refused = clock.FAIL, str(error), AssertionError
        except UsageError as error:
            result.reason, refused = str(error), UsageError
        row |= result.as_row(efficiency)
        test.rows.append(row)
        if refused:
            raise refused(f"{self.name}: {result.reason}")
        cost = f"{plural(result.ratio.count, 'generation')}, {result.elapsed_s:.0f} s"
        outcome = f"{claim} is {row['value_text']}, claimed {text} ({cost}){describe_stops(result)}"
        if result.verdict == clock.FAIL:
            raise AssertionError(f"{self.name}: {outcome}" + f"; {result.reason}" * bool(result.reason))
        if result.verdict != clock.PASS:
            test.inconclusive.append(f"{self.name}: inconclusive: {outcome}; {result.reason.rpartition('; ')[2]}")


class Claims(Timed):
    """A network or graph under test; claims about its times are its methods."""

    def __init__(self, test: ScalingTest, plan: Mapping[str, Any]):
        super().__init__(test)
        self.plan = plan
        self.name = subject.name_of(plan)
        self._check()

    def _check(self) -> None:
        test = self._test
        stored, update = test.baselines.entry(test.folder, test.test, self.name), test.baselines.update
        predict = {"stored": stored, "update": update, "thread_counts": test.threads} if stored or update else None
        with tempfile.TemporaryDirectory() as folder:
            rows = exact.facts_of(self.plan, test.models, test.threads, Path(folder), predict)
            usage = [row["message"] for row in rows if row.get("failure") == "usage"]
            if usage:
                raise UsageError(usage[0])
            differs = None if test.rtol is None else lambda k: _tolerated(Path(folder), rows, k, test.rtol)
            result = exact.failures(rows, None if stored is None or update else stored["graph"], differs)
        now = rows[0].get("entry")
        unsure = [row for row in rows if not row.get("deterministic", True)]
        if unsure and test.rtol is None:
            result.append(
                "the plan is not deterministic (concurrent or commutative accesses), so its results are compared "
                "within a tolerance; say which: @pytest.mark.scaling(..., rtol=1e-6)"
            )
        test.rows += [{"subject": self.name, **_without_hashes(row)} for row in rows]
        test.rows.append({"kind": "tier", "tier": "exact", "subject": self.name, "failures": list(result)})
        if update and not result:
            test.baselines.put(test.folder, test.test, self.name, now)
        predicted = self._compare(stored, now)
        if now is not None:
            test.rows.append(
                {"kind": "model", "subject": self.name, "predicted": now["predicted"], "graph": now["graph"]}
            )
        test.rows.append({"kind": "tier", "tier": "model", "subject": self.name, "failures": predicted})
        if result or predicted:
            # The exact tier has already named the loops of a changed graph.
            told = {line.partition("baseline's: ")[2] for line in result}
            lines = [*result, *(line for line in predicted if line not in told)]
            raise AssertionError(f"{self.name}: {lines[0]}" + "".join(f"\n  {line}" for line in lines[1:]))

    def _compare(self, stored, now) -> list[str]:
        test = self._test
        if test.baselines.update:
            return []
        if stored is None:
            remedy = "run pytest --scaling-update-baseline once and commit the file"
            others = test.baselines.subjects(test.folder, test.test)
            known = f", only for {', '.join(others)}: the arguments are part of its name" if others else ""
            return [f"{test.folder / model.BASELINE} has no entry for {self.name}{known}; {remedy}"]
        lines = [] if now is None else model.differences(stored, now)  # without: the exact tier says why
        if lines:
            lines.append("if that is meant, run pytest --scaling-update-baseline and commit the file")
        return lines

    @without_internals
    def assert_ratio(self, claim: str, *, at_most: float, threads: int | None = None) -> None:
        """Claim an upper limit on the ratio of two models' step times: `assert_ratio("taskiter/forkjoin", ...)`.

        Parameters
        ----------
        claim : str
            Two models with a slash between them.
        at_most : float
            Limit of the ratio of step times, first / second.
        threads : int, optional
            Default: the most that the marker names.

        Raises
        ------
        AssertionError
            The interval of the ratio lies above the limit. Where the budget ends first, the test goes on, and
            --scaling-on-inconclusive says how it ends.
        UsageError
            Bad arguments, or a budget that has no room for a verdict.
        """
        names = claim.split("/") if isinstance(claim, str) else ()
        if len(names) != 2:
            raise UsageError(
                f"a ratio names two models with a slash between them, got {claim!r}; write 'taskiter/forkjoin'"
            )
        threads = self._threads(threads)
        first, second = (self._side(name, threads) for name in names)
        self._claim_ratio(claim, (first, second), at_most, threads)

    @without_internals
    def assert_efficiency(self, name: str, *, at_least: float, threads: int | None = None) -> None:
        """Claim a lower limit on a model's efficiency on P threads.

        Efficiency is the serial step time over (capacity x step time on P threads). The capacity is what P
        spinning threads do compared to one, measured before and after each round: where the machine gives 1.7
        cores, 1.7 is what is expected.

        Parameters
        ----------
        name : str
            A model.
        at_least : float
            Limit of the efficiency.
        threads : int, optional
            Default: the most that the marker names.

        Raises
        ------
        AssertionError, UsageError
            As for `assert_ratio`.
        """
        self._claim_efficiency(name, (name, SERIAL), at_least, threads)

    @without_internals
    def assert_overlap(self, *, at_least: int = 2, threads: int | None = None) -> None:
        """Claim that blocks run at once at some moment, under each of the marker's models that has the threads.

        It is read from the event log of a few passes, or of as many as fit into five seconds until that happens; no
        duration is compared. Blocks in Python hold the GIL, so they overlap only where they release it.

        Parameters
        ----------
        at_least : int
            Blocks at once.
        threads : int, optional
            Default: the most that the marker names.

        Raises
        ------
        AssertionError
            Fewer ran at once; the message names Python functions that hold the GIL.
        UsageError
            Bad arguments, or no model that has the threads.
        """
        test, threads = self._test, self._threads(threads)
        if not fits(Number)(at_least) or at_least > threads:
            raise UsageError(f"at_least must be a whole number of blocks, up to {threads} threads, got {at_least!r}")
        models = [spec for spec in test.models if (spec.model.max_threads or threads) >= threads]
        if not models:
            raise UsageError(
                f"an overlap needs a model that runs on {plural(threads, 'thread')}, got "
                f"{', '.join(map(str, test.models))}; name one in the marker"
            )
        failed = exact.overlap_failures(exact.overlaps_of(self.plan, models, threads, at_least), at_least)
        subject = f"{self.name}, {plural(at_least, 'block')} at once"
        test.rows.append({"kind": "tier", "tier": "exact", "subject": subject, "failures": failed})
        if failed:
            raise AssertionError(f"{self.name}: " + "\n  ".join(failed))

    def _side(self, name: ModelSpec | str, threads: int) -> Side:
        if not isinstance(name, ModelSpec | str):
            raise UsageError(f"a claim names a model, such as 'taskiter', got {name!r:.80}")
        spec = runnable(name)
        return Side(spec, min(threads, spec.model.max_threads or threads), self.plan)


class Call(Timed):
    """A function or program under test; claims about its times are its methods."""

    def __init__(self, test: ScalingTest, spec: ModelSpec, folders: str = "", arguments: Mapping[str, Any] = {}):
        super().__init__(test)
        self.spec, self.name, self._folders, self._arguments = spec, label(spec), folders, arguments

    @without_internals
    def assert_ratio(self, other: Call | Callable[..., Any], *, at_most: float, threads: int | None = None) -> None:
        """Claim an upper limit on the ratio of times of a call, this one's over another one's.

        Parameters
        ----------
        other : Call or function
            What `scaling.function` or `scaling.program` returned; or a function that takes the same arguments.
        at_most : float
            Limit of the ratio.
        threads : int, optional
            Of both; default: the most that the marker names.

        Raises
        ------
        AssertionError, UsageError
            As for a network's claims; results that differ, or a call that fails, are assertion errors too.
        """
        if isinstance(other, Claims | ModelSpec | str):
            raise UsageError(
                f"a function or program is compared with another one, got {getattr(other, 'name', other)!s:.80}; "
                f"write a function that runs it"
            )
        if not isinstance(other, Call):
            other = Call(self._test, *spec_of(other, self._arguments), self._arguments)
        threads = self._threads(threads)
        sides = (self._side(self.spec, threads), other._side(other.spec, threads))
        self._claim_ratio(f"{self.name}/{other.name}", sides, at_most, threads)

    @without_internals
    def assert_efficiency(self, *, at_least: float, threads: int | None = None) -> None:
        """Claim a lower limit on the efficiency on P threads: the time of a call on one thread over (capacity x that on
        P threads), where the capacity is what P spinning threads do compared to one.

        Parameters
        ----------
        at_least : float
            Limit of the efficiency.
        threads : int, optional
            Default: the most that the marker names.

        Raises
        ------
        AssertionError, UsageError
            As for `assert_ratio`.
        """
        self._claim_efficiency(self.name, (self.spec, self.spec), at_least, threads)

    def _side(self, model: ModelSpec, threads: int) -> Side:
        rtol = (self._test.rtol or 0.0) if self._test.compare_results else None
        return Side(model, threads, {"network": CALLS, "batch": 1}, self._folders, rtol)


def describe_stops(result: clock.ClockResult) -> str:
    """Write for a message in how many generations a side was stopped, how many are left out, and how many rounds were
    disturbed."""
    text = result.moved_text("; ")
    stopped = [take for take in result.takes if take.turns and take.unfinished]
    if stopped:
        slower = "first" if stopped[0].unfinished == "A" else "second"
        text += f"; the {slower} was stopped in {len(stopped)} of them, so the ratio is a bound"
    return text + (f"; {plural(result.disturbed, 'round')} disturbed" if result.disturbed else "")


def _check_limit(name: str, value: float) -> None:
    if not fits(float)(value) or not 0 < value < math.inf:
        raise UsageError(f"{name} must be a positive number, got {value!r}")


def _without_hashes(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fact row for the reports, with one hash for all arrays instead of one each."""
    if "hashes" not in row:
        return dict(row)
    kept = {k: v for k, v in row.items() if k not in ("hashes", "graph", "entry")}
    return {**kept, "results_id": short_id(row["hashes"])}


def _tolerated(folder: Path, rows: Sequence[Mapping[str, Any]], k: int, rtol: float) -> str | None:
    """Return a sentence if an array of row `k` differs from the serial run's by more than rtol of its largest value."""
    import numpy as np

    first, mine = np.load(folder / "arrays_0.npz"), np.load(folder / f"arrays_{k}.npz")
    for i, name in enumerate(rows[0]["hashes"]):
        a, b = first[f"array_{i}"], mine[f"array_{i}"]
        scale = float(np.abs(a).max(initial=0))
        error = float(np.abs(b - a).max(initial=0))
        if not error <= rtol * scale:
            model = f"{rows[k]['model']} on {rows[k]['threads']}"
            relative = error / scale if scale else error
            return f"{model} differs from serial in {name} by {relative:.2g}, more than rtol={rtol:g}"
    return None
