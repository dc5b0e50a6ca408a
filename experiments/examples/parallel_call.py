"""One call that runs a number of equal blocks in parallel, by the tools that a Python program has for it.

Each function is setup, and returns the call: `forktask run calls` measures it ([grid.arguments] of its file).
A block is `units` of some microsecond of a C function, which ctypes, Numba and graphs call without the GIL.
"""

import ctypes
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import forktask as ft

_LIBRARY = ctypes.CDLL(str(Path(__file__).with_name(f"forktask_spin{sysconfig.get_config_var('SHLIB_SUFFIX')}")))
SPIN = _LIBRARY.forktask_spin
SPIN.argtypes, SPIN.restype = [ctypes.c_int64], None


def _graph(model: str, blocks: int, units: int, threads: int) -> Callable:
    graph = ft.UserGraph("blocks")
    array = graph.array("blocks", np.zeros(blocks))
    for i in range(blocks):
        graph.task(_LIBRARY.forktask_spin_block, updates=array[i], args=[units])
    executor = ft.executor(model, threads=threads)
    executor.prepare(graph.bind())
    return lambda: executor.run(1) and None


def user_graph(blocks: int, units: int, threads: int) -> Callable:
    """A `UserGraph`, recorded once, that each call replays."""
    return _graph("taskgraph", blocks, units, threads)


def prange(blocks: int, units: int, threads: int) -> Callable:
    """Cython's `prange` over the same blocks."""
    return _graph("forkjoin", blocks, units, threads)


def numba_prange(blocks: int, units: int, threads: int) -> Callable:
    """Numba's `prange`."""
    import numba

    @numba.njit(parallel=True)
    def call():
        for _ in numba.prange(blocks):
            SPIN(units)

    call()
    return call


def thread_pool(blocks: int, units: int, threads: int) -> Callable:
    """`ThreadPoolExecutor.map`; the pool is made once."""
    pool = ThreadPoolExecutor(threads)
    return lambda: [None for _ in pool.map(SPIN, [units] * blocks)] and None


def joblib_threads(blocks: int, units: int, threads: int) -> Callable:
    """joblib's threads; the pool is made once."""
    from joblib import Parallel, delayed

    parallel = Parallel(threads, backend="threading").__enter__()
    return lambda: parallel(delayed(SPIN)(units) for _ in range(blocks)) and None


def dask_threads(blocks: int, units: int, threads: int) -> Callable:
    """Dask's local scheduler of threads, over a graph that is made once; the pool is made once."""
    from dask.threaded import get

    pool = ThreadPoolExecutor(threads)
    graph = {f"block{i}": (SPIN, units) for i in range(blocks)}
    return lambda: get(graph, [*graph], pool=pool, num_workers=threads) and None
