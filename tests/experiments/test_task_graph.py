"""Pictures of task graphs: what they show of the dependences, how they are written, and what is refused."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from forktask.cython_src.errors import UsageError
from forktask.cython_src.lowering.lower import lower
from forktask.experiments.commands.main import main
from forktask.experiments.task_graph.dot import as_dot
from forktask.experiments.task_graph.picture import draw
from forktask.experiments.task_graph.view import view_of
from forktask.tasking.barriers import BARRIERS, record_with_barriers

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
    for found, wanted in zip(reached_in(view), expected, strict=True):
        # A task that needs nothing of the iteration before depends on itself alone, which a view leaves out.
        own = np.eye(plan.num_tasks, dtype=bool)
        assert ((found | own) == (wanted | own)).all()


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
    found, _ = reached_in(view)
    assert (found | ~inside[np.ix_(shown, shown)]).all()
    # Rows are in plan order, so no edge within an iteration leads upwards.
    assert not np.tril(found, -1).any()


def test_taskwaits_are_what_the_views_differ_in():
    """Check the numbers of barriers, and that without any a step waits for the one before in many places."""
    plan = PLANS["gpt2_tiny"]
    views = {barrier: view_of(plan, barrier) for barrier in BARRIERS}
    bars = {barrier: sum(row.kind == "barrier" for row in view.rows) for barrier, view in views.items()}
    assert bars == {"loop": len(plan.loops), "phase": 4, "iteration": 1, "none": 0}
    crossing = {barrier: sum(view.edges.values()) for barrier, view in views.items()}
    assert crossing["none"] > 10 * max(crossing["loop"], crossing["phase"])
    assert views["none"].longest_path == views["iteration"].longest_path < views["loop"].longest_path == len(plan.loops)
    said = views["phase"].describe()
    assert f"{plan.num_tasks} tasks of {len(plan.loops)} loops" in said and "4 barriers" in said


def test_dot_declares_each_node_once():
    """Check braces and names of a graph in DOT, and that edges to the next iteration are dashed."""
    views = [view_of(PLANS["gpt2_tiny"], barrier, ["h.0"]) for barrier in ("phase", "none")]
    text = as_dot(views)
    assert text.count("{") == text.count("}") and text.startswith("digraph")
    declared = re.findall(r"^\s*(v\d_\d+) \[", text, re.MULTILINE)
    edges = re.findall(r"^\s*(v\d_\d+) -> (v\d_\d+)( \[style=dashed)?", text, re.MULTILINE)
    assert len(declared) == len({*declared}) and {name for a, b, _ in edges for name in (a, b)} <= {*declared}
    assert len(edges) == sum(len(view.edges) for view in views)
    assert sum(bool(dashed) for *_, dashed in edges) == sum(sum(view.edges.values()) for view in views)
    assert '"h.0.mlp.c_fc[0]"' in text and 'label="h.0.mlp.c_fc, forward"' in text


def test_loops_stand_at_the_same_height_in_all_panels():
    """Check that panels with and without barriers can be compared line by line."""
    views = [view_of(PLANS["cifar10_cnn"], barrier) for barrier in ("loop", "iteration", "none")]
    figure = draw(views)
    assert len(figure.axes) == 3
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    names = [loop.name for loop in PLANS["cifar10_cnn"].loops]
    assert [label for label in labels if not label.startswith("barrier")] == names
    assert labels[1] == "barrier after loop" and len(labels) == 2 * len(names)


def test_the_command_writes_pictures(tmp_path, capsys):
    """Check SVG and DOT of a block, and what is said about them."""
    arguments = ["graph", "--network", "gpt2_tiny", "--batch", "2", "--layers", "h.1", "--phases", "forward,backward"]
    for kind in ("svg", "dot"):
        path = tmp_path / f"block.{kind}"
        assert main([*arguments, "--file", str(path)]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith("barrier phase: ") and said[1].startswith("barrier none: ") and said[2] == str(path)
    assert ElementTree.parse(tmp_path / "block.svg").getroot().tag.endswith("svg")
    assert "h.1.attn" in (tmp_path / "block.dot").read_text()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--network", "gpt2", "--layers", "h"], "a picture holds at most 400 tasks, got "),
        (["--layers", "h.9"], "layers must be some of "),
        (["--phases", "backwards"], "phases must be some of load, forward"),
        (["--phases", "load", "--layers", "fc"], "layers fc must have loops of phase load, got none"),
        (["--barriers", "task"], "barrier must be one of loop, phase"),
        (["--file", "graph.gif"], "--file must end in .dot, .pdf, .svg, .png"),
        (["--file", "/no/such/folder/graph.svg"], "cannot be written"),
    ],
)
def test_bad_input_is_refused(arguments, message, capsys, tmp_path, monkeypatch):
    """Check one sentence and exit code 2, and that no file is left."""
    monkeypatch.chdir(tmp_path)
    assert main(["graph", "--batch", "4", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_layer_is_named_with_all_of_its_name():
    """Check that "h.1" does not stand for "h.10"."""
    with pytest.raises(UsageError, match="layers must be some of"):
        view_of(PLANS["gpt2_tiny"], "none", ["h.0.att"])
