from typing import Final

import numpy as np

from .model import AccessTable
from .model import TaskGraph as TaskGraph

FLOW: Final[int]
ANTI: Final[int]
SHARING: Final[int]
SELF: Final[int]
EDGE_KINDS: Final[tuple[str, ...]]

def record_graph(access_table: AccessTable, closed: bool = True, *, edge_kinds: bool = False) -> TaskGraph: ...
def topological_order(offsets: np.ndarray, split: np.ndarray, successors: np.ndarray) -> np.ndarray: ...
def remaining_path(graph: TaskGraph, cost: np.ndarray) -> np.ndarray: ...
def by_priority(graph: TaskGraph, priority: np.ndarray) -> TaskGraph: ...
