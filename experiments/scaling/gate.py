"""Gate between two commits: both are built on this machine and measured, interleaved.

No time is stored anywhere: a number from another machine, or from this one yesterday, says nothing about a
commit.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from ...cython_src.errors import UsageError
from ...cython_src.networks.own import is_own, split_call
from ...cython_src.records import Record, about
from ...cython_src.typed_text import MOST_SECONDS
from ..analysis.estimates import Estimate
from ..machine.topology import available_cpus, cpu_order
from ..results.turns import MeasuredGroup
from ..subjects import subject
from ..subjects.calls import TARGET, label
from ..subjects.models import ModelSpec, parse_models
from ..subjects.peer_models import FUNCTION, PROGRAM
from ..tables.numbers import plural
from ..tables.progress import say
from . import clock, summary
from .bench import Bench, Effort, Side, check_turns

SAFE = "safe.directory"  # in git's remedy for a clone of another owner
BUILD_LIMIT_S = 1800.0
INCONCLUSIVE_EXIT = 3
TERMINATED_EXIT = 143
PROGRESS_S = 10.0  # between two lines that say how far a comparison is


class GateSettings(Record, frozen=True):
    """Settings of the gate: the commits, the limit and the budget."""

    against: Annotated[str, about("commit, branch or tag to compare with")] = ""
    null: Annotated[
        int,
        about("build --commit alone and compare it with itself so many times: how often identical code fails", least=0),
    ] = 0
    commit: Annotated[str, about("what is judged")] = "HEAD"
    repository: Annotated[str, about("folder; . is where you are")] = "."
    at_most: Annotated[float, about("allowed ratio of step times, this commit over the other", above=0, below=1e6)] = (
        1.05
    )
    budget_s: Annotated[float, about("of measuring for each model", above=0, below=MOST_SECONDS)] = 120.0
    strict: Annotated[bool, about("end with 3 where the budget did not suffice")] = False
    build: Annotated[
        str,
        about(
            "how a commit is installed, one program with its arguments, which no shell reads: {source} is its folder, "
            "{target} where packages must go; none: pip install --no-deps --target {target} {source}"
        ),
    ] = ""
    summary: Annotated[str, about("file to which a Markdown summary is appended; also to $GITHUB_STEP_SUMMARY")] = ""
    jsonl: Annotated[str, about("file of all generations, one JSON object per line")] = ""


def compare_commits(
    plan: Mapping[str, Any],
    models: Sequence[ModelSpec | str],
    threads: int | None,
    settings: GateSettings,
    report: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Build two commits and measure them, interleaved.

    Parameters
    ----------
    plan : mapping
        The network and only those options that were asked for: another commit may not know the others.
    threads : int or None
        None: two, or one on a machine with one CPU.
    report : callable
        Takes a line for each model.

    Returns
    -------
    list of dict
        A row for each model; see `ClockResult.as_row`.

    Raises
    ------
    UsageError
        No such commit, a build that fails, or commits that cannot be compared.
    """
    specs = parse_models(models)
    packages = check_request(plan, specs, settings)
    threads = threads or min(2, len(available_cpus()))
    cpu_order(threads)  # raises where there are fewer CPUs
    try:
        repository = _git(settings.repository, "rev-parse", "--show-toplevel")
    except UsageError as error:
        remedy = "" if SAFE in str(error) else "; go to a clone, or name one with --repository"
        raise UsageError(f"{error}{remedy}") from None
    names = [name for name in (settings.commit, settings.against) if name]
    commits = [commit_of(repository, name) for name in names]
    if _git(repository, "status", "--porcelain", "--untracked-files=no"):
        say("changes that are not committed take no part")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="forktask-gate-") as folder:
        installations = []
        for name, commit in zip(names, commits, strict=True):
            say(f"building {name} ({commit[:12]})")
            installations.append(build(repository, commit, Path(folder), settings.build))
            check_turns(str(installations[-1]))
            if absent := [package for package in packages if not any(installations[-1].glob(f"{package}*"))]:
                raise UsageError(f"{name} must install package {absent[0]}, it does not; name its own, or see --build")
        for spec in specs:
            count = min(threads, spec.model.max_threads or threads)
            sides = [Side(spec, count, plan, installation=str(i)) for i in installations]
            claim = f"{label(spec)} on {count}: {'/'.join(names)}"
            subjects = label(spec) if spec.model.is_call else subject.name_of(plan)
            try:
                row = {**_judge(claim, sides, settings), "subject": subjects, "commits": commits}
            except clock.SampleError as error:
                raise UsageError(f"both commits must run {subjects}, got: {error}") from None
            rows.append(row)
            report(describe(row))
    summary.write(
        rows, settings.jsonl, settings.summary, f"Gate: {settings.commit} against {settings.against or 'itself'}"
    )
    return rows


