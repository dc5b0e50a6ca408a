"""The results folder: a file of rows, one JSON object per line, only ever appended to.

The first row is of kind "run": what the folder holds, what was asked for, and where. Each row is written with one
system call and forced to disk, so a crash loses at most the row being measured; a last line without its newline is such
a row, recognised by the reader and moved aside to `samples.jsonl.partial` when the run goes on.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...cython_src.closing import Closing
from ...cython_src.errors import UsageError
from ...cython_src.reading import open_regular
from ..machine.environment import is_volatile
from ..subjects.models import ModelSpec
from ..tables.numbers import plural
from .files import NoRoom, check_writable_folder, locked_file, output_folder
from .nodes import leaves
from .rows import (
    AnyRow,
    FailureRow,
    GpuProfileRow,
    Holds,
    OfShard,
    ProfileRow,
    RunRow,
    SampleRow,
    SessionRow,
    parse_row,
)

SAMPLES = "samples.jsonl"
# Options of measuring that may change when a run goes on.
CHANGEABLE = ("repeats", "budget_s", "sessions", "every_s", "check", "nodes")
# How `append` begins a row, and the first one of a file: a half-written row has this beginning or a part of it.
ROW_BEGIN, FIRST_ROW_BEGIN = b'{"kind":"', b'{"kind":"run"'
# Failures that a second attempt would only repeat: a continued run does not try these configurations again.
LASTING_FAILURES = frozenset({"timeout", "memory", "mismatch", "answer"})

T = TypeVar("T")


def dated_folder(above: str) -> str:
    """Return the name of a new folder below another one, by date and time."""
    return f"{above}/{datetime.now().strftime('%Y%m%d-%H%M%S')}"


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text; records that JSON lacks are texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)


def short_id(value: Any) -> str:
    """Return twelve hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


@dataclass
class Results:
    """Content of a results folder."""

    path: Path
    rows: list[AnyRow] = field(default_factory=list)  # in file order
    partial: str = ""  # text of a half-written last line; empty if the file is whole

    def of(self, kind: type[T]) -> list[T]:
        """Return all rows of one kind."""
        return [row for row in self.rows if isinstance(row, kind)]

    @property
    def run(self) -> RunRow:
        """The latest "run" row, with the last configuration."""
        return self.of(RunRow)[-1]

    @property
    def session_ends(self) -> list[int]:
        """Numbers of the first generation after each session that is whole."""
        return [row.generations for row in self.of(SessionRow)]

    @property
    def first_generation(self) -> int:
        """Number of the first generation of the session that is not whole yet, or comes next."""
        return max(self.session_ends, default=0)

    @property
    def ends_whole(self) -> bool:
        """Whether nothing was measured after the end of a session."""
        last = next((row for row in reversed(self.rows) if isinstance(row, SessionRow | OfShard)), None)
        return isinstance(last, SessionRow)

    @property
    def is_study(self) -> bool:
        """Whether the rows are those of a study's trainings."""
        return bool(self.rows) and self.run.holds == "study"

    def finished(self) -> set[tuple[str, str, int]]:
        """("sample" or "profile", config_id, repetition) of what need not be measured again."""
        named = {SampleRow: "sample", ProfileRow: "profile", GpuProfileRow: "profile"}
        return {(named[type(row)], row.config_id, row.repetition) for row in self.rows if type(row) in named}

    def settled(self) -> set[str]:
        """Config ids that failed in a way a second attempt would only repeat."""
        return {row.config_id for row in self.of(FailureRow) if row.reason in LASTING_FAILURES}

    def check_same_models(self, models: Iterable[ModelSpec]) -> None:
        """Raise `UsageError` if a model of the user's own has another file now than the results under its name."""
        now = {spec.name: spec.model.origin.get("sha256") for spec in models}
        for row in self.rows:
            origin = {} if isinstance(row, FailureRow) else getattr(row, "origin", {})
            if origin and origin["sha256"] != now.get(row.model.name, origin["sha256"]):
                raise UsageError(
                    f"results of {row.model.name} in {self.path.parent} must be of one file, which has changed since; "
                    f"choose another folder with --out"
                )


