"""PyTorch on a network of forktask, as one more executor: the same data, initial parameters and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...cython_src.binding.executor import BaseExecutor
from ...cython_src.errors import MachineError
from ...cython_src.networks.registry import get_network
from ..subjects.peer_models import GPU_TORCH, TORCH
from ..subjects.subject import LEARNING_RATE, kept_names, network_of
from .torch_network import torch_network

WARMUP_STEPS = 3  # before a capture: libraries choose their kernels and take their memory


class TorchTraining:
    """PyTorch's training step or inference of a network.

    Parameters
    ----------
    bound : BoundPlan
        Source of initial parameters and data.
    mode : {"eager", "channels_last", "sdpa", "compile", "graph", "graph_channels_last"}
        See `TorchOptions` and `GpuTorchOptions`; the last two are for `CapturedTraining`.
    device : {"cpu", "cuda"}
    network : Network, optional
        Default: the plan's network.
    tf32 : bool
        Whether a GPU may round inputs of products and convolutions.
    module : torch.nn.Module, optional
        That is trained, with the parameters that it has; default: one made of the network.
    """

    def __init__(self, bound, mode: str, device: str = "cpu", network=None, tf32: bool = False, module=None):
        import torch

        attributes = bound.plan.attributes
        self.torch, self.device, self.tf32 = torch, device, tf32
        self.training = attributes["phase"] == "train"
        self.tokens = "dataset.tokens" in bound.arrays
        self.module = (module or _made_of(network or get_network(attributes["network"]), bound, mode)).to(device)
        self.samples, self.labels = (torch.from_numpy(array).to(device) for array in data_of(bound))
        self.order = torch.from_numpy(bound.arrays["batch_order"].astype("int64")).to(device)
        if mode.endswith("channels_last"):
            self.module = self.module.to(memory_format=torch.channels_last)
            self.samples = self.samples.contiguous(memory_format=torch.channels_last)
        self.module.train(self.training)
        self.label_smoothing = attributes.get("label_smoothing", 0.0)
        self.clip_norm = attributes.get("clip_norm", 0.0)
        self.optimizer = None
        if self.training:
            trained = [parameter for name, parameter in self.module.named_parameters() if is_trained(name, attributes)]
            for parameter in {*self.module.parameters()} - {*trained}:
                parameter.requires_grad_(False)
            groups = _decay_groups(trained, attributes)
            every = {"lr": LEARNING_RATE, "fused": True}
            moments = {"betas": attributes["betas"], "eps": attributes["eps"], "capturable": mode.startswith("graph")}
            self.optimizer = {
                "sgd": lambda: torch.optim.SGD(groups, momentum=attributes["momentum"], **every),
                "adam": lambda: torch.optim.Adam(groups, **moments, **every),
                "adamw": lambda: torch.optim.AdamW(groups, **moments, **every),
            }[attributes["optimizer"]]()
        # On a GPU this compiled form launches captured graphs.
        compiled = "reduce-overhead" if device == "cuda" else "default"
        self.forward = torch.compile(self.module, mode=compiled) if mode == "compile" else self.module
        self.losses: list = []
        self.collected = 0  # losses that the plan has got
        self.outputs = None

    def run(self, num_iterations: int, first_iteration: int = 0) -> None:
        """Run steps and wait for them. Losses are kept as tensors, so that no step waits for a number."""
        self._choose_arithmetic()
        self._run(num_iterations, first_iteration)
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def _choose_arithmetic(self) -> None:
        """Set the switches of a GPU, which are those of the process: another training in it may have others."""
        if self.device == "cuda":
            backends = self.torch.backends
            backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = self.tf32
            backends.cudnn.benchmark = True

    def _run(self, num_iterations: int, first_iteration: int) -> None:
        for iteration in range(first_iteration, first_iteration + num_iterations):
            loss = self._step(self.order[iteration % len(self.order)])
            if loss is not None:
                # A captured graph overwrites its outputs when it is launched again.
                self.losses.append(loss.clone() if self.device == "cuda" else loss)

    def _step(self, index):
        """Train with the samples of these numbers and return the loss, or infer and return None."""
        functional = self.torch.nn.functional
        samples = self.samples.index_select(0, index)
        if not self.training:
            with self.torch.inference_mode():
                logits = self.forward(samples)
                # A network of tokens answers with logits, as forktask's plan of it does.
                self.outputs = logits if self.tokens else functional.softmax(logits, dim=1)
            return None
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
        return loss.detach()

    def collect(self, bound) -> None:
        """Copy parameters, and the losses of all steps so far or the last answer, to where a plan keeps its own."""
        state = self.module.state_dict()
        for name in bound.plan.attributes["parameters"]:
            bound.view(name)[...] = state[name].cpu().numpy()
        if self.outputs is not None:
            name = "logits" if self.tokens else "probabilities"
            bound.view(name)[...] = self.outputs.cpu().numpy().reshape(bound.view(name).shape)
        kept = bound.arrays.get("losses")
        for step, loss in enumerate(self.losses if kept is not None else (), self.collected):
            kept[step % len(kept)] = float(loss)
        self.collected += len(self.losses)
        self.losses.clear()


class CapturedTraining(TorchTraining):
    """The same; a step is the launch of one CUDA graph, which holds all of it: a counter on the device chooses the
    batch, and where in a ring the loss goes."""

    def __init__(self, bound, *options: Any, **more: Any):
        super().__init__(bound, *options, **more)
        torch = self.torch
        self.counter = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.ring = torch.from_numpy(bound.arrays["losses"].copy()).to(self.device) if self.training else None
        kept = [*self.module.state_dict().values(), *([self.ring] if self.training else [])]
        before = [tensor.clone() for tensor in kept]
        self._choose_arithmetic()
        # On a stream of their own, as PyTorch's notes on CUDA graphs want it.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_STEPS):
                self._counted_step()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._counted_step()
        # The steps before the capture are undone in place, where the graph finds everything.
        for tensor, value in zip(kept, before, strict=True):
            tensor.copy_(value)
        for moments in self.optimizer.state.values() if self.training else ():
            for tensor in moments.values():
                tensor.zero_()

    def _counted_step(self) -> None:
        loss = self._step(self.order.index_select(0, self.counter % len(self.order))[0])
        if self.training:
            self.ring.index_copy_(0, self.counter % len(self.ring), loss.reshape(1))
        self.counter += 1

    def _run(self, num_iterations: int, first_iteration: int) -> None:
        self.counter.fill_(first_iteration)
        for _ in range(num_iterations):
            self.graph.replay()

    def collect(self, bound) -> None:
        """Like `TorchTraining.collect`."""
        super().collect(bound)
        if self.training:
            bound.arrays["losses"][...] = self.ring.cpu().numpy()


def _made_of(spec, bound, mode: str):
    """PyTorch's module of a network, with the parameters and statistics of a bound plan."""
    import torch

    module = torch_network(spec, fused_attention=mode != "eager")
    values = {n: torch.from_numpy(bound.view(n).copy()) for n in kept_names(bound.plan)}
    missing, _ = module.load_state_dict(values, strict=False)
    if unknown := [name for name in missing if not name.endswith("num_batches_tracked")]:
        raise AssertionError(f"parameters of PyTorch's module without a value: {unknown}")
    return module


