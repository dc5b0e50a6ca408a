import numpy as np

from .model import AccessTable
from .model import TaskGraph as TaskGraph

def record_graph(access_table: AccessTable, closed: bool = True) -> TaskGraph: ...
def topological_order(offsets: np.ndarray, split: np.ndarray, successors: np.ndarray) -> np.ndarray: ...
