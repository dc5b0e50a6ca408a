"""Slurm: a sweep as job arrays, by plain `sbatch` and `squeue`.

Below the results folder `slurm/round-1`, `round-2`, ... hold a job array each: `job.json` (the configuration, and the
shards of each task), `batch.sh`, the array's number in `job_id`, a log for each task, and a folder of its own for each
time that a task was started, `TASK.START`, with rows as any sweep writes them (`slurm_task.py`). Nothing is written by
two processes, so that a shared folder needs no locks. The client joins the rows of ended tasks.
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from ...cython_src.errors import UsageError
from ...cython_src.reading import read_regular
from ...cython_src.records import Record, about
from ..results.files import write_atomically
from ..results.folder import SAMPLES, read_results
from ..results.rows import RunRow
from ..sweep.configuration import Configuration, Shard
from ..sweep.shards import missing_shards
from ..tables.numbers import plural
from ..tables.progress import format_seconds, say
from .client import MOST_TIMES, Keep, Show, check_configuration, lost_rows

JOB, SCRIPT, JOB_ID, BEGUN = "job.json", "batch.sh", "job_id", "begun"
POLL_S = (1.0, 15.0)  # between two looks at the queue: the first, and the longest
SILENT_POLLS = 20  # looks in succession that the scheduler may leave unanswered
TASKS = 1000  # of an array, where the scheduler does not say how many it may have
# States of a task that has ended; in any other it may still write rows.
ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
ENDED |= {"REVOKED", "TIMEOUT"}
_WORD = re.compile(r"[^\s'\"\\#]*")


class SlurmOptions(Record, frozen=True):
    """Table [slurm] of a file: what `sbatch` is asked for."""

    partition: Annotated[str, about("partition; empty: the scheduler's default, as with each key here")] = ""
    account: Annotated[str, about("account that pays")] = ""
    time: Annotated[str, about("time limit of a task, in Slurm's form, such as 2:00:00")] = ""
    exclusive: Annotated[bool, about("whole nodes: no other job runs during a measurement")] = True
    constraint: Annotated[str, about("features that nodes must have, so that all are of one kind")] = ""
    cpus_per_task: Annotated[int, about("CPUs of a task; 0: sbatch is not told", least=0, below=1 << 16)] = 0
    options: Annotated[tuple, about("further options of sbatch, such as --mem=0")] = ()
    setup: Annotated[tuple, about("lines of shell before the measuring: modules, an environment")] = ()
    python: Annotated[str, about("interpreter on the nodes; empty: that of the client")] = ""
    shards_per_task: Annotated[
        int, about("shards that a task measures one after the other, at least", least=1, below=1 << 20)
    ] = 1
    end_before_s: Annotated[
        int, about("seconds before the time limit from which on a task begins no shard", least=1, below=1 << 20)
    ] = 120

    def __post_init__(self) -> None:
        super().__post_init__()
        words = {name: getattr(self, name) for name in ("partition", "account", "time", "constraint")}
        words |= {f"options {option!r}": option for option in self.options if isinstance(option, str)}
        for name, word in words.items():
            if not _WORD.fullmatch(word):
                raise UsageError(f"{name} in [slurm] must be one word without quotes, got {word!r}; write it without")
        for name in ("options", "setup"):
            if not all(isinstance(line, str) and "\n" not in line for line in getattr(self, name)):
                raise UsageError(f"{name} in [slurm] must be a list of lines, got {getattr(self, name)!r}")
        if wrong := [option for option in self.options if not option.startswith("-")]:
            raise UsageError(f"options in [slurm] must begin with a dash, got {wrong[0]!r}")

    def directives(self) -> list[str]:
        """Return the options of `sbatch` that the table asks for."""
        named = {"partition": self.partition, "account": self.account, "time": self.time}
        named |= {"constraint": self.constraint, "cpus-per-task": self.cpus_per_task or ""}
        return [
            *(f"--{name}={value}" for name, value in named.items() if value),
            *(["--exclusive"] if self.exclusive else []),
            *self.options,
        ]


class JobArray(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks of an array read."""

    configuration: dict[str, Any]
    how_to_read: str
    command: str
    tasks: list[list[Shard]]


