"""Bounds against brute force on small random graphs, and against formulas on graphs of a known shape."""

import dataclasses
import itertools

import numpy as np
import pytest
from experiments.simulate.graphs import list_schedule_s

from forktask.cython_src.plan.builder import PlanBuilder, ranges
from forktask.cython_src.plan.dependences import record_graph
from forktask.cython_src.plan.model import Block, read, update, write
from forktask.experiments.bounds import bounds
from forktask.experiments.events.events import graph_of_edges


def make_graph(num_nodes, edges):
    """A closed graph from (source, target, token) triples."""
    edges = sorted(set(edges), key=lambda e: (e[0], e[2], e[1]))
    return graph_of_edges(num_nodes, np.array(edges, np.int32).reshape(-1, 3).T)


def random_graph(rng, n):
    """Forward edges without a token, edges anywhere with one."""
    edges = [(u, v, 0) for u in range(n) for v in range(u + 1, n) if rng.random() < 0.3]
    edges += [(u, v, 1) for u in range(n) for v in range(n) if rng.random() < 0.2]
    return edges


def fewest_tokens(edges):
    """Tokens by source and target, of equal edges the fewest: they make the larger ratio."""
    return {(u, v): token for u, v, token in sorted(edges, key=lambda edge: -edge[2])}


def all_cycle_ratios(n, edges, weights):
    """Ratio of every simple cycle, by trying all sequences of nodes."""
    tokens, ratios = fewest_tokens(edges), []
    for length in range(1, n + 1):
        for nodes in itertools.permutations(range(n), length):
            if nodes[0] != min(nodes):
                continue
            steps = list(zip(nodes, nodes[1:] + nodes[:1], strict=True))
            if all(step in tokens for step in steps):
                ratios.append(sum(weights[u] for u in nodes) / sum(tokens[s] for s in steps))
    return ratios


@pytest.mark.parametrize("seed", range(60))
def test_cycle_mean_equals_brute_force(seed):
    """Check the mean, its cycle and its proof on random graphs of up to six nodes."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    edges = random_graph(rng, n)
    weights = rng.integers(0, 20, n) * 0.1
    graph = make_graph(n, edges)
    result = bounds.cycle_mean(graph, weights)
    ratios = all_cycle_ratios(n, edges, weights)
    assert result.mean_s == pytest.approx(max(ratios, default=0.0))
    source, target, token = graph.edges()
    slack = result.potentials_s[target] - (result.potentials_s[source] + weights[source] - result.mean_s * token)
    assert (slack >= -result.tolerance_s - 1e-12).all()
    if ratios and max(ratios) > 0:
        tokens, cycle = fewest_tokens(edges), result.cycle.tolist()
        around = sum(tokens[step] for step in zip(cycle, cycle[1:] + cycle[:1], strict=True))
        assert sum(weights[cycle]) / around == pytest.approx(result.mean_s)


@pytest.mark.parametrize("seed", range(30))
def test_span_equals_brute_force(seed):
    """Check the longest path against all increasing sequences of nodes."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    edges = random_graph(rng, n)
    weights = rng.random(n)
    forward = {(u, v) for u, v, token in edges if token == 0}
    longest = max(
        sum(weights[list(nodes)])
        for length in range(1, n + 1)
        for nodes in itertools.combinations(range(n), length)
        if all(step in forward for step in itertools.pairwise(nodes))
    )
    assert bounds.span(make_graph(n, edges), weights) == pytest.approx(longest)


def test_a_cycle_without_a_token_is_refused():
    """Check that a graph whose edges within an iteration are cyclic is an error."""
    with pytest.raises(ValueError, match="cycle"):
        bounds.cycle_mean(make_graph(2, [(0, 1, 0), (1, 0, 0)]), [1.0, 1.0])


def test_durations_must_fit_the_graph():
    """Check that durations of another length, negative or not finite are refused, and open graphs too."""
    graph = make_graph(2, [(0, 1, 0), (1, 0, 1)])
    for durations in ([1.0], [1.0, -1.0], [1.0, np.nan]):
        with pytest.raises(ValueError, match="durations"):
            bounds.cycle_mean(graph, durations)
    with pytest.raises(ValueError, match="closed"):
        bounds.cycle_mean(dataclasses.replace(graph, closed=False), [1.0, 1.0])


