"""Measuring processes: how one is started, what it is asked and answers, how it ends, and the row that it leaves.

A process reads its job, one line of JSON, and writes a line for each answer: {"said": ...} while it has more to do,
then {"row": ...} or {"failure": reason, "message": ...}. Answers have a pipe of their own, whose number stands in the
environment: modules of the site and libraries print to standard output before any code of ours runs.

What it measures is a function of the job that returns the row; or a generator that yields what it says, each time gets
the next request, and returns the row. So a process that takes turns with others and one that is measured alone are
started, asked and ended alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...cython_src.closing import Closing
from ...cython_src.errors import MachineError, UsageError
from ..machine.disturbance import oom_kills
from ..machine.environment import OPENMP_LIBRARIES, VARIABLE_PREFIXES, VARIABLES, described_environment
from ..machine.numa import set_memory_policy
from ..machine.topology import available_cpus
from ..subjects.models import parse_model
from ..tables.progress import format_seconds

SAMPLE_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.sampling.measure")
TIME_LIMIT_S = 120.0  # the default limit for one sample
ANSWERS = "FORKTASK_ANSWERS"  # variable with the file descriptor of the answers
STDERR_TAIL = 2000  # characters of a crashed process's messages that are kept
WAIT_POLICIES = ("auto", "active", "passive")


def sample_environment(
    threads: int, hogs: int, cores: int, wait_policy: str = "auto", is_call: bool = False
) -> dict[str, str]:
    """Return the environment variables of a measuring process, which replace all of OpenMP's and BLAS's own.

    They are the same for every model: BLAS runs on one thread inside blocks, the OpenMP team has its size, the OpenMP
    runtime binds nothing (executors pin their threads alike), and idle threads spin or sleep as OMP_WAIT_POLICY says,
    which forktask's task runtime obeys too.

    Parameters
    ----------
    threads : int
        Threads of the measured model.
    hogs : int
        Spinning processes on the same CPUs.
    cores : int
        Logical CPUs that may be used.
    wait_policy : {"auto", "active", "passive"}
        "auto": idle threads spin, unless there are more threads than cores or hogs.
    is_call : bool
        Whether it calls a function or program, whose BLAS, Numba and joblib have as many threads as OpenMP.
    """
    if wait_policy == "auto":
        wait_policy = "passive" if threads > cores or hogs else "active"
    blas = str(threads if is_call else 1)
    return {
        **{f"{library}_NUM_THREADS": blas for library in ("OPENBLAS", "MKL", "BLIS")},
        **(dict.fromkeys(("NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT"), str(threads)) if is_call else {}),
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "false",
        "OMP_PROC_BIND": "false",
        "OMP_WAIT_POLICY": wait_policy,
        "PYTHONHASHSEED": "0",
    }


def clean_environment(own: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return `own` without the variables that configure or slow down OpenMP and BLAS libraries, plus `settings`."""
    dropped = {name for name, (kind, _) in VARIABLES.items() if kind not in ("kernels", "memory")}
    kept = {k: v for k, v in own.items() if k not in dropped and not k.startswith(VARIABLE_PREFIXES)}
    # Whichever OpenMP library a model runs under is the model's.
    libraries = (name for name in re.split("[ :]+", kept.pop("LD_PRELOAD", "")) if name)
    others = [name for name in libraries if not os.path.basename(name).startswith(OPENMP_LIBRARIES)]
    if preloaded := ":".join(filter(None, (settings.get("LD_PRELOAD"), *others))):
        settings = {**settings, "LD_PRELOAD": preloaded}
    return {**kept, **settings}


def run_environment(wait_policy: str = "auto") -> dict[str, Any]:
    """Return where, and under which variables, the processes of a run measure: the last fields of its first row."""
    settings = sample_environment(1, 0, len(available_cpus()), wait_policy)
    return described_environment(clean_environment(os.environ, settings))


