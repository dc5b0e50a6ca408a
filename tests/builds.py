"""Compiled helpers of tests: each is built once for all processes of a run of the tests."""

import atexit
import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_FOLDER = "FORKTASK_TEST_BUILDS"  # environment variable: the folder of them all


def share() -> Path:
    """Return the folder of this process and of all that it starts, such as those of pytest-xdist."""
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="forktask-builds-")
        atexit.register(shutil.rmtree, os.environ[_FOLDER], ignore_errors=True)
    return Path(os.environ[_FOLDER])


def built(name: str, command: list, source: str | None = None) -> Path:
    """Return the file that a compiler makes; the first process to ask runs it, others wait.

    Parameters
    ----------
    name : str
        Of the file.
    command : list
        Compiler and options, but for `-o`.
    source : str, optional
        Text that the compiler reads.
    """
    path = share() / name
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            subprocess.run([*command, "-o", f"{path}.part"], input=source, check=True, capture_output=True, text=True)
            os.rename(f"{path}.part", path)
    return path
