"""`forktask gate`: is this commit slower than another one? Both are built here and now and measured in turns.

No time is stored anywhere: a number from another machine, or from this one yesterday, says nothing about a
commit.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError

BUILD_LIMIT_S = 1800.0
INCONCLUSIVE_EXIT = 3


def add_parser(subparsers) -> None:
    """Add `gate`."""
    parser = subparsers.add_parser(
        "gate",
        help="compare the speed of this commit with another one, both built here",
        description="Build two commits of a repository and measure them in turns. Exit code 0: no model is slower than "
        "allowed; 1: one is; with --strict also 3: for one the budget did not suffice to say.",
    )
    parser.add_argument("--against", required=True, metavar="REF", help="commit, branch or tag to compare with")
    parser.add_argument("--commit", default="HEAD", metavar="REF", help="what is judged; default: %(default)s")
    parser.add_argument("--repository", default=".", metavar="DIR", help="default: where you are")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--network", default="cifar10_cnn", help="default: %(default)s")
    what.add_argument("--function", metavar="M:F", help="a function of your own package that makes a graph instead")
    parser.add_argument("--batch", type=int, default=16, help="of the network; default: %(default)s")
    parser.add_argument("--phase", choices=("train", "forward"), default="train", help="default: %(default)s")
    parser.add_argument("--models", default="forkjoin,taskiter", metavar="M[,M...]", help="default: %(default)s")
    parser.add_argument("--threads", type=int, metavar="N", help="default: 2, or 1 where there is one CPU")
    parser.add_argument(
        "--at-most",
        type=float,
        default=1.05,
        metavar="X",
        help="allowed ratio of step times, this commit over the other; default: %(default)s",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds of measuring for each model; default: %(default)s",
    )
    parser.add_argument("--strict", action="store_true", help="end with 3 where the budget did not suffice")
    parser.add_argument(
        "--build",
        metavar="COMMAND",
        help="how a commit is installed: {source} is its folder, {target} where packages must go; "
        "default: pip install --no-deps --target {target} {source}",
    )
    parser.add_argument("--summary", metavar="FILE", help="append a Markdown summary; also to $GITHUB_STEP_SUMMARY")
    parser.add_argument("--jsonl", metavar="FILE", help="write all rounds, one JSON object a line")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """`forktask gate`."""
    from ..sampling.models import check_threads, parse_models
    from . import clock, subject
    from .sequential import FAIL
    from .testing import as_row

    specs = parse_models(arguments.models.split(","))
    threads = arguments.threads or min(2, len(os.sched_getaffinity(0)))
    check_threads(threads)
    if not arguments.at_most > 0 or not arguments.budget > 0:
        raise UsageError(f"--at-most and --budget must be positive, got {arguments.at_most:g} and {arguments.budget:g}")
    if arguments.function:
        plan = subject.describe_importable(arguments.function)
    else:
        plan = {"network": arguments.network, "batch": arguments.batch, "phase": arguments.phase}
    repository = _git(arguments.repository, "rev-parse", "--show-toplevel")
    commits = [commit_of(repository, name) for name in (arguments.commit, arguments.against)]
    if _git(repository, "status", "--porcelain", "--untracked-files=no"):
        print("forktask: changes that are not committed take no part", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="forktask-gate-") as folder:
        installations = []
        for name, commit in zip((arguments.commit, arguments.against), commits, strict=True):
            print(f"forktask: building {name} ({commit[:12]})", file=sys.stderr, flush=True)
            installations.append(build(repository, commit, Path(folder), arguments.build))
        for spec in specs:
            count = min(threads, spec.model.max_threads or threads)
            sides = tuple(clock.Side(str(spec), count, plan, installation=str(i)) for i in installations)
            results: dict[str, set] = {}
            run_counts: dict[str, int] = {}

            def sample(side, results=results, run_counts=run_counts):
                row = clock.sample(side)
                results.setdefault(side.installation, set()).add((row.get("weights_hash"), row.get("losses_hash")))
                count = len(row.get("run_times_s", ()))
                run_counts[side.installation] = min(count, run_counts.get(side.installation, count))
                if len(set(run_counts.values())) > 1 and "failure" not in row:
                    raise UsageError(
                        f"both commits must take times in the same way, got {run_counts[side.installation]} runs in a sample "
                        f"and {max(run_counts.values())}; compare with a later commit"
                    )
                return row

            claim = f"{spec} on {count}: {arguments.commit}/{arguments.against}"
            try:
                done = clock.run_clock_test(claim, sides, arguments.at_most, budget_s=arguments.budget, sampler=sample)
            except RuntimeError as error:
                raise UsageError(f"both commits must run {subject.name_of(plan)}, got: {error}") from None
            same = len(set.union(*results.values())) == 1 if results else None
            rows.append(
                {
                    "kind": "clock",
                    "subject": subject.name_of(plan),
                    "said": f"at most {arguments.at_most:g}",
                    "same_results": same,
                    "commits": commits,
                    **as_row(done),
                }
            )
            print(describe(rows[-1]), flush=True)
    _report(arguments, rows)
    if any(row["verdict"] == FAIL for row in rows):
        return 1
    if arguments.strict and any(row["verdict"] == clock.INCONCLUSIVE for row in rows):
        return INCONCLUSIVE_EXIT
    return 0


def describe(row: Mapping[str, Any]) -> str:
    """One line for a model."""
    text = (
        f"{row['claim']} is {row['value_text']}, allowed {row['said']}: {row['verdict']} ({row['num_rounds']} rounds, "
        f"{row['num_discarded']} discarded, {row['elapsed_s']:.0f} s)"
    )
    return text if row["same_results"] is not False else f"{text}; the commits leave different results"


def _report(arguments: Namespace, rows: list[dict[str, Any]]) -> None:
    from . import summary

    if arguments.jsonl:
        Path(arguments.jsonl).write_text(summary.json_lines(rows))
    text = summary.markdown(rows, f"Gate: {arguments.commit} against {arguments.against}")
    for path in filter(None, (arguments.summary, os.environ.get("GITHUB_STEP_SUMMARY"))):
        with open(path, "a") as file:
            file.write(text)


# --- two commits
# -----------------------------------------------------------------------------------------------------


def _git(folder: str, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise UsageError("the gate needs git, found none; install it") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        raise UsageError(f"git {arguments[0]} must work in {folder}, got: {lines[-1]}") from None
    return done.stdout.strip()


def commit_of(repository: str, name: str) -> str:
    """The commit that a name stands for.

    Raises
    ------
    UsageError
        There is none; in a shallow clone of a CI job it may not have been fetched.
    """
    try:
        return _git(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except UsageError:
        raise UsageError(
            f"{name!r} must be a commit of {repository}, got none of that name; in a CI job fetch it first (fetch-depth: 0)"
        ) from None


@contextlib.contextmanager
def worktree(repository: str, commit: str, folder: Path) -> Iterator[Path]:
    """The files of a commit, in a folder of their own, for as long as the block runs."""
    _git(repository, "worktree", "add", "--detach", "--force", str(folder), commit)
    try:
        yield folder
    finally:
        _git(repository, "worktree", "remove", "--force", str(folder))


def build(repository: str, commit: str, folder: Path, command: str | None) -> Path:
    """Install a commit into a folder and return it.

    Raises
    ------
    UsageError
        The build fails, or what it installed is not what a process would import.
    """
    number = len(list(folder.glob("installed*")))
    source, target = folder / f"source{number}", folder / f"installed{number}"
    target.mkdir()
    with worktree(repository, commit, source):
        words = shlex.split(command) if command else default_build()
        words = [word.format(source=source, target=target) for word in words]
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
    if (target / "forktask").is_dir():
        check_imported(target)
    return target


def default_build() -> list[str]:
    """pip, with the build tools that are here where there are any: twice the same ones."""
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
    if not done.stdout.startswith(str(target)):
        found = (done.stdout or done.stderr).strip().splitlines()
        raise UsageError(
            f"the gate must import what it built, got {found[-1] if found else 'nothing'}; uninstall the editable forktask"
        )