class ProcessFailure(Exception):
    """A measuring process left no row; `row` says why: {"failure": reason, "message": ...}."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.row = {"failure": reason, "message": message}


class MeasuringProcess(Closing):
    """A fresh process that measures a job; a context manager, at whose end nothing of it is left.

    It runs in a process group of its own, so that Ctrl-C reaches only the calling process, which then ends it, and
    that all of its threads and children stop together. It stays in the same session, as `hogs_running` explains. The
    time limit counts only the time in which the caller waits for it: a stopped process does not run out of time.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        environment: Mapping[str, str],
        time_limit_s: float = TIME_LIMIT_S,
        command: Sequence[str] = SAMPLE_COMMAND,
    ):
        self._limit_s = self._left_s = time_limit_s
        self._kills_before = oom_kills()
        self._answers = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        pipe, answers = os.pipe()
        self._pipe = os.fdopen(pipe, "rb")
        with os.fdopen(answers, "wb"):
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=self._errors,
                stderr=self._errors,
                env={**environment, ANSWERS: str(answers)},
                pass_fds=(answers,),
                process_group=0,
            )
        self._write(job)

    def answer(self) -> dict[str, Any]:
        """Wait for what the process says next. Raises `ProcessFailure`: it ended, or took longer than its limit, or
        answered that it cannot measure."""
        return self._answer("said")

    def ask(self, request: Any, limit_s: float | None = None) -> dict[str, Any]:
        """Send a request and wait for the answer, with `limit_s` for as long as that; raises as `answer`."""
        self._left_s = self._left_s if limit_s is None else limit_s
        self._write(request)
        return self.answer()

    def row(self) -> dict[str, Any]:
        """Wait for the row and for the end of the process; raises as `answer`."""
        row = self._answer("row")
        self._process.stdin.close()
        try:
            code = self._process.wait(max(self._left_s, 1.0))
        except subprocess.TimeoutExpired:
            raise self._late() from None
        if code:
            raise self._ended()
        return row

    def end(self) -> dict[str, Any]:
        """Ask for the row, and wait as `row` does."""
        self._write(None)
        return self.row()

    def stop(self) -> None:
        """Stop all threads of the process, and return when they stand still."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a stopped process go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process if it still runs; a thread that waits for its answer gets a failure."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process if it still runs."""
        self.kill()
        self._process.wait()
        for file in (self._process.stdin, self._pipe, self._errors):
            with contextlib.suppress(OSError):  # a request that it never read
                file.close()

    def _write(self, request: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, as the next answer says
            self._process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
            self._process.stdin.flush()

    def _answer(self, kind: str) -> dict[str, Any]:
        line = self._line()
        try:
            result = json.loads(line)
            if "failure" in result:
                raise ProcessFailure(result["failure"], result["message"])
            return result[kind]
        except (ValueError, TypeError, KeyError):
            text = line[:80].decode(errors="replace")
            raise ProcessFailure("crash", f"the measuring process must answer with {kind!r}, got {text!r}") from None

    def _line(self) -> bytes:
        """Read a line of the process's answers."""
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        while b"\n" not in self._answers:
            start = time.monotonic()
            ready = poll.poll(max(self._left_s, 0.0) * 1000)
            self._left_s -= time.monotonic() - start
            if not ready:
                raise self._late()
            part = os.read(self._pipe.fileno(), 1 << 16)
            if not part:
                self._process.wait()
                raise self._ended()
            self._answers += part
        line, _, self._answers = self._answers.partition(b"\n")
        return line

    def _late(self) -> ProcessFailure:
        limit = format_seconds(self._limit_s)
        return ProcessFailure("timeout", f"took longer than the limit of {limit}; raise time_limit_s")

    def _ended(self) -> ProcessFailure:
        """Say how a process ended that left no row."""
        code = self._process.returncode
        if code == -signal.SIGKILL and oom_kills() > self._kills_before:
            return ProcessFailure("memory", "killed by the kernel because memory ran out; lower the batch")
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace").strip()[-STDERR_TAIL:]
        killed = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
        cause = killed or f"ended with exit code {code} and without a sample"
        return ProcessFailure("crash", f"{cause}{': ' + tail if tail else ''}")


def measure_in_process(
    job: Mapping[str, Any],
    settings: Mapping[str, str],
    time_limit_s: float = TIME_LIMIT_S,
    command: Sequence[str] = SAMPLE_COMMAND,
) -> dict[str, Any]:
    """Measure a job that takes no turns in a fresh process, in a clean environment with some variables more; return its
    row, or {"failure": reason, "message": ...}."""
    with MeasuringProcess(job, clean_environment(os.environ, settings), time_limit_s, command) as process:
        try:
            return process.row()
        except ProcessFailure as failure:
            return failure.row


# --- in the measuring process


def end_with_parent(pipe: int) -> None:
    """Ask the kernel to kill this process when its parent, which reads a pipe, dies: nothing is left after kill -9."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return  # Other systems have no such call; the process then ends by itself when it reads its next request.
    answers = select.poll()
    answers.register(pipe, 0)
    if any(event & select.POLLERR for _, event in answers.poll(0)):
        sys.exit(1)  # The parent died before: nobody can read what this process writes.


def answer_job(measure_job: Callable[[Mapping[str, Any]], Any], usage_failure: str = "crash") -> int:
    """Read a job from standard input, measure it, and write the answers: all that a measuring process does. Whatever
    else is printed goes to standard error.

    Parameters
    ----------
    measure_job : callable
        Job -> row, or a generator as the module's docstring says.
    usage_failure : str
        The "failure" of a `UsageError`: "usage" where the parent process passes the message on to the user.

    Returns
    -------
    int
        Exit code.
    """
    pipe = int(os.environ.pop(ANSWERS, "1"))
    end_with_parent(pipe)
    os.set_inheritable(pipe, False)
    answers = os.fdopen(pipe, "w", closefd=False)

    def say(answer: Mapping[str, Any]) -> None:
        print(json.dumps(answer, default=str), file=answers, flush=True)

    try:
        job = _request()
        if "model" in job:
            job["model"] = parse_model(job["model"])
        if job["cpus"] is not None:
            # Before memory is touched: pages belong to the socket of the thread that touches them first.
            os.sched_setaffinity(0, set(job["cpus"]))
        if "memory_policy" in job:
            job["memory_error"] = set_memory_policy(job["memory_policy"], job["memory_nodes"])
        result = measure_job(job)
        if inspect.isgenerator(result):
            result = converse(result, lambda text: (say({"said": text}), _request())[1])
        say({"row": result} if "failure" not in result else result)
    except MemoryError as error:
        say({"failure": "memory", "message": str(error) or "not enough memory; lower the batch"})
    except UsageError as error:
        machine = isinstance(error, MachineError) and usage_failure == "crash"
        say({"failure": "machine" if machine else usage_failure, "message": str(error)})
    except Exception as error:
        traceback.print_exc()
        say({"failure": "crash", "message": f"{type(error).__name__}: {error}"})
    return 0


def converse(measuring, respond: Callable[[Any], Any]) -> Any:
    """Run a generator, sending it the response to each thing it yields, and return its result."""
    request = None
    while True:
        try:
            text = measuring.send(request)
        except StopIteration as end:
            return end.value
        request = respond(text)


def _request() -> Any:
    """Read the next request; without the parent process there is none."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(1)
    return json.loads(line)