def _judge(claim: str, sides: Sequence[Side], settings: GateSettings) -> dict[str, Any]:
    """Return the row of a claim about two commits, or of claims about one that is compared with itself."""
    bench, limits = GateBench(), {"limit": settings.at_most, "budget_s": settings.budget_s}
    if settings.null:
        return clock.run_null(claim, sides[0], number=settings.null, bench=bench, **limits)
    tell = progress(claim, settings.budget_s)
    row = clock.run_clock_test(claim, (sides[0], sides[1]), bench=bench, on_generation=tell, **limits).as_row()
    return {**row, "said": f"at most {settings.at_most:g}", "same_results": bench.same_results()}


def check_request(plan: Mapping[str, Any], specs: Sequence[ModelSpec], settings: GateSettings) -> set[str]:
    """Return the packages that each commit must install. Raises `UsageError` for a request that no two commits can
    fulfil, before anything is built."""
    build_command(settings.build, Path("source"), Path("target"))
    summary.check_outputs(settings.jsonl, settings.summary)
    if bool(settings.null) == bool(settings.against):
        raise UsageError(
            f"the gate takes either --against, another commit, or --null, claims of identical code, got "
            f"{'both' if settings.null else 'neither'}; name one"
        )
    packages = set()
    for spec in specs:
        if spec.model is PROGRAM and TARGET not in spec.options.command:
            raise UsageError(
                f"a program of two commits must be named below {TARGET}, where --build installs each, got "
                f"{spec.options.command!r}; write it as in '{TARGET}/bin/solver 1000'"
            )
        name = spec.options.call if spec.model is FUNCTION else plan["network"]
        if is_own(name) and spec.model is not PROGRAM:
            packages.add(check_importable(name))
    return packages


def check_importable(name: str) -> str:
    """Return the package of a function that each commit has, or raise `UsageError` for another name, such as a
    file's."""
    module = split_call(name)[0].rpartition(":")[0]
    if module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        raise UsageError(f"a function of two commits is named as package.module:function, got {name!r}; write it so")
    return module.partition(".")[0]


class GateBench(Bench):
    """Bench that keeps the hashes of the commits' results."""

    def __init__(self) -> None:
        self.results: dict[str, set] = {}

    def measure(self, sides: Mapping[str, tuple[Side, Effort]]) -> list[MeasuredGroup]:
        """Measure commits, interleaved."""
        groups = super().measure(sides)
        for name, row in (result for group in groups for result in group.answers.items()):
            if "failure" not in row:
                of_commit = self.results.setdefault(sides[name][0].installation, set())
                of_commit.add((row["weights_hash"], row["losses_hash"]))
        return groups

    def same_results(self) -> bool | None:
        """Return whether both commits leave the same results; None without any."""
        return len(set.union(*self.results.values())) == 1 if self.results else None


def progress(claim: str, budget_s: float) -> Callable[[Estimate], None]:
    """Return a function of the ratio so far, which tells people on standard error every few seconds."""
    start = told = time.monotonic()

    def tell(ratio: Estimate) -> None:
        nonlocal told
        if time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            spent = f"{plural(ratio.count, 'generation')}, {told - start:.0f} of {budget_s:.0f} s"
            say(f"{claim}: {spent}, {clock.describe(ratio)}")

    return tell


def exit_code(rows: Sequence[Mapping[str, Any]], strict: bool) -> int:
    """Return 0 if no model is slower, 1 if one is; with `strict` 3 if the budget did not suffice for one."""
    verdicts = {row.get("verdict") for row in rows}
    if clock.FAIL in verdicts:
        return 1
    return INCONCLUSIVE_EXIT if strict and clock.INCONCLUSIVE in verdicts else 0


