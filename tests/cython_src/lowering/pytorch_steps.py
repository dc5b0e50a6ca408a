"""Compare steps of networks of tokens with those of PyTorch."""

import numpy as np
from cython_src.tokens_for_tests import batch_of

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.lowering.lower import lower
from forktask.experiments.sampling.models import make_executor

EPSILON = float(np.finfo(np.float32).eps)
FACTOR = 4  # our error over PyTorch's own, at most, where that is not below
RELATIVE = 1e-6  # of the largest gradient: small networks have sums of so few terms that PyTorch may have no error


def compare_with_pytorch(torch_step, network, prepare, relative=RELATIVE, roundings=0, **options):
    """Raise unless our logits, loss and gradients are about as near to those in float64 as PyTorch's in float32.

    `torch_step(network, parameters, tokens, targets, dtype)` returns those of PyTorch by name; `roundings` of the
    largest value are allowed on top.
    """
    import torch

    bound = bind(lower(network, num_batches=1, **options))
    prepare(bound)
    if (
        "dataset.labels" in bound.arrays
        and bound.arrays["dataset.labels"].shape == bound.arrays["dataset.tokens"].shape
    ):
        # Of so few tokens all may be ignored, which PyTorch calls NaN.
        bound.arrays["dataset.labels"][:: bound.plan.attributes["sequence"]] = 1
    names = bound.plan.attributes["parameters"]
    parameters = {name: bound.arrays[name].copy() for name in names}
    data = batch_of(bound, 0)
    truth, peer = (torch_step(network, parameters, *data, dtype) for dtype in (torch.float64, torch.float32))
    # Parameters are as before the step: logits come from a plan that does not train.
    forward = bind(lower(network, num_batches=1, **{**options, "phase": "forward"}), bound.storage)
    for each in (forward, bound):
        with make_executor("serial", 1) as executor:
            executor.prepare(each)
            executor.run(1)
    ours = {"logits": forward.view("logits"), "loss": bound.arrays["losses"][0]}
    ours |= {name: bound.view(f"{name}.grad") for name in names}
    largest = max(np.abs(truth[name]).max() for name in names)
    for name, expected in truth.items():
        own = np.abs(peer[name] - expected).max()
        error = np.abs(ours[name].astype(np.float64) - expected).max()
        slack = relative * max(largest, np.abs(expected).max()) + roundings * EPSILON * np.abs(expected).max()
        assert error <= FACTOR * own + slack, (name, error, own)
