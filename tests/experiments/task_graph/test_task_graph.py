"""Pictures of task graphs: what they show of the dependences, how they are written, and what is refused."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.plan.barriers import BARRIERS, record_with_barriers
from forktask.experiments.commands.main import main
from forktask.experiments.task_graph.view import view_of

PLANS = {
    "gpt2_tiny": lower("gpt2_tiny", batch=2, sequence=32, granularity="images=1,rows=16", num_batches=1),
    "cifar10_cnn": lower("cifar10_cnn", batch=16, num_batches=1, weight_gradients="chain", memory="shared"),
}


def reached(num_nodes, edges):
    """Matrix of the nodes that paths of edges lead to."""
    matrix = np.eye(num_nodes, dtype=np.float32)
    for source, target in edges:
        matrix[source, target] = 1
    for _ in range(num_nodes.bit_length()):
        matrix = (matrix @ matrix > 0).astype(np.float32)
    return matrix > 0


def reached_in(view):
    """The same for the tasks that a view shows, in plan order, within an iteration and by its edges to the next."""
    last = max((node for edge in view.edges for node in edge), default=0)
    shown = [node for row in view.rows if row.kind == "loop" for node in row.nodes]
    count = max(last, *shown) + 1
    inside = reached(count, [edge for edge, crosses in view.edges.items() if not crosses])
    crossing = np.zeros_like(inside)
    for (source, target), crosses in view.edges.items():
        crossing[source, target] = crosses
    ahead = inside.astype(np.float32) @ crossing.astype(np.float32) @ inside.astype(np.float32) > 0
    return inside[np.ix_(shown, shown)], ahead[np.ix_(shown, shown)]


def reached_in_graph(plan, barrier):
    """The same for all tasks of a plan, from its recorded graph."""
    graph = record_with_barriers(plan, barrier)
    edges = list(zip(*(part.tolist() for part in graph.edges()), strict=True))
    inside = reached(graph.num_nodes, [(a, b) for a, b, token in edges if not token])
    crossing = np.zeros_like(inside)
    for a, b, token in edges:
        crossing[a, b] |= bool(token)
    ahead = inside.astype(np.float32) @ crossing.astype(np.float32) @ inside.astype(np.float32) > 0
    tasks = slice(graph.num_tasks)
    return inside[tasks, tasks], ahead[tasks, tasks]


@pytest.mark.parametrize("barrier", BARRIERS)
@pytest.mark.parametrize("name", PLANS)
def test_a_view_of_all_tasks_has_their_dependences(name, barrier):
    """Check that the same tasks wait for each other in a view, joins that were left out or not."""
    plan = PLANS[name]
    view = view_of(plan, barrier)
    assert view.num_tasks == plan.num_tasks
    expected = reached_in_graph(plan, barrier)
    for result, wanted in zip(reached_in(view), expected, strict=True):
        # A task that needs nothing of the iteration before depends on itself alone, which a view leaves out.
        own = np.eye(plan.num_tasks, dtype=bool)
        assert ((result | own) == (wanted | own)).all()


@pytest.mark.parametrize("barrier", BARRIERS)
def test_no_dependence_is_lost_where_layers_are_folded(barrier):
    """Check that tasks of a block still wait for each other if the way leads through layers that are not shown."""
    plan = PLANS["gpt2_tiny"]
    view = view_of(plan, barrier, ["h.0"], ["forward", "backward"])
    shown = [
        task
        for loop in plan.loops
        if loop.layer.startswith("h.0.") and loop.phase in ("forward", "backward")
        for task in range(loop.first_task, loop.first_task + loop.num_blocks)
    ]
    assert view.num_tasks == len(shown)
    inside, _ = reached_in_graph(plan, barrier)
    result, _ = reached_in(view)
    assert (result | ~inside[np.ix_(shown, shown)]).all()
    # Rows are in plan order, so no edge within an iteration leads upwards.
    assert not np.tril(result, -1).any()


def test_taskwaits_are_what_the_views_differ_in():
    """Check the numbers of barriers, and that without any a step waits for the one before in many places."""
    plan = PLANS["gpt2_tiny"]
    views = {barrier: view_of(plan, barrier) for barrier in BARRIERS}
    bars = {barrier: sum(row.kind == "barrier" for row in view.rows) for barrier, view in views.items()}
    assert bars == {"loop": len(plan.loops), "phase": 4, "iteration": 1, "none": 0}
    crossing = {barrier: sum(view.edges.values()) for barrier, view in views.items()}
    assert crossing["none"] > 10 * max(crossing["loop"], crossing["phase"])
    assert views["none"].longest_path == views["iteration"].longest_path < views["loop"].longest_path == len(plan.loops)
    text = views["phase"].describe()
    assert f"{plan.num_tasks} tasks of {len(plan.loops)} loops" in text and "4 barriers" in text


def test_the_command_writes_pictures(tmp_path, capsys):
    """Check the SVG of a block, that its title has the plan's options, and what is said about it."""
    path = tmp_path / "block.svg"
    words = "plan --network gpt2_tiny --batch 2 --optimizer adamw --layers h.1 --phases forward,backward --json --graph"
    assert main([*words.split(), str(path)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [text.partition(":")[0] for text in said["views"]] == ["barrier phase", "barrier none"]
    assert said["graph"] == str(path) and ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "optimizer adamw, barrier phase" in path.read_text()


def test_a_layer_is_named_with_all_of_its_name():
    """Check that "h.1" does not stand for "h.10"."""
    with pytest.raises(UsageError, match="layers must be some of"):
        view_of(PLANS["gpt2_tiny"], "none", ["h.0.att"])
