"""Measuring process for PyTorch on a network of forktask: the peer's side of `forktask peers`.

    python -P -m forktask.experiments.peers.torch_worker < job.json

The same data, initial parameters, optimiser and timing loop as measure.py; a job has the same keys, and `mode` in
place of `model`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from ...cython_src.networks.registry import get_network
from ..sampling.child import answer_job
from ..sampling.timing import GPU_UNTIMED_S, Stepper, take_turns, warm_up
from ..subjects.subject import ANSWERED_CLASSES, ANSWERED_ROWS, LEARNING_RATE, build
from .torch_network import torch_network


class TorchExecutor:
    """PyTorch's training step or inference of a network, behind the executors' `run`.

    Parameters
    ----------
    bound : BoundPlan
        Source of initial parameters and data.
    mode : {"eager", "channels_last", "sdpa", "compile"}
        See `modes.MODES`.
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
        self.tokens = "dataset.tokens" in bound.arrays
        spec = network or get_network(attributes["network"])
        self.module = torch_network(spec, fused_attention=mode != "eager")
        kept = [name for name, buffer in bound.plan.buffers.items() if buffer.role == "statistic"]
        present = {name: torch.from_numpy(bound.view(name).copy()) for name in (*attributes["parameters"], *kept)}
        missing, _ = self.module.load_state_dict(present, strict=False)
        unknown = [name for name in missing if not name.endswith("num_batches_tracked")]
        if unknown:
            raise AssertionError(f"parameters of PyTorch's module without a value: {unknown}")
        self.module = self.module.to(device)
        self.samples, self.labels = (torch.from_numpy(array).to(device) for array in _data(bound))
        self.order = torch.from_numpy(bound.arrays["batch_order"].astype("int64")).to(device)
        if mode == "channels_last":
            self.module = self.module.to(memory_format=torch.channels_last)
            self.samples = self.samples.contiguous(memory_format=torch.channels_last)
        self.module.train(self.training)
        self.label_smoothing = attributes.get("label_smoothing", 0.0)
        self.clip_norm = attributes.get("clip_norm", 0.0)
        self.optimizer = None
        if self.training:
            trained = [parameter for name, parameter in self.module.named_parameters() if _is_trained(name, attributes)]
            for parameter in {*self.module.parameters()} - {*trained}:
                parameter.requires_grad_(False)
            groups = _decay_groups(trained, attributes)
            every = {"lr": LEARNING_RATE, "fused": True}
            moments = {"betas": attributes["betas"], "eps": attributes["eps"]}
            self.optimizer = {
                "sgd": lambda: torch.optim.SGD(groups, momentum=attributes["momentum"], **every),
                "adam": lambda: torch.optim.Adam(groups, **moments, **every),
                "adamw": lambda: torch.optim.AdamW(groups, **moments, **every),
            }[attributes["optimizer"]]()
        # On a GPU this compiled form launches captured graphs.
        compiled = "reduce-overhead" if device == "cuda" else "default"
        self.forward = torch.compile(self.module, mode=compiled) if mode == "compile" else self.module
        self.losses: list = []
        self.outputs = None

    def run(self, num_iterations: int, first_iteration: int = 0) -> None:
        """Run steps and wait for them. Losses are kept as tensors, so that no step waits for a number."""
        self._run(num_iterations, first_iteration)
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def _run(self, num_iterations: int, first_iteration: int) -> None:
        functional = self.torch.nn.functional
        for iteration in range(first_iteration, first_iteration + num_iterations):
            index = self.order[iteration % len(self.order)]
            samples = self.samples.index_select(0, index)
            if not self.training:
                with self.torch.inference_mode():
                    logits = self.forward(samples)
                    # A network of tokens answers with logits, as forktask's plan of it does.
                    self.outputs = logits if self.tokens else functional.softmax(logits, dim=1)
                continue
            loss = functional.cross_entropy(
                self.forward(samples).flatten(0, -2),
                self.labels.index_select(0, index).flatten(),
                label_smoothing=self.label_smoothing,
            )
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if self.clip_norm:
                self.torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip_norm)
            self.optimizer.step()
            # A captured graph overwrites its outputs when it is launched again.
            self.losses.append(loss.detach().clone() if self.device == "cuda" else loss.detach())


def _data(bound) -> tuple[np.ndarray, np.ndarray]:
    """Copy the data set: samples, and their labels, or the token after each of theirs."""
    arrays = bound.arrays
    if "dataset.tokens" in arrays:
        tokens = arrays["dataset.tokens"].astype("int64")
        length = bound.plan.attributes["sequence"]
        if "dataset.labels" in arrays:
            samples = tokens.reshape(-1, length)
            return samples, arrays["dataset.labels"].astype("int64").reshape(len(samples), -1)
        return tokens[:-1].reshape(-1, length), tokens[1:].reshape(-1, length)
    return arrays["dataset.images"].copy(), arrays["dataset.labels"].astype("int64")


def _decay_groups(trained: list, attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Parameters with the weight decay that the plan's optimiser gives them."""
    decay = attributes["weight_decay"]
    if attributes["decay"] == "all":
        return [{"params": trained, "weight_decay": decay}]
    matrices = [parameter for parameter in trained if parameter.dim() > 1]
    others = [parameter for parameter in trained if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _is_trained(name: str, attributes: Mapping[str, Any]) -> bool:
    frozen = [part.strip() for part in attributes.get("frozen", "").split(",") if part.strip()]
    return not any(name.startswith(f"{part}.") for part in frozen)


def measure_torch(job: Mapping[str, Any]) -> Generator[dict[str, Any], Any, dict[str, Any]]:
    """Measure PyTorch in turns with others: the row of a sample, with the losses of the first steps."""
    import torch

    torch.set_num_threads(job["threads"])
    torch.set_flush_denormal(True)
    bound = build(job)
    yield {}
    started = time.time()
    executor = TorchExecutor(bound, job["mode"], "cuda" if job.get("device") == "gpu" else "cpu")
    stepper = Stepper(executor)
    start = time.perf_counter()
    stepper.run(1)
    first_run_s = time.perf_counter() - start
    stepper.run(max(job["check_iterations"] - 1, 1))
    answered = [float(loss) for loss in executor.losses]
    if executor.outputs is not None:
        rows = executor.outputs.flatten(0, -2)[:ANSWERED_ROWS]
        rows = rows.double().softmax(dim=-1) if executor.tokens else rows
        answered = [float(p) for p in rows[:, :ANSWERED_CLASSES].ravel()]
    executor.losses.clear()
    warm = warm_up(stepper, job["warmup_s"])
    yield from take_turns(
        stepper, warm.pass_time_s, job["turn_s"], untimed_s=GPU_UNTIMED_S if executor.device == "cuda" else 0.0
    )
    return {
        "kind": "sample",
        "first_run_s": first_run_s,
        "stationary": warm.stationary,
        "answer": answered,
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "pid": os.getpid(),
        "started": started,
    }


if __name__ == "__main__":
    sys.exit(answer_job(measure_torch))
