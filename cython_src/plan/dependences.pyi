from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..shown import Shown
from .model import AccessTable

FLOW: Final[int]
ANTI: Final[int]
SHARING: Final[int]
SELF: Final[int]
EDGE_KINDS: Final[tuple[str, ...]]

@dataclass(frozen=True)
class TaskGraph(Shown):
    num_tasks: int
    num_joins: int
    successor_offsets: np.ndarray
    successor_split: np.ndarray
    successors: np.ndarray
    edge_kind: np.ndarray | None
    num_intra: np.ndarray
    num_cross: np.ndarray
    closed: bool
    @property
    def num_nodes(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    def edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
    def _rows(self) -> list[dict[str, Any]]: ...

def record_graph(access_table: AccessTable, closed: bool = True, *, edge_kinds: bool = False) -> TaskGraph: ...
def topological_order(offsets: np.ndarray, split: np.ndarray, successors: np.ndarray) -> np.ndarray: ...
def remaining_path(graph: TaskGraph, cost: np.ndarray) -> np.ndarray: ...
def by_priority(graph: TaskGraph, priority: np.ndarray) -> TaskGraph: ...