def describe(row: Mapping[str, Any]) -> str:
    """Describe the result for a model in one line."""
    if row["kind"] == "null":
        return f"{row['claim']}, at most {row['limit']:g}: {clock.describe_null([row])}"
    text = "; ".join(filter(None, (summary.describe_claim(row), row["reason"])))
    return text if row["same_results"] is not False else f"{text}; the commits leave different results"


def _git(folder: str, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise UsageError("the gate needs git, found none; install it") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        fatal = next((line for line in lines if line.startswith("fatal:")), lines[-1])
        remedy = f"; call: {lines[-1].strip()}" if SAFE in lines[-1] else ""
        raise UsageError(f"git {arguments[0]} must work in {folder}, got: {fatal}{remedy}") from None
    return done.stdout.strip()


def commit_of(repository: str, name: str) -> str:
    """Return the commit that a name stands for. Raises `UsageError`: there is none; in a shallow clone of a CI job it
    may not have been fetched."""
    try:
        return _git(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except UsageError:
        raise UsageError(
            f"{name!r} must be a commit of {repository}, got none of that name; in a CI job fetch it first "
            f"(fetch-depth: 0)"
        ) from None


@contextlib.contextmanager
def worktree(repository: str, commit: str, folder: Path) -> Iterator[Path]:
    """Check out a commit into a folder for the duration of a `with` block."""
    # SIGTERM, with which a CI job is stopped, must not leave the worktree in the user's repository.
    main = threading.current_thread() is threading.main_thread()
    former = signal.signal(signal.SIGTERM, lambda *arguments: sys.exit(TERMINATED_EXIT)) if main else None
    try:
        _git(repository, "worktree", "add", "--detach", "--force", str(folder), commit)
        yield folder
    finally:
        if folder.exists():
            _git(repository, "worktree", "remove", "--force", str(folder))
        if main:
            signal.signal(signal.SIGTERM, former)


def build(repository: str, commit: str, folder: Path, command: str | None) -> Path:
    """Install a commit into a folder and return it. Raises `UsageError`: the build fails, or what it installed is not
    what a process would import."""
    number = len(list(folder.glob("installed*")))
    source, target = folder / f"source{number}", folder / f"installed{number}"
    target.mkdir()
    with worktree(repository, commit, source):
        words = build_command(command, source, target)
        try:
            done = subprocess.run(
                words,
                cwd=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BUILD_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{shlex.join(words)} must build commit {commit[:12]}, got: {error}") from None
        if done.returncode:
            tail = "\n".join(done.stdout.strip().splitlines()[-20:])
            raise UsageError(
                f"commit {commit[:12]} must build, {shlex.join(words)} ended with {done.returncode}:\n{tail}"
            )
    if not any(target.iterdir()):
        raise UsageError(f"{shlex.join(words)} must install commit {commit[:12]} into {{target}}, it is empty")
    if (target / "forktask").is_dir():
        check_imported(target)
    return target


def build_command(command: str | None, source: Path, target: Path) -> list[str]:
    """Return the words of the command that installs a commit. Raises `UsageError`: quotes that do not match, or braces
    around anything but `source` and `target`."""
    try:
        words = shlex.split(command) if command else default_build()
        return [word.format(source=source, target=target) for word in words]
    except (ValueError, LookupError, AttributeError) as error:
        raise UsageError(
            f"--build must be a program with its arguments, in which {{source}} and {{target}} stand for folders, got "
            f"{command!r} ({error}); write other braces twice"
        ) from None


def default_build() -> list[str]:
    """Return pip's command, with this environment's build tools if it has them, so that both builds use the same."""
    isolation = ["--no-build-isolation"] if find_spec("mesonpy") else []
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", *isolation]
    return [*pip, "--target", "{target}", "{source}"]


def check_imported(target: Path) -> None:
    """Refuse an installation that is hidden by another one: an editable install comes before all paths."""
    program = "import forktask; print(forktask.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    result = ((done.stdout or done.stderr).strip().splitlines() or ["nothing"])[-1]  # others may print before
    if not result.startswith(str(target)):
        raise UsageError(f"the gate must import what it built, got {result}; uninstall the editable forktask")