def best_makespan(blocks, threads):
    """Smallest makespan over all placements."""
    return min(
        max(sum(b for b, where in zip(blocks, placement, strict=True) if where == t) for t in range(threads))
        for placement in itertools.product(range(threads), repeat=len(blocks))
    )


@pytest.mark.parametrize("seed", range(8))
def test_fork_join_bounds_enclose_the_best_placement(seed):
    """Check bound <= best placement <= LPT, dynamic and static on random loops."""
    rng = np.random.default_rng(seed)
    loops = [rng.random(int(rng.integers(1, 7))).tolist() for _ in range(3)]
    for threads in (1, 2, 3):
        best = sum(best_makespan(blocks, threads) for blocks in loops)
        assert bounds.fork_join_bound(loops, threads) <= best + 1e-12
        for schedule in (
            bounds.fork_join_static_bound(loops, threads),
            list_schedule_s(loops, threads),
            list_schedule_s(loops, threads, longest_first=True),
        ):
            assert schedule >= best - 1e-12
        assert list_schedule_s(loops, threads, longest_first=True) <= best * 4 / 3 + 1e-12


def test_static_bound_gives_the_first_threads_one_block_more():
    """Check libgomp's shares: 5 blocks on 2 threads are 3 and 2."""
    assert bounds.fork_join_static_bound([[1.0, 1.0, 1.0, 10.0, 10.0]], 2) == 20.0
    assert bounds.fork_join_static_bound([[1.0, 1.0, 10.0, 1.0, 1.0]], 2) == 12.0
    assert bounds.fork_join_static_bound([[4.0]], 3) == 4.0


def test_floors_are_never_below_the_area():
    """Check the floors' order for each number of threads: area <= taskiter's and taskgraph's, and area <= fork-join."""
    loops = [[1.0] * 6, [3.0, 1.0], [2.0]]
    graph = bounds.GraphBounds(work_s=12.0, span_s=6.0, cycle_mean_s=3.0)
    times = [bounds.predicted_times(loops, n, {2: 1.8}.get(n), graph) for n in (1, 2, 4, 8)]
    assert [12 / t["area"] for t in times] == pytest.approx([1, 1.8, 4, 8])
    assert [12 / t["taskiter"] for t in times] == pytest.approx([1, 1.8, 4, 4])
    assert [12 / t["taskgraph"] for t in times] == pytest.approx([1, 1.8, 2, 2])
    assert all(t["forkjoin"] >= t["area"] - 1e-12 for t in times)
    assert times[-1]["forkjoin"] == pytest.approx(1 + 3 + 2)


def two_loops(produced, consumed):
    """A plan of two loops, each block of which reads all that the other loop writes."""
    builder = PlanBuilder("two loops")
    builder.buffer("weights", (4,), role="parameter")
    builder.buffer("x", (8,))
    operands = {"x": "x", "w": "weights"}
    produce = [Block(r, (read("weights"), write("x", r))) for r in ranges(8, produced)]
    builder.loop("produce", "none", operands, produce)
    consume = [Block(r, (read("x"), update("weights", r))) for r in ranges(4, consumed)]
    builder.loop("consume", "none", operands, consume)
    return builder.build()


def test_joins_take_no_time():
    """Check eight tasks that four others wait for, through a join."""
    plan = two_loops(1, 1)
    assert record_graph(plan.accesses).num_joins
    result = bounds.plan_bounds(plan, {"produce": [1.0] * 8, "consume": [1.0] * 4})
    assert (result.span_s, result.cycle_mean_s) == pytest.approx((2.0, 2.0))


def test_bounds_of_a_real_plan():
    """Check a recorded plan: cycle mean <= span <= work, and the fork-join bound of one thread is the work."""
    plan = two_loops(2, 2)
    times = {"produce": [1.0, 2.0, 3.0, 4.0], "consume": [5.0, 6.0]}
    result = bounds.plan_bounds(plan, times)
    assert result.work_s == 21.0
    assert result.span_s == pytest.approx(4.0 + 6.0)
    assert result.cycle_mean_s == pytest.approx(4.0 + 6.0)  # each update waits for all, all wait for each update


def test_brents_bound():
    """Check a chain, independent work, and a mixture, on one and four threads."""
    assert bounds.brent_bound(12.0, 12.0, 4, 4.0) == 12.0
    assert bounds.brent_bound(12.0, 1.0, 4, 4.0) == pytest.approx(3.75)
    assert bounds.brent_bound(12.0, 5.0, 1, 1.0) == 12.0
