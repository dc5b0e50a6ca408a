"""Python programs that tests run in processes of their own."""

import os
import subprocess
import sys


def run_python(program, *arguments, variables=None, text=True, timeout=240, **options):
    """Run a program's text; return how it ended and what it printed.

    `variables`: of the environment, beside those of this process; `options`: further ones of `subprocess.run`.
    """
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    environment = {**os.environ, **(variables or {})}
    return subprocess.run(command, env=environment, capture_output=True, text=text, timeout=timeout, **options)
