"""Scaling tests of this project, with its own plugin."""

import pytest
from experiments.scaling.graphs import means


@pytest.mark.scaling(
    models=["forkjoin", "forkjoin:region=persistent", "tasks", "taskgraph", "taskiter", "taskiter:placement=stealing"],
    threads=[1, 2],
)
def test_training_step(scaling):
    """Check a training step of the network: same bits everywhere, and the graph it should have."""
    scaling("cifar10_cnn", batch=16)


@pytest.mark.quiet
@pytest.mark.scaling(models=["forkjoin", "taskiter"], threads=[2])
def test_tasks_are_no_slower_than_loops(scaling):
    """Check the step times of the same training step; a claim that finds no end fails."""
    step = scaling("cifar10_cnn", batch=16)
    step.assert_ratio("taskiter/forkjoin", at_most=1.1)


@pytest.mark.scaling(models=["forkjoin", "taskiter"], threads=[2])
def test_inference_of_one_image(scaling):
    """Check the forward pass of one image, which must be cut within the image to scale."""
    scaling("cifar10_cnn", batch=1, phase="forward")


@pytest.mark.scaling(models=["forkjoin", "taskgraph", "taskiter"], threads=[2])
def test_graph_of_python_tasks(scaling):
    """Check a graph of Python tasks."""
    scaling(means, grain=16)
