"""Runtimes of one's own in Python; those in C are libraries of forkjoin/outside.h."""

from .cython_src.binding.execution_model import ExecutionModel
from .cython_src.records import Record, about
from .forkjoin.python_runtime import Runtime

__all__ = ["ExecutionModel", "Record", "Runtime", "about"]