class ArrayTask(NamedTuple):
    """A task of an array: the folder of its round, its number there, and what it measures."""

    round: Path
    index: int
    shards: list[Shard]

    def folders(self) -> list[Path]:
        """Return the folders of its starts that hold rows, in order."""
        result = [path for path in self.round.glob(f"{self.index}.*") if (path / SAMPLES).exists()]
        return sorted(result, key=lambda path: int(path.suffix[1:]))


def read_job(folder: Path) -> JobArray:
    """Read what the tasks of an array shall do. Raises `UsageError`: it cannot be read, or no client wrote it."""
    path = folder / JOB
    try:
        return msgspec.json.decode(read_regular(path, "job of a sweep", 1 << 30), type=JobArray)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} must be a job that forktask wrote, got: {error}; choose another folder") from None


def tasks_of(folder: Path) -> list[ArrayTask]:
    """Return the tasks of a round's array, as `read_job` reads them."""
    return [ArrayTask(folder, index, shards) for index, shards in enumerate(read_job(folder).tasks)]


def rounds_of(out_dir: Path | str) -> list[Path]:
    """Return the folders of the rounds of a results folder, in order."""
    result = Path(out_dir, "slurm").glob("round-*")
    return sorted((path for path in result if (path / JOB).exists()), key=lambda path: int(path.name[6:]))


def job_id_of(folder: Path) -> str:
    """Return the number of a round's array; empty where it was never submitted."""
    path = folder / JOB_ID
    return path.read_text().strip() if path.exists() else ""


def states_of(job_ids: Sequence[str]) -> dict[tuple[str, int], str]:
    """Ask the scheduler for the state of each task of arrays; it forgets a task some minutes after its end. Raises
    `UsageError`: it does not answer; its own sentence is quoted."""
    if not job_ids:
        return {}
    text = _call(["squeue", "--noheader", "--array", "--states=all", "--format=%F %K %T", "--me"])
    result = {}
    for line in text.splitlines():
        job_id, index, state = line.split()
        if job_id in job_ids and index.isdigit():
            result[job_id, int(index)] = state
    return result


def task_states(rounds: Iterable[Path]) -> Iterator[tuple[ArrayTask, str]]:
    """Yield the tasks of the arrays of some rounds that were submitted, each with its state."""
    job_ids = {folder: job_id for folder in rounds if (job_id := job_id_of(folder))}
    states = states_of(list(job_ids.values()))
    for folder, job_id in job_ids.items():
        for task in tasks_of(folder):
            yield task, states.get((job_id, task.index), "COMPLETED")


def check_program(name: str) -> None:
    """Raise `UsageError` where a program of Slurm is missing."""
    if shutil.which(name) is None:
        raise UsageError(
            f"--on slurm must find Slurm's {name} on PATH, got none; log in where Slurm is, or write the batch "
            f"script alone with --script"
        )


def _call(command: Sequence[str]) -> str:
    check_program(command[0])
    result = subprocess.run(list(command), capture_output=True, text=True)
    if result.returncode:
        text = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
        raise UsageError(f"Slurm refused {command[0]}, and said {text!r}; mend that and give the same command again")
    return result.stdout.strip()


def describe_jobs(out_dir: Path | str) -> dict[str, Any] | None:
    """Return what the folder and the queue say of a sweep's job arrays, or None where there is none.

    Returns
    -------
    dict or None
        jobs (numbers of the arrays); running, queued, ended (shards of such tasks); done (shards measured, also by
        running tasks); lost (shards that were begun and whose task died); left_s (seconds at the nodes' pace so far,
        None before the first shard).
    """
    counts, rounds = Counter[str](), rounds_of(out_dir)
    if not rounds:
        return None
    done, live, begun = set[str](), set[str](), list[str]()
    for task, state in task_states(rounds):
        names = set(map(name_of, task.shards))
        kind = "ended" if state in ENDED else "queued" if state == "PENDING" else "running"
        counts[kind] += len(task.shards)
        live |= names if kind != "ended" else set()
        for start in task.folders():
            result = read_results(start, "samples")
            begun += [row.created for row in result.rows[:1]]
            done |= names - {*map(name_of, missing_shards(task.shards, result))}
            counts["lost"] += kind == "ended" and (start / BEGUN).exists()
    taken_s = time.time() - datetime.fromisoformat(min(begun)).timestamp() if begun else 0.0
    return {
        "jobs": [job_id for folder in rounds if (job_id := job_id_of(folder))],
        **{kind: counts[kind] for kind in ("running", "queued", "ended", "lost")},
        "done": len(done),
        "left_s": taken_s * len(live - done) / len(done) if done else None,
    }