def read_results(out_dir: str | os.PathLike, holds: str = "") -> Results:
    """Read the rows of a results folder, without changing it; where `holds` is given, a folder that holds it. Raises
    `UsageError`: no results there, those of something else, or a line in the middle that is no row: says which line,
    field, and what was expected."""
    partial: list[str] = []
    results = Results(Path(out_dir) / SAMPLES, list(read_rows(out_dir, partial)), "".join(partial))
    if holds and results.rows:
        results.run.check_holds(holds, out_dir)
    return results


def read_rows(out_dir: str | os.PathLike, partial: list[str]) -> Iterator[AnyRow]:
    """Yield the rows of a results folder as `read_results` reads them; `partial` gets the text of a half-written last
    line."""
    path = Path(out_dir) / SAMPLES
    if not os.path.lexists(path):
        raise UsageError(
            f"a results folder must hold {SAMPLES}, got {str(out_dir)!r}; "
            f"name the --out of a `forktask compare` or `forktask run`"
        )
    with open_regular(path, "file of rows that forktask wrote") as (file, _):
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                begin = ROW_BEGIN if number > 1 else FIRST_ROW_BEGIN
                if not line.startswith(begin[: len(line)]):
                    raise UsageError(
                        f"{path} must hold rows written by forktask, but what follows its last whole line is none; "
                        f"restore the file or choose another folder"
                    )
                partial.append(line.decode(errors="replace"))
                return
            try:
                row = parse_row(line)
                if number == 1 and not isinstance(row, RunRow):
                    raise ValueError("the first row must be of kind 'run'")
            except ValueError as error:
                raise UsageError(
                    f"every line of {path} must be a row written by forktask, line {number} is not ({error}); "
                    f"restore the file or choose another folder"
                ) from None
            yield row


def wrong_models(samples: Iterable[SampleRow], failures: Iterable[FailureRow]) -> set[tuple[str, ModelSpec]]:
    """Return plan and model of contestants that computed other bits than most: than the serial run, or else than more
    than half of a plan's models; functions are compared with the reference. Raises `UsageError`: nothing says which
    side is right."""
    wrong = {(row.plan_id, row.model): row for row in failures if row.reason == "mismatch"}
    samples = list(samples) if wrong else []
    for (plan_id, model), row in wrong.items():
        agreed = {one.model for one in samples if one.plan_id == plan_id and (plan_id, one.model) not in wrong}
        if (
            not model.model.is_call
            and not any(one.is_serial for one in agreed)
            and len(agreed) <= sum(plan == plan_id for plan, _ in wrong)
        ):
            raise UsageError(
                f"all models must compute the same weights, but {model} on {plural(row.threads, 'thread')} did not "
                f"({row.message}); no time is shown before it is known which are right; measure `serial` too"
            )
    return set(wrong)


def new_run(holds: Holds, config: Mapping[str, Any], command: str, how_to_read: str = "", **environment: Any) -> RunRow:
    """Return the first row of a folder, or of a run that goes on in one; `environment` is its last two fields."""
    return RunRow(
        holds=holds,
        run_id=uuid.uuid4().hex,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        config=dict(config),
        how_to_read=how_to_read,
        **environment,
    )


def check_same(
    before: RunRow,
    run: RunRow,
    folder: Path | str,
    changeable: Sequence[str],
    same_environment: bool = True,
    remedy: str = "choose another folder with --out",
) -> None:
    """Raise `UsageError` unless a run may go on in the folder of an earlier one. `changeable`: keys of the
    configuration that may differ; `same_environment`: whether measurements of both stand in one table; `remedy`: what
    to do about it."""
    before.check_holds(run.holds, folder)
    requested, result = json.loads(canonical_json(run.config)), before.config
    differing = [key for key in sorted({*requested, *result} - {*changeable}) if requested.get(key) != result.get(key)]
    if differing:
        key = differing[0]
        raise UsageError(
            f"{str(folder)!r} holds a run of another configuration: {', '.join(differing)} differ "
            f"({key} was {result.get(key)!r}, is now {requested.get(key)!r}); {remedy}"
        )
    if same_environment and run.environment_id != before.environment_id:
        was, now = (dict(leaves(each.environment)) for each in (before, run))
        names = [name for name in {*was, *now} if was.get(name) != now.get(name)]
        names.sort(key=lambda name: (is_volatile(name), name))  # the cause comes first
        changed = "; ".join(f"{name} was {was.get(name)!r}, is now {now.get(name)!r}" for name in names[:3])
        what = changed or "its identity differs"
        raise UsageError(f"{str(folder)!r} was measured in another environment ({what}); {remedy}")


