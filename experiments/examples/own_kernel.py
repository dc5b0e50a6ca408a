"""A compiled kernel of one's own: C, built here with `cc` and loaded with ctypes. It runs without the GIL."""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import forktask as ft

from .common import run_example

SOURCE = """
#include "cython_src/kernels/interface/block_kernel.h"

/* y = y + alpha x; region 0 is of x, region 1 of y. */
int axpy(const void *record, ptrdiff_t block, const TaskContext *context)
{
    const KernelArgs *args = record;
    const int32_t *bounds = args->bounds + block * args->bounds_width; /* start 0, stop 0, start 1, stop 1 */
    const double *x = (const double *)args->operand[0] + bounds[0];
    double *y = (double *)args->operand[1] + bounds[2];
    for (int i = 0; i < bounds[1] - bounds[0]; i++)
        y[i] += args->reals[0] * x[i];
    return 0;
}
"""


def build(source, function):
    """Compile C source and return a function of it."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-ffp-contract=off", f"-I{ft.get_include()}"]
        try:
            subprocess.run([*command, "-xc", "-", "-o", str(library)], input=source, text=True, check=True)
        except FileNotFoundError:
            raise ft.UsageError(f"this example needs a C compiler, found no {command[0]!r}; install one") from None
        return getattr(ctypes.CDLL(str(library)), function)


def compute(model, threads, iterations=10, n=100_000, grainsize=8192):
    x_values, y_values = np.arange(n, dtype=np.float64), np.ones(n)
    axpy = build(SOURCE, "axpy")
    graph = ft.UserGraph("own_kernel")
    x, y = graph.array("x", x_values), graph.array("y", y_values)
    for i in graph.taskloop(n, grainsize=grainsize):
        graph.task(axpy, reads=x[i], updates=y[i], args=[0.1])
    with graph:
        graph.taskiter(iterations, model=model, threads=threads)
    expected = np.ones(n)
    for _ in range(iterations):
        expected += 0.1 * x_values
    return "bitwise equal to NumPy", np.array_equal(y_values, expected), y_values


if __name__ == "__main__":
    sys.exit(run_example("own_kernel", compute))