def jobs_text(result: Mapping[str, Any] | None) -> list[str]:
    """Return the result of `describe_jobs` as lines of text."""
    if result is None:
        return []
    text = ", ".join(f"{result[kind]} {kind}" for kind in ("running", "queued", "lost"))
    left = f"; {format_seconds(result['left_s'])} left" if result["left_s"] else ""
    name = ", ".join(result["jobs"]) or "(not submitted)"
    return [f"Slurm job {name}: {plural(result['done'], 'shard')} done, {text}{left}"]


class SlurmEngine:
    """Measures shards as tasks of job arrays.

    Parameters
    ----------
    configuration : Configuration
        With its table [slurm].
    out_dir : path
        On a file system that the nodes share.
    command : str
        The user's, which goes on with the sweep.
    wait : bool
        False: shards are given out, and fetched by the next client.
    """

    def __init__(self, configuration: Configuration, out_dir: str, command: str, *, wait: bool):
        self._options = SlurmOptions.from_mapping(configuration.slurm, "table [slurm]")
        self._configuration, self._command, self._wait = configuration, command, wait
        self._folder = Path(out_dir).absolute()
        self._own: list[Path] = []  # rounds that this client has submitted
        self._live: list[ArrayTask] = []
        self._run: RunRow | None = None  # of some node

    def fetch(self, keep: Keep) -> None:
        """See `Engine`."""
        rounds = rounds_of(self._folder)
        for folder in rounds:
            check_configuration(read_job(folder).configuration, self._configuration, self._folder)
        for task, state in task_states(rounds):
            if state in ENDED:
                self._keep(task, keep)
            else:
                self._live.append(task)

    def measure(self, shards: Sequence[Shard], keep: Keep, show: Show) -> bool:
        """See `Engine`."""
        given = {name_of(shard) for task in self._live for shard in task.shards}
        new = list(self._without_lost((shard for shard in shards if name_of(shard) not in given), keep))
        if new:
            folder = self.write_script(new)
            job_id = _call(["sbatch", "--parsable", str(folder / SCRIPT)]).partition(";")[0]
            write_atomically(folder / JOB_ID, job_id)
            self._own.append(folder)
            tasks = tasks_of(folder)
            self._live += tasks
            say(f"job {job_id}: {plural(len(new), 'shard')} in {plural(len(tasks), 'task')}")
        if self._wait:
            self._wait_for_all(keep, show)
        return self._wait

    def write_script(self, shards: Sequence[Shard]) -> Path:
        """Write the batch script that measures shards, and all that it reads; return their folder."""
        last = max((int(path.name.partition("-")[2]) for path in rounds_of(self._folder)), default=0)
        options, folder = self._options, self._folder / "slurm" / f"round-{last + 1}"
        one = self._configuration.measure.nodes == "one"
        per_task = len(shards) if one else max(options.shards_per_task, math.ceil(len(shards) / most_tasks()))
        tasks = [list(shards[k : k + per_task]) for k in range(0, len(shards), per_task)]
        job = JobArray(
            configuration=self._configuration.as_dict(),
            how_to_read=self._configuration.how_to_read,
            command=self._command,
            tasks=tasks,
        )
        folder.mkdir(parents=True, exist_ok=True)
        node = self._run.node.scheduler if one and self._run else ""
        requested = [
            f"--job-name=forktask-{self._folder.name}",
            f"--array=0-{len(tasks) - 1}",
            "--nodes=1",
            "--ntasks=1",
            "--requeue",
            "--open-mode=append",
            f"--signal=B:USR1@{options.end_before_s}",
            f"--output={folder}/%a.log",
            f"--chdir={Path.cwd()}",
            *([f"--nodelist={node}"] if node else []),
            *options.directives(),
        ]
        quoted = (f'"{option}"' if " " in option else option for option in requested)
        # `exec`: the signal goes to the process of the script, which then is the interpreter.
        python = options.python or sys.executable
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in quoted),
            "trap '' USR1",  # until the interpreter listens
            *options.setup,
            f"exec {shlex.quote(python)} -P -m forktask.experiments.cluster.slurm_task {shlex.quote(str(folder))}",
        ]
        write_atomically(folder / SCRIPT, "\n".join(lines) + "\n")
        write_atomically(folder / JOB, msgspec.json.encode(job))
        return folder

    def _wait_for_all(self, keep: Keep, show: Show) -> None:
        """Keep the rows of tasks as they end."""
        pause_s, silent, cancelled = POLL_S[0], 0, set[str]()
        while self._live:
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, POLL_S[1])
            job_ids = {task.round: job_id_of(task.round) for task in self._live}
            try:
                states, silent = states_of(list(job_ids.values())), 0
            except UsageError:
                silent += 1
                if silent == SILENT_POLLS:
                    raise
                continue
            waiting, counts = [], Counter[str]()
            for task in self._live:
                state = states.get((job_ids[task.round], task.index), "COMPLETED")
                if state in ENDED:
                    self._keep(task, keep)
                    if state == "CANCELLED":
                        cancelled.add(job_ids[task.round])
                else:
                    waiting.append(task)
                    counts["running" if state != "PENDING" else "queued"] += len(task.shards)
            self._live = waiting
            show(counts["running"], counts["queued"], sum(self._lost().values()))
        if cancelled:
            raise UsageError(
                f"tasks of job {', '.join(sorted(cancelled))} were cancelled; what was measured is kept: give the same "
                f"command again for the rest"
            )
        if self._own and not any(self._own[-1].glob(f"*.*/{SAMPLES}")):
            raise UsageError(
                f"a job must measure something, got nothing from that of {self._own[-1]}, "
                f"{_last_words(self._own[-1])}; mend that and give the same command again"
            )

    def _keep(self, task: ArrayTask, keep: Keep) -> None:
        for folder in task.folders():
            rows = read_results(folder, "samples").rows
            if rows:
                self._run = rows[0]
                keep(rows)

    def _lost(self) -> Counter[str]:
        """Return how often this client's tasks have begun each shard and died before its end."""
        live = {task.folders()[-1] for task in self._live if task.folders()}
        paths = (path for folder in self._own for path in folder.glob(f"*.*/{BEGUN}") if path.parent not in live)
        return Counter(name for path in paths if (name := path.read_text()))

    def _without_lost(self, shards: Iterable[Shard], keep: Keep) -> Iterator[Shard]:
        """Yield the shards that may be given out again; the others become rows."""
        lost = self._lost()
        for shard in shards:
            times = lost[name_of(shard)]
            if times < MOST_TIMES or self._run is None:
                yield shard
                continue
            message = f"begun {times} times and never ended; the logs are in {self._folder / 'slurm'}"
            keep(lost_rows(shard, self._configuration, self._run, message))


def name_of(shard: Shard) -> str:
    """Return the name of a shard in the files of tasks."""
    return f"{shard.plan_id}/{shard.interference}/{shard.repetition}"


def most_tasks() -> int:
    """Return how many tasks an array may have; where a script is written without a scheduler, by its default."""
    if shutil.which("scontrol") is None:
        return TASKS
    result = re.search(r"^MaxArraySize\s*=\s*(\d+)", _call(["scontrol", "show", "config"]), re.MULTILINE)
    return max(int(result[1]) - 1, 1) if result else TASKS


def _last_words(folder: Path) -> str:
    """Return the end of a log of an array's tasks, as a clause."""
    for path in sorted(folder.glob("*.log")):
        if lines := path.read_text(errors="replace").split("\n"):
            text = next((line for line in reversed(lines) if line.strip()), "")
            return f"whose log {path.name} ends with {text!r}"
    return "which has no log: nodes must be able to write to that folder, which they share with this machine"