def check_run(out_dir: str | os.PathLike, holds: Holds, config: Mapping[str, Any], changeable: Sequence[str]) -> None:
    """Raise `UsageError` unless a run can begin, or go on, in a folder, which stays as it is; for dry runs."""
    folder = output_folder(out_dir, SAMPLES, make=False)
    check_writable_folder(folder)
    if (folder / SAMPLES).exists() and (results := read_results(folder)).rows:
        run = new_run(holds, config, "", environment={}, environment_id="none")
        check_same(results.run, run, folder, changeable, same_environment=False)


class ResultsWriter(Closing):
    """Context manager that appends rows to a results folder; there is one writer at a time.

    Parameters
    ----------
    out_dir : path
        Made if it does not exist. It must be empty or hold a run of the same configuration and environment,
        which is then continued (see `start`).

    Attributes
    ----------
    results : Results
        What the folder holds, kept up to date by `append`.

    Raises
    ------
    UsageError
        The folder cannot be written, holds files of another program, or another process writes to it.
    """

    def __init__(self, out_dir: str | os.PathLike):
        self.out_dir = output_folder(out_dir, SAMPLES)
        self._continued: RunRow | None = None  # written before the next row
        path = self.out_dir / SAMPLES
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}); choose another folder with --out") from None
        self._held = ExitStack()
        try:
            self._held.enter_context(locked_file(path))
            self.results = read_results(self.out_dir)
        except BaseException:
            self.close()
            raise

    def _set_partial_aside(self) -> None:
        if not self.results.partial:
            return
        tail = self.results.partial
        with open(self.out_dir / (SAMPLES + ".partial"), "a") as aside:
            aside.write(tail + "\n")
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        os.ftruncate(self._fd, data.rfind(b"\n") + 1)
        os.fsync(self._fd)
        self.results.partial = ""

    def start(self, run: RunRow, changeable: Sequence[str] = CHANGEABLE, same_environment: bool = True) -> bool:
        """Begin the run, or go on with the one that is there, whose folder stays as it is until the next row; see
        `check_same`.

        Returns
        -------
        bool
            Whether an earlier run is continued.

        Raises
        ------
        UsageError
            The folder holds a run of another configuration or environment: measurements that cannot be compared do not
            share a folder.
        """
        if not self.results.rows:
            self._set_partial_aside()
            self.append(run)
            return False
        check_same(self.results.run, run, self.out_dir, changeable, same_environment)
        self._set_partial_aside()
        self._continued = run
        return True

    def append(self, row: AnyRow) -> None:
        """Write one row: one system call, then forced to disk. Raises `UsageError`: the row could not be written as a
        whole (a full disk); no part of it stays in the file."""
        if (run := self._continued) is not None:
            self._continued = None
            self.append(run)
        data = msgspec.json.encode(row, enc_hook=str)
        readable = parse_row(data)  # what is written can be read
        size = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, data + b"\n") <= len(data):
                os.ftruncate(self._fd, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._fd)
        except OSError as error:
            raise NoRoom(f"rows must fit into {self.out_dir / SAMPLES}, got: {error.strerror}") from None
        self.results.rows.append(readable)

    def close(self) -> None:
        """Release the folder for another writer."""
        if self._fd >= 0:
            self._held.close()
            os.close(self._fd)
            self._fd = -1
