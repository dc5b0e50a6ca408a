"""Any DAG of Python callables: each node reads its parents' values and writes its own.

Python callables take turns at the GIL: two threads run them in the right order, but no faster.
"""

import random
import sys

import numpy as np

import forktask as ft

from .common import run_example

MODULUS = 2**31 - 1


def combine(*values_and_node):
    *parents, out, node = values_and_node
    value = node + 1
    for parent in parents:
        value = (31 * value + int(parent)) % MODULUS
    out[...] = value


def compute(model, threads, iterations=5, num_nodes=60):
    choose = random.Random(1)
    parents = [choose.sample(range(node), min(node, choose.randrange(4))) for node in range(num_nodes)]
    values = np.zeros(num_nodes, dtype=np.int64)
    graph = ft.UserGraph("python_dag")
    v = graph.array("values", values)
    for node in range(num_nodes):
        graph.task(combine, reads=[v[p] for p in parents[node]], writes=v[node], args=(node,), name=f"node {node}")
    with graph:
        graph.taskiter(iterations, model=model, threads=threads)
    expected = np.zeros(num_nodes, dtype=np.int64)
    for node in range(num_nodes):
        combine(*(expected[p] for p in parents[node]), expected[node, ...], node)
    return "equals the nodes evaluated in order", np.array_equal(values, expected), values


if __name__ == "__main__":
    sys.exit(run_example("python_dag", compute))
