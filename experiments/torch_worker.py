"""One sample of PyTorch on a network of ours: the peer's side of `forktask peers`.

    python -P -m forktask.experiments.torch_worker < job.json

The same data, initial parameters, optimiser and timing loop as measure.py; a job has the same keys, and `mode` in
place of `model`.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from .measure import LEARNING_RATE, Stepper, answer_job, build, time_runs, warm_up

# What PyTorch users on a CPU try: as it is, channels in the innermost dimension, and compiled.
MODES = ("eager", "channels_last", "compile")


class TorchExecutor:
    """PyTorch's training step or inference of a network, behind the executors' `run`.

    Parameters
    ----------
    bound : BoundPlan
        Initial parameters and data are copied from here.
    mode : {"eager", "channels_last", "compile"}
    device : {"cpu", "cuda"}
        With float32 arithmetic on both: no TF32.
    """

    def __init__(self, bound, mode: str, device: str = "cpu"):
        import torch

        from ..cython_src.network import get_network

        attributes = bound.plan.attributes
        self.torch, self.device = torch, device
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.benchmark = True
        self.training = attributes["phase"] == "train"
        self.module = torch_network(get_network(attributes["network"]))
        self.module.load_state_dict(
            {name: torch.from_numpy(bound.view(name).copy()) for name in attributes["parameters"]}
        )
        self.module = self.module.to(device)
        self.images = torch.from_numpy(bound.arrays["dataset.images"].copy()).to(device)
        self.labels = torch.from_numpy(bound.arrays["dataset.labels"].astype("int64")).to(device)
        self.order = torch.from_numpy(bound.arrays["batch_order"].astype("int64")).to(device)
        if mode == "channels_last":
            self.module = self.module.to(memory_format=torch.channels_last)
            self.images = self.images.contiguous(memory_format=torch.channels_last)
        self.module.train(self.training)
        update = next((loop.attributes for loop in bound.plan.loops if "momentum" in loop.attributes), None)
        self.optimizer = None
        if self.training:
            self.optimizer = torch.optim.SGD(
                self.module.parameters(), lr=LEARNING_RATE, momentum=update["momentum"],
                weight_decay=update["weight_decay"], fused=True,
            )
        # On a GPU the compiled form that launches captured graphs.
        compiled = "reduce-overhead" if device == "cuda" else "default"
        self.forward = torch.compile(self.module, mode=compiled) if mode == "compile" else self.module
        self.losses: list = []
        self.probabilities = None

    def run(self, num_iterations: int, first_iteration: int = 0) -> None:
        """Run steps and wait for them. Losses are kept as tensors, so that no step waits for a number."""
        self._run(num_iterations, first_iteration)
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def _run(self, num_iterations: int, first_iteration: int) -> None:
        functional = self.torch.nn.functional
        for iteration in range(first_iteration, first_iteration + num_iterations):
            index = self.order[iteration % len(self.order)]
            images = self.images.index_select(0, index)
            if not self.training:
                with self.torch.inference_mode():
                    self.probabilities = functional.softmax(self.forward(images), dim=1)
                continue
            loss = functional.cross_entropy(self.forward(images), self.labels.index_select(0, index))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            # A graph that is launched again overwrites its outputs.
            self.losses.append(loss.detach().clone() if self.device == "cuda" else loss.detach())


def torch_network(spec):
    """PyTorch's module for a NetworkSpec; parameters have the same names."""
    from torch import nn

    from ..cython_src.network import Convolution, FullyConnected, MaxPool, ReLU

    modules: list[tuple[str, nn.Module]] = []
    for layer, before, _ in spec.shapes():
        if isinstance(layer, Convolution):
            module: nn.Module = nn.Conv2d(before[0], layer.out_channels, layer.kernel, padding=layer.padding)
        elif isinstance(layer, ReLU):
            module = nn.ReLU(inplace=True)
        elif isinstance(layer, MaxPool):
            module = nn.MaxPool2d(layer.size)
        elif isinstance(layer, FullyConnected):
            if len(before) > 1:
                modules.append((f"{layer.name}_flatten", nn.Flatten()))
            module = nn.Linear(math.prod(before), layer.out_features)
        else:
            continue  # softmax is part of the loss
        modules.append((layer.name, module))
    from collections import OrderedDict

    return nn.Sequential(OrderedDict(modules))


def measure_torch(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure PyTorch once: the row of a sample, with the losses of the first steps."""
    import torch

    torch.set_num_threads(job["threads"])
    torch.set_flush_denormal(True)
    bound = build(job)
    started = time.time()
    executor = TorchExecutor(bound, job["mode"], "cuda" if job.get("device") == "gpu" else "cpu")
    stepper = Stepper(executor)
    start = time.perf_counter()
    stepper.run(1)
    first_run_s = time.perf_counter() - start
    stepper.run(max(job["check_iterations"] - 1, 1))
    answered = [float(loss) for loss in executor.losses]
    if executor.probabilities is not None:
        answered = [float(p) for p in executor.probabilities[:4].ravel()]
    executor.losses.clear()
    warm = warm_up(stepper, job["warmup_s"])
    timed = time_runs(stepper, warm.pass_time_s, job["target_s"])
    return {
        "kind": "sample",
        "step_time_s": timed.step_time_s,
        "run_lengths": timed.run_lengths,
        "run_times_s": timed.run_times_s,
        "first_run_s": first_run_s,
        "stationary": warm.stationary,
        "answer": answered,
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "pid": os.getpid(),
        "started": started,
    }


def main() -> int:
    """Measure PyTorch."""
    return answer_job(measure_torch)


if __name__ == "__main__":
    sys.exit(main())
