from collections.abc import MutableMapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from ..plan.model import Plan
from .storage import Storage

EVENT_DTYPE: Final[np.dtype[Any]]
SPELL_DTYPE: Final[np.dtype[Any]]
SPELL_KINDS: Final[tuple[str, ...]]
TARGETS: Final[tuple[str, ...]]
MAX_OPERANDS: int

class BlockFailure(RuntimeError):
    task_name: str
    iteration: int
    status: int
    def __init__(self, task_name: str, iteration: int, status: int, cause: BaseException | None = None) -> None: ...

class BoundPlan:
    plan: Plan
    storage: Storage
    arrays: MutableMapping[str, np.ndarray]
    target: str
    instruction_set: str
    num_loops: int
    num_tasks: int
    iteration_stride: int
    scratch_bytes: int
    needs_gil: bool
    python_calls: list[tuple[str, int, int]] | None
    def view(self, name: str) -> np.ndarray: ...
    def load(
        self,
        samples: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        order: ArrayLike | None = None,
        learning_rate: ArrayLike | None = None,
    ) -> None: ...
    def run_task(self, loop: int, block: int, iteration: int, workers: Workers, worker: int = 0) -> int: ...
    def check_unchanged(self) -> None: ...
    def again(self, plan: Plan) -> BoundPlan: ...
    def shift_iterations(self, shift: int) -> None: ...
    def raise_failure(self, workers: Workers) -> None: ...
    def discard_failure(self, workers: Workers) -> None: ...

class Workers:
    num_workers: int
    scratch: list[np.ndarray]
    tasks_per_pass: int
    def __init__(self, num_workers: int, scratch_bytes: int = 0, event_capacity: int = 0) -> None: ...
    def events(self) -> np.ndarray: ...
    def clear_events(self) -> None: ...
    def log_spells(self, capacity: int) -> None: ...
    def switch_log(self, on: bool) -> None: ...
    def spells(self) -> tuple[list[np.ndarray], int]: ...

def bind(
    plan: Plan,
    storage: Storage | None = None,
    target: str = "cpu",
    instruction_set: str | None = None,
    *,
    arrays: MutableMapping[str, np.ndarray] | None = None,
) -> BoundPlan: ...
