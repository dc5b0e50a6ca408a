"""Programs that tests run in processes of their own: texts in Python, and the command line."""

import os
import subprocess
import sys


def run_python(program, *arguments, **options):
    """Run a program's text; see `_run`."""
    return _run("-c", program, *arguments, **options)


def run_forktask(*words, **options):
    """Run a command; see `_run`."""
    return _run("-m", "forktask", *words, **options)


def _run(*words, variables=None, text=True, timeout=300, **options):
    """Return how a process ended and what it printed. `variables`: of its environment, beside those of this process;
    `options`: further ones of `subprocess.run`."""
    command, environment = [sys.executable, "-P", *map(str, words)], {**os.environ, **(variables or {})}
    return subprocess.run(command, env=environment, capture_output=True, text=text, timeout=timeout, **options)
