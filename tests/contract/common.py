"""What the spike's networks share: registration, small kernels in NumPy, and the battery of checks.

The spike proves the plan contract with kernels that are as plain as possible: what they read and write can be seen.
"""

import numpy as np

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import check_accesses, check_orders, run_serial, span_in_tasks
from forktask.cython_src.binding.storage import Storage
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, register
from forktask.cython_src.plan.builder import ranges
from forktask.cython_src.plan.dependences import SHARING, record_graph
from forktask.cython_src.plan.model import Block, read, update, write


def kernel(name, operands, bounds="", integers="", reals=""):
    """Register `f(operands, attributes, bounds, iteration)` as a kernel; names are given as words of a string."""

    def decorate(function):
        register(
            KernelSpec(
                name,
                tuple(operands.split()),
                tuple(integers.split()),
                tuple(reals.split()),
                tuple(bounds.split()),
                reference=function,
            )
        )
        return function

    return decorate


@kernel("spike.add_partials", "partials total", "start stop")
def add_partials(o, a, b, iteration):
    """total[range] = sum of partials[:, range], pairwise in a fixed tree."""
    parts = list(o["partials"][:, b["start"] : b["stop"]])
    while len(parts) > 1:
        parts = [parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    o["total"][b["start"] : b["stop"]] = parts[0]


@kernel("spike.sgd", "w v g learning_rates", "start stop", reals="momentum")
def sgd(o, a, b, iteration):
    rows = slice(b["start"], b["stop"])
    rate = o["learning_rates"][iteration % len(o["learning_rates"])]
    o["v"][rows] = a["momentum"] * o["v"][rows] + o["g"][rows]
    o["w"][rows] -= rate * o["v"][rows]


@kernel("spike.log_mean", "values log")
def log_mean(o, a, b, iteration):
    o["log"][iteration % len(o["log"])] = o["values"].mean()


def over_rows(rows, *accesses):
    """One block for each range of leading rows; `accesses` maps a range to what it touches there."""
    return [Block(r, tuple(access(r) for access in accesses)) for r in rows]


def add_partials_loop(builder, name, partials, total, num_partials, rows, layer):
    builder.loop(
        name,
        "spike.add_partials",
        {"partials": partials, "total": total},
        layer=layer,
        phase="backward",
        blocks=[Block(r, (read(partials, (0, num_partials), r), write(total, r))) for r in rows],
    )


def sgd_loop(builder, name, rows, layer, iteration_offset=0):
    operands = {"w": name, "v": f"{name}.momentum", "g": f"{name}.grad", "learning_rates": "learning_rates"}
    builder.loop(
        f"{layer} update {name}",
        "spike.sgd",
        operands,
        attributes={"momentum": 0.9},
        layer=layer,
        phase="update",
        iteration_offset=iteration_offset,
        blocks=[
            Block(r, (update(name, r), update(f"{name}.momentum", r), read(f"{name}.grad", r), read("learning_rates")))
            for r in rows
        ],
    )


def log_loop(builder, values, log, iteration_offset=0):
    builder.loop(
        f"log {log}",
        "spike.log_mean",
        {"values": values, "log": log},
        phase="other",
        iteration_offset=iteration_offset,
        blocks=[Block((), (read(values), update(log)))],
    )


def numerical_gradient(loss, parameter, count, rng, step=1e-6):
    """Indices into `parameter` and central differences of `loss()` there; `loss` must read `parameter` in place."""
    flat = parameter.reshape(-1)
    where = rng.choice(flat.size, size=min(count, flat.size), replace=False)
    slopes = []
    for i in where:
        centre = flat[i]
        flat[i] = centre + step
        above = loss()
        flat[i] = centre - step
        below = loss()
        flat[i] = centre
        slopes.append((above - below) / (2 * step))
    return where, np.array(slopes)


def assert_gradients(gradients, parameters, loss, rng, count=12):
    """Check gradients against central differences of an independent loss."""
    for name, gradient in gradients.items():
        where, slopes = numerical_gradient(loss, parameters[name], count, rng)
        np.testing.assert_allclose(gradient.reshape(-1)[where], slopes, rtol=2e-5, atol=2e-8, err_msg=name)


def bound_plan(plan, fill, target="numpy"):
    bound = bind(plan, Storage(), target)
    fill(bound)
    return bound


def run_battery(make_plan, fill, *, num_orders, num_replays=3):
    """Everything that must hold for a plan whatever it computes; `make_plan(memory)` lowers it.

    Accesses as declared; bitwise equal in random orders in both memory modes, also with a barrier; sharing memory
    adds edges tagged so and changes no result.
    """
    full, shared = make_plan("full"), make_plan("shared")
    assert check_accesses(full, initialise=fill) == 2 * full.num_tasks
    results = []
    for plan in (full, shared):
        bound = bound_plan(plan, fill)
        different = check_orders(bound, num_orders=num_orders, num_replays=num_replays)
        assert different > 0.9 * num_orders
        check_orders(
            bound_plan(plan, fill), record_graph(plan.accesses, closed=False), num_orders=max(2, num_orders // 10)
        )
        results.append({b.name: bound.arrays[b.name] for b in plan.buffers.values() if b.persistent})
    for name, array in results[0].items():
        np.testing.assert_array_equal(array, results[1][name], err_msg=name)
    assert len(set(shared.arena_of.values())) < len(shared.arena_of)
    assert sum(shared.memory_bytes().values()) < sum(full.memory_bytes().values())
    graph, graph_shared = (record_graph(plan.accesses, edge_kinds=True) for plan in (full, shared))
    assert not (graph.edge_kind == SHARING).any()
    assert (graph_shared.edge_kind == SHARING).any()
    plain = {e[:3] for e in labelled_edges(graph)}
    assert {e[:3] for e in labelled_edges(graph_shared) if e[3] != SHARING} <= plain
    return full, graph


def labelled_edges(graph):
    """Edges between tasks as (source, target, token, kind), joins replaced by the pairs that they stand for."""
    source, target, token = graph.edges()
    into = {}
    for s, t, k in zip(source.tolist(), target.tolist(), token.tolist(), strict=True):
        if t >= graph.num_tasks:
            into.setdefault(t, []).append((s, k))
    edges = set()
    rows = zip(source.tolist(), target.tolist(), token.tolist(), graph.edge_kind.tolist(), strict=True)
    for s, t, k, kind in rows:
        if t >= graph.num_tasks:
            continue
        for producer, first in into[s] if s >= graph.num_tasks else [(s, 0)]:
            edges.add((producer, t, k + first, kind))
    return edges


__all__ = [
    "add_partials_loop",
    "assert_gradients",
    "bound_plan",
    "kernel",
    "log_loop",
    "over_rows",
    "ranges",
    "run_battery",
    "run_serial",
    "sgd_loop",
    "span_in_tasks",
]
