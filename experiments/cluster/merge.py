"""Rows of many folders in one: each node, plan and generation once, all of one configuration, seed and version."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
from msgspec import structs

from ...cython_src.errors import UsageError
from ..results.files import locked_file, output_folder, replaced
from ..results.folder import CHANGEABLE, SAMPLES, Results, check_same, read_rows
from ..results.nodes import check_nodes
from ..results.rows import (
    AnyRow,
    CapacityRow,
    FailureRow,
    GpuProfileRow,
    MachineRow,
    OfShard,
    PlanRow,
    ProfileRow,
    RoundsRow,
    RunRow,
    SampleRow,
    SessionRow,
    TraceRow,
)
from ..sweep.shards import Answers
from ..tables.numbers import plural


class Joined:
    """Appends what is new of rows of one configuration; the first copy of anything wins.

    Parameters
    ----------
    writer : ResultsWriter
        Or what has its `results`, `start` and `append`.
    remedy : str
        What to do about rows of another configuration.

    Attributes
    ----------
    dropped : int
        Samples and profiles that were there already.

    Notes
    -----
    A generation that broke off waits for `finish`, since another folder or worker may bring it whole.
    """

    def __init__(self, writer: Any, remedy: str = "choose another folder with --out"):
        self._writer, self._remedy, self.dropped, self._begun = writer, remedy, 0, False
        self._first: RunRow | None = None
        self._known: set[tuple] = set()
        self._loops: dict[str, Any] = {}
        self._answers = Answers(())
        self._broken_off: list[list[AnyRow]] = []
        for row in writer.results.rows:
            self._known.add(_name(row))
            self._answers.checked(row)
            if isinstance(row, RunRow):
                self._first = self._first or row
            elif isinstance(row, PlanRow):
                self._loops[row.plan_id] = row.loops

    def add(self, rows: Iterable[AnyRow], source: Path | str = "a worker") -> None:
        """Append what is new. `rows`: those of a shard stand together, after the run row of their node; `source`: where
        they come from, for messages. Raises `UsageError`: rows of another configuration, seed, version or network, or
        of a node that may not be pooled."""
        for of_shard, some in groupby(rows, _shard_of):
            if not of_shard:
                for row in some:
                    self._add_row(row, source)
            elif _broke_off(shard := list(some)):
                self._broken_off.append(shard)
            else:
                self._add_shard(shard)

    def finish(self) -> None:
        """Append what is still new of generations that broke off."""
        for shard in self._broken_off:
            self._add_shard(shard)
        self._broken_off = []

    def _add_row(self, row: AnyRow, source: Path | str) -> None:
        """Append a row that is not of a shard, if it is new."""
        if isinstance(row, RunRow):
            self._begin(row, source)
        elif isinstance(row, PlanRow) and self._loops.setdefault(row.plan_id, row.loops) != row.loops:
            raise UsageError(
                f"folders that are joined must have measured one network {row.network!r}, whose program was "
                f"another one for {str(source)!r}; {self._remedy}"
            )
        elif _name(row) not in self._known:
            self._writer.append(self._answers.checked(row))
        self._known.add(_name(row))

    def _add_shard(self, shard: Sequence[AnyRow]) -> None:
        for row in self._new_of_shard(shard):
            self._writer.append(self._answers.checked(row))
            self._known.add(_name(row))

    def _begin(self, run: RunRow, source: Path | str) -> None:
        """Check the run row of a folder or worker, and write it if its node is new."""
        run.check_holds("samples", source)
        self._first = self._first or run
        nodes = self._first.config.get("nodes", "one")
        check_same(self._first, run, source, CHANGEABLE, nodes == "one", self._remedy)
        check_nodes([(row.node, row.environment) for row in (self._first, run)], nodes)
        if not self._begun:
            self._writer.start(run, same_environment=nodes == "one")
        elif _name(run) not in self._known:
            self._writer.append(run)
        self._begun = True

    def _new_of_shard(self, rows: Sequence[AnyRow]) -> list[AnyRow]:
        """Return the rows of a shard that are new: all of a generation if one of its samples is, since they took
        turns, and each profile that is."""

        def is_new(row: AnyRow) -> bool:
            if isinstance(row, FailureRow):
                return not {_name(row), (row.measuring, row.config_id, row.repetition)} & self._known
            return not isinstance(row, RoundsRow) and _name(row) not in self._known

        measured = [row for row in rows if not isinstance(row, CapacityRow)]
        turns = [row for row in measured if _took_turns(row)]
        kept = turns if any(map(is_new, turns)) else []
        kept = [*kept, *(row for row in measured if not _took_turns(row) and is_new(row))]
        self.dropped += sum(not isinstance(row, RoundsRow) for row in measured)
        self.dropped -= sum(not isinstance(row, RoundsRow) for row in kept)
        return [*(row for row in rows if isinstance(row, CapacityRow) and kept), *kept]


def _broke_off(shard: Sequence[AnyRow]) -> bool:
    """Return whether a contestant of some turns has neither a sample nor a failure."""
    answered = {row.config_id for row in shard if isinstance(row, SampleRow | FailureRow)}
    return any(not answered.issuperset(row.contestants) for row in shard if isinstance(row, RoundsRow))


def _took_turns(row: AnyRow) -> bool:
    return isinstance(row, RoundsRow | SampleRow) or (isinstance(row, FailureRow) and row.measuring == "sample")


def _shard_of(row: AnyRow) -> tuple | None:
    return (row.plan_id, row.interference, row.repetition) if isinstance(row, OfShard) else None


def _name(row: AnyRow) -> tuple:
    """Return what two copies of a row have in common; of rows of a shard that count for themselves, the sample,
    profile, or failure of one."""
    match row:
        case RunRow():
            return "run", row.node.name, row.environment_id
        case SessionRow():
            return "session", row.node.name, row.generations
        case MachineRow():
            return "machine", row.node.name
        case PlanRow():
            return "plan", row.plan_id
        case SampleRow():
            return "sample", sys.intern(row.config_id), row.repetition
        case ProfileRow() | GpuProfileRow():
            return "profile", sys.intern(row.config_id), row.repetition
        case FailureRow():
            return f"{row.measuring} failed", row.config_id, row.repetition
        case TraceRow():
            return "trace", row.path
    return (type(row).__struct_config__.tag,)


class Merged(NamedTuple):
    """What `merge_folders` did."""

    rows: dict[str, int]  # number of rows by kind
    dropped: int  # samples and profiles of which another copy was kept

    @property
    def text(self) -> str:
        """What was joined, in words."""
        kinds = (("machine",), ("sample",), ("profile", "gpu_profile"), ("failure",))
        counts = [plural(sum(self.rows.get(kind, 0) for kind in some), some[0]) for some in kinds]
        return f"{', '.join(counts)}; {self.dropped} second copies were left out"


class _File:
    """Writer of rows to a file, which keeps none."""

    def __init__(self, file: BinaryIO, path: Path):
        self._file, self.results, self.rows = file, Results(path), dict[str, int]()

    def start(self, run: RunRow, changeable: Sequence[str] = (), same_environment: bool = True) -> None:
        self.append(run)

    def append(self, row: AnyRow) -> None:
        kind = type(row).__struct_config__.tag
        self.rows[kind] = self.rows.get(kind, 0) + 1
        self._file.write(msgspec.json.encode(row, enc_hook=str) + b"\n")


def merge_folders(folders: Sequence[Path | str], out_dir: Path | str, nodes: str = "") -> Merged:
    """Join results folders; each stays as it is.

    Rows go from file to file, one shard in memory; the new file replaces that of `out_dir` as a whole, whose own rows
    come first; half a row at the end of a file is none.

    Parameters
    ----------
    out_dir : path
        New, empty, or with results of the same configuration.
    nodes : {"", "one", "pooled"}
        In place of the option with which the folders were measured; "": as it was.

    Raises
    ------
    UsageError
        A folder without results, of another configuration, seed, version or kind of node, or that another process
        uses; a file that cannot be written.
    """
    out = Path(out_dir)
    sources = [*([out] if (out / SAMPLES).exists() else []), *(Path(f) for f in folders if Path(f) != out)]
    for source in sources:
        next(read_rows(source, []), None)  # what is no results folder is refused by its name
    is_new = not out.exists()
    try:
        return _merge(sources, out, nodes)
    except UsageError:
        if is_new:
            with suppress(OSError):  # it was never made, or holds something
                out.rmdir()
        raise


def _merge(sources: Sequence[Path], out: Path, nodes: str) -> Merged:
    output_folder(out, SAMPLES)
    with ExitStack() as stack:
        for source in sources:
            stack.enter_context(locked_file(source / SAMPLES))
        writer = _File(stack.enter_context(replaced(out / SAMPLES)), out / SAMPLES)
        joined = Joined(writer, "leave that folder out")
        for source in sources:
            joined.add(_rows_for(out, read_rows(source, []), nodes), source)
        joined.finish()
    return Merged(writer.rows, joined.dropped)


def _rows_for(out: Path, rows: Iterable[AnyRow], nodes: str) -> Iterator[AnyRow]:
    """Yield rows as they stand in a joined folder: without traces whose files lie elsewhere."""
    for row in rows:
        if isinstance(row, RunRow) and nodes:
            yield structs.replace(row, config={**row.config, "nodes": nodes})
        elif not isinstance(row, TraceRow) or os.path.exists(out / row.path):
            yield row
