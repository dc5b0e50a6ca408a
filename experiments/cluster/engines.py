"""The engines that `--on` names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ...cython_src.errors import UsageError
from ..sweep.configuration import Configuration
from .slurm import SlurmEngine


def engine_on(
    name: str, configuration: Configuration, out_dir: str, command: str, *, wait: bool, say: Callable[[str], Any]
) -> AbstractContextManager[Any]:
    """Return the engine with a name, as a context manager.

    Parameters
    ----------
    name : str
        slurm, or dask:ADDRESS.
    configuration : Configuration
    out_dir : path
    command : str
        The user's, which goes on with the sweep.
    wait : bool
        False: blocks are given out, and nobody waits for them.
    say : callable (str)
        Prints a line for people.

    Raises
    ------
    UsageError
        Another name, an address that nobody answers at, Dask that is not installed, or bad options of Slurm.
    """
    kind, _, address = name.partition(":")
    if name == "slurm":
        return nullcontext(SlurmEngine(configuration, out_dir, command, wait=wait, say=say))
    if kind == "dask" and address:
        from .dask_engine import DaskEngine

        return DaskEngine(address, configuration, command)
    raise UsageError(f"--on must be slurm or dask:ADDRESS, such as dask:tcp://10.0.0.1:8786, got {name!r}")
