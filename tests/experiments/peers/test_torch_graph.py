"""PyTorch's step as a captured graph, on the CPU: a stand-in for CUDA graphs records operations and repeats them."""

from unittest.mock import MagicMock, patch

import numpy as np
import pytest

from forktask.experiments.subjects.subject import build


@pytest.fixture
def cuda_graphs():
    """Let captured operations read and write the tensors of the capture; none may hand a number to Python."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Graph(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert "_local_scalar_dense" not in str(function)
            self.calls.append((function, args, kwargs or {}, function(*args, **kwargs or {})))
            return self.calls[-1][-1]

        @torch.inference_mode()
        def replay(self):
            for function, args, kwargs, results in self.calls:
                for kept, new in zip(tree_leaves(results), tree_leaves(function(*args, **kwargs)), strict=True):
                    if isinstance(kept, torch.Tensor):
                        kept.copy_(new)

    streams = {name: MagicMock() for name in ("Stream", "current_stream", "stream")}
    with patch.multiple(torch.cuda, CUDAGraph=Graph, graph=lambda graph: graph, **streams):
        yield


@pytest.mark.torch
@pytest.mark.parametrize(
    ("plan", "eager", "graph"),
    [
        ({"network": "mobilenet_v2"}, "channels_last", "graph_channels_last"),
        ({"network": "cifar10_cnn", "phase": "forward"}, "eager", "graph"),
        ({"network": "gpt2_tiny", "sequence": 8, "optimizer": "adamw", "clip_norm": 0.5}, "sdpa", "graph"),
    ],
)
def test_a_captured_step_leaves_the_numbers_of_the_eager_one(plan, eager, graph, cuda_graphs):
    """Check parameters, statistics, moments, losses and answers, bit for bit: the steps before the capture leave
    nothing, and each launch takes the next batch."""
    from forktask.experiments.peers.torch_executor import CapturedTraining, TorchTraining

    result = []
    for kind, mode in ((TorchTraining, eager), (CapturedTraining, graph)):
        bound = build({"plan": {"batch": 2, **plan}, "threads": 1, "cpus": None, "seed": 1})
        training = kind(bound, mode)
        training.run(2)
        training.run(3, 2)
        training.collect(bound)
        moments = training.optimizer.state.values() if training.training else ()
        state = {
            **training.module.state_dict(),
            **{f"{n} {k}": m for k, own in enumerate(moments) for n, m in own.items()},
        }
        state["answer"] = bound.arrays["losses"] if training.training else training.outputs
        result.append({name: np.asarray(value).tobytes() for name, value in state.items()})
        assert not training.training or np.count_nonzero(bound.arrays["losses"]) == 5
    assert [*result[0]] == [*result[1]] and [n for n in result[0] if result[0][n] != result[1][n]] == []
