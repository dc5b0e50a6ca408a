"""A measuring process: its environment, its start and end, and the row or failure that it returns."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...cython_src.errors import UsageError
from ..machine.disturbance import oom_kills
from ..machine.variables import VARIABLE_PREFIXES, VARIABLES
from .progress import format_seconds

SAMPLE_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.sampling.measure")
TIME_LIMIT_S = 120.0  # the default limit for one sample
STDERR_TAIL = 2000  # characters of a crashed process's messages that are kept
# Exit code of the process; the reason is a JSON object with "failure" and "message" on standard output.
EXIT_FAILURE = 3
WAIT_POLICIES = ("auto", "active", "passive")


def sample_environment(threads: int, hogs: int, cores: int, wait_policy: str = "auto") -> dict[str, str]:
    """Return the environment variables that a measuring process gets in place of all of OpenMP's and BLAS's own.

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
    """
    if wait_policy == "auto":
        wait_policy = "passive" if threads > cores or hogs else "active"
    return {
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "BLIS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "false",
        "OMP_PROC_BIND": "false",
        "OMP_WAIT_POLICY": wait_policy,
        "PYTHONHASHSEED": "0",
    }


def clean_environment(own: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return `own` without the variables that configure or slow down OpenMP and BLAS libraries, plus `settings`."""
    dropped = {name for name, (kind, _) in VARIABLES.items() if kind != "kernels"}
    kept = {k: v for k, v in own.items() if k not in dropped and not k.startswith(VARIABLE_PREFIXES)}
    return {**kept, **settings}


def run_sample(
    job: Mapping[str, Any],
    environment: Mapping[str, str],
    time_limit_s: float = TIME_LIMIT_S,
    command: Sequence[str] = SAMPLE_COMMAND,
) -> dict[str, Any]:
    """Measure one job in a fresh process and return its row, or {"failure": reason, "message": ...}.

    The process runs in a process group of its own, so that Ctrl-C reaches only the calling process, which then ends it.
    It stays in the same session, as `hogs_running` explains.
    """
    kills_before = oom_kills()
    child = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",  # libraries may print any bytes
        env=dict(environment),
        process_group=0,
    )
    try:
        output, errors = child.communicate(json.dumps(dict(job)), timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        return {"failure": "timeout", "message": f"took longer than the limit of {format_seconds(time_limit_s)}"}
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    try:
        row = json.loads(output.strip().rpartition("\n")[2])
    except ValueError:
        row = None
    if isinstance(row, dict) and ("failure" in row or child.returncode == 0):
        return row
    tail = errors.strip()[-STDERR_TAIL:]
    if child.returncode == -signal.SIGKILL and oom_kills() > kills_before:
        return {"failure": "memory", "message": "killed by the kernel because memory ran out; lower the batch"}
    if child.returncode < 0:
        cause = f"killed by {signal.Signals(-child.returncode).name}"
    else:
        cause = f"ended with exit code {child.returncode} and without a sample"
    return {"failure": "crash", "message": f"{cause}{': ' + tail if tail else ''}"}


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, so that nothing is left after a kill -9."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return  # Other systems have no such call; the process then ends by itself after its sample.


def answer_job(measure_job: Callable[[Mapping[str, Any]], Mapping[str, Any]], usage_failure: str = "crash") -> int:
    """Read a job from standard input, measure it, and write the row: all that a measuring process does.

    Parameters
    ----------
    measure_job : callable
        Job -> row.
    usage_failure : str
        The row's "failure" for a `UsageError`: "usage" where the parent process passes the message on to the user.

    Returns
    -------
    int
        Exit code; `EXIT_FAILURE` where the object written has the keys "failure" and "message" in place of a row.
    """
    end_with_parent()
    job = json.load(sys.stdin)
    try:
        if job["cpus"] is not None:
            # Before memory is touched: pages belong to the socket of the thread that touches them first.
            os.sched_setaffinity(0, set(job["cpus"]))
        row = measure_job(job)
    except MemoryError as error:
        row = {"failure": "memory", "message": str(error) or "not enough memory; lower the batch"}
    except UsageError as error:
        row = {"failure": usage_failure, "message": str(error)}
    except Exception as error:
        traceback.print_exc()
        row = {"failure": "crash", "message": f"{type(error).__name__}: {error}"}
    print(json.dumps(row), flush=True)
    return EXIT_FAILURE if "failure" in row else 0