def data_of(bound) -> tuple[np.ndarray, np.ndarray]:
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
    """Parameters with the weight decay that the plan's optimizer gives them."""
    decay = attributes["weight_decay"]
    if attributes["decay"] == "all":
        return [{"params": trained, "weight_decay": decay}]
    matrices = [parameter for parameter in trained if parameter.dim() > 1]
    others = [parameter for parameter in trained if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def is_trained(name: str, attributes: Mapping[str, Any]) -> bool:
    frozen = [part.strip() for part in attributes.get("frozen", "").split(",") if part.strip()]
    return not any(name.startswith(f"{part}.") for part in frozen)


class TorchExecutor(BaseExecutor):
    """PyTorch's training step, or its inference, instead of the plan's blocks. Raises `UsageError`: a plan of no
    network, a mode without a meaning for it, or a GPU that PyTorch does not see."""

    about = TORCH

    def _prepare(self, bound, *recorded) -> None:
        import torch

        network = network_of(bound, self.model)
        mode = self.options.mode
        meant = "dataset.images" if mode.endswith("channels_last") else "dataset.tokens" if mode == "sdpa" else None
        if meant is not None and meant not in bound.arrays:
            raise MachineError(
                f"mode={mode} of PyTorch is for networks of {meant.rpartition('.')[2]}, got "
                f"{network.name!r}; leave it out"
            )
        device = "cuda" if self.about.is_gpu else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise MachineError(
                f"PyTorch must see the GPU too, and torch {torch.__version__} does not; install a CUDA build of PyTorch"
            )
        torch.set_num_threads(self.num_threads)
        torch.set_flush_denormal(True)
        tf32 = getattr(self.options, "products", "float32") == "tf32"
        kind = CapturedTraining if mode.startswith("graph") else TorchTraining
        self._training = kind(bound, mode, device, network, tf32)

    def _run(self, bound, first_replay: int, num_replays: int) -> None:
        stride = bound.iteration_stride
        self._training.run(num_replays * stride, first_replay * stride)

    def collect(self) -> bool:
        """Copy what was computed to where the plan keeps its own results."""
        self._training.collect(self.bound)
        return True

    def _forget(self) -> None:
        self._training: Any = None


class GpuTorchExecutor(TorchExecutor):
    """The same on a GPU."""

    about = GPU_TORCH
