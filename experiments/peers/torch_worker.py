"""Measuring process for PyTorch on a network of forktask: the peer's side of `forktask peers`.

    python -P -m forktask.experiments.peers.torch_worker < job.json

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

from ...cython_src.errors import UsageError
from ...cython_src.networks.layers import (
    Add,
    AveragePool,
    BatchNorm,
    Convolution,
    Dropout,
    FullyConnected,
    GlobalPool,
    MaxPool,
    ReLU,
    ReLU6,
    Softmax,
)
from ...cython_src.networks.registry import get_network
from ..sampling.child import answer_job
from ..sampling.subject import LEARNING_RATE, build
from ..sampling.timing import Stepper, time_runs, warm_up


class TorchExecutor:
    """PyTorch's training step or inference of a network, behind the executors' `run`.

    Parameters
    ----------
    bound : BoundPlan
        Source of initial parameters and data.
    mode : {"eager", "channels_last", "compile"}
    device : {"cpu", "cuda"}
        Both compute in float32, without TF32.
    network : Network, optional
        Default: the plan's network.
    """

    def __init__(self, bound, mode: str, device: str = "cpu", network=None):
        import torch

        attributes = bound.plan.attributes
        self.torch, self.device = torch, device
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.benchmark = True
        self.training = attributes["phase"] == "train"
        self.module = torch_network(network or get_network(attributes["network"]))
        kept = [name for name, buffer in bound.plan.buffers.items() if buffer.role == "statistic"]
        present = {name: torch.from_numpy(bound.view(name).copy()) for name in (*attributes["parameters"], *kept)}
        missing, _ = self.module.load_state_dict(present, strict=False)
        unknown = [name for name in missing if not name.endswith("num_batches_tracked")]
        if unknown:
            raise AssertionError(f"parameters of PyTorch's module without a value: {unknown}")
        self.module = self.module.to(device)
        self.images = torch.from_numpy(bound.arrays["dataset.images"].copy()).to(device)
        self.labels = torch.from_numpy(bound.arrays["dataset.labels"].astype("int64")).to(device)
        self.order = torch.from_numpy(bound.arrays["batch_order"].astype("int64")).to(device)
        if mode == "channels_last":
            self.module = self.module.to(memory_format=torch.channels_last)
            self.images = self.images.contiguous(memory_format=torch.channels_last)
        self.module.train(self.training)
        self.label_smoothing = attributes.get("label_smoothing", 0.0)
        self.clip_norm = attributes.get("clip_norm", 0.0)
        self.optimizer = None
        if self.training:
            trained = [parameter for name, parameter in self.module.named_parameters() if _is_trained(name, attributes)]
            for parameter in {*self.module.parameters()} - {*trained}:
                parameter.requires_grad_(False)
            decay = {"lr": LEARNING_RATE, "weight_decay": attributes["weight_decay"], "fused": True}
            moments = {"betas": attributes["betas"], "eps": attributes["eps"]}
            self.optimizer = {
                "sgd": lambda: torch.optim.SGD(trained, momentum=attributes["momentum"], **decay),
                "adam": lambda: torch.optim.Adam(trained, **moments, **decay),
                "adamw": lambda: torch.optim.AdamW(trained, **moments, **decay),
            }[attributes["optimizer"]]()
        # On a GPU this compiled form launches captured graphs.
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
            loss = functional.cross_entropy(
                self.forward(images), self.labels.index_select(0, index), label_smoothing=self.label_smoothing
            )
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if self.clip_norm:
                self.torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip_norm)
            self.optimizer.step()
            # A captured graph overwrites its outputs when it is launched again.
            self.losses.append(loss.detach().clone() if self.device == "cuda" else loss.detach())


def _is_trained(name: str, attributes: Mapping[str, Any]) -> bool:
    frozen = [part.strip() for part in attributes.get("frozen", "").split(",") if part.strip()]
    return not any(name.startswith(f"{part}.") for part in frozen)


def torch_network(spec):
    """Return PyTorch's module for a Network; parameters and statistics have the same names.

    A layer's ReLU works in place where nothing else reads its input, as in the modules that people write.
    """
    from torch import nn

    inputs = spec.inputs()
    readers = [name for names in inputs.values() for name in names]

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = []  # (output, module or None for a sum, inputs, tensors without a later reader)
            for position, (layer, before, _) in enumerate(spec.shapes()):
                module: nn.Module | None = None
                match layer:
                    case Convolution():
                        module = nn.Conv2d(
                            before[0],
                            layer.out_channels,
                            layer.kernel,
                            layer.stride,
                            layer.padding,
                            layer.dilation,
                            layer.groups,
                            layer.bias,
                        )
                    case BatchNorm():
                        module = nn.BatchNorm2d(before[0], layer.eps, layer.momentum)
                    case ReLU():
                        module = nn.ReLU(inplace=readers.count(inputs[layer.name][0]) == 1)
                    case ReLU6():
                        module = nn.ReLU6(inplace=readers.count(inputs[layer.name][0]) == 1)
                    case MaxPool():
                        module = nn.MaxPool2d(layer.size, layer.stride or layer.size, layer.padding)
                    case AveragePool():
                        module = nn.AvgPool2d(layer.size, layer.stride or layer.size)
                    case GlobalPool():
                        module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
                    case FullyConnected():
                        module = nn.Linear(math.prod(before), layer.out_features)
                    case Dropout():
                        module = nn.Dropout(layer.rate)
                    case Add():
                        module = None
                    case Softmax():
                        continue  # The loss computes the softmax.
                    case _:
                        raise UsageError(f"the PyTorch worker has no module for {layer!r}; add one")
                later = {name for other in spec.layers[position + 1 :] for name in inputs[other.name]}
                flatten = isinstance(layer, FullyConnected) and len(before) > 1
                unread = [name for name in (*inputs[layer.name], layer.name) if name not in later]
                self.steps.append((layer.name, flatten, inputs[layer.name], unread))
                if module is not None:
                    _place(self, layer.name, module)
            self.modules_by_name = dict(self.named_modules())
            self.last = self.steps[-1][0]

        def forward(self, x):
            tensors = {"input": x}
            for name, flatten, sources, unread in self.steps:
                if len(sources) == 2:
                    value = tensors[sources[0]] + tensors[sources[1]]
                else:
                    value = tensors[sources[0]]
                    value = self.modules_by_name[name](value.flatten(1) if flatten else value)
                tensors[name] = value
                for dead in unread:
                    if dead != self.last:
                        tensors.pop(dead, None)
            return tensors[self.last]

    return Network()


def _place(root, name: str, module) -> None:
    """Register a module under a name with dots, making empty modules on the way."""
    from torch import nn

    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root._modules[part]
    root.add_module(last, module)


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
