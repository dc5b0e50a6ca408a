"""JAX on a network of forktask, as one more executor: a whole step, or an inference, is one function that XLA compiles.

The same data, initial parameters and optimizer as PyTorch's; pixels have their channels in the innermost dimension.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.affinity import kept_affinity, usable_cpus
from ...cython_src.binding.executor import BaseExecutor
from ...cython_src.errors import MachineError
from ..subjects.peer_models import JAX
from ..subjects.subject import LEARNING_RATE, kept_names, network_of
from .jax_network import forward, mean_loss
from .torch_executor import data_of, is_trained

POOL = "tf_XLAEigen"  # name of the threads that XLA computes with
TURN, BACK = (2, 3, 1, 0), (3, 2, 0, 1)  # axes of convolutions' weights: PyTorch's -> innermost channels, and back
POOL_SIZE = "NPROC"  # variable with their number; else as many as the process has CPUs


class JaxExecutor(BaseExecutor):
    """JAX's training step, or its inference, instead of the plan's blocks. Raises `UsageError`: a plan of no network;
    `MachineError`: JAX has started with other threads, or for another device than the CPU."""

    about = JAX

    def _prepare(self, bound, *recorded) -> None:
        attributes = bound.plan.attributes
        network = network_of(bound, self.model)
        self._cpus = set((self.cpus or usable_cpus())[: self.num_threads])
        with self._on_cpus():
            jax = _start(self.num_threads, self._cpus)
            samples, labels = data_of(bound)
            if samples.ndim == 4:
                samples = samples.transpose(0, 2, 3, 1)
            data = samples, labels, bound.arrays["batch_order"]
            self._data = tuple(jax.numpy.asarray(array, None if array.dtype.kind == "f" else "int32") for array in data)
            values = {n: jax.numpy.array(_turned(bound.view(n), TURN)) for n in kept_names(bound.plan)}
            training = attributes["phase"] == "train"
            trained = [n for n in attributes["parameters"] if training and is_trained(n, attributes)]
            moments = [{n: jax.numpy.zeros_like(values[n]) for n in trained} for _ in range(2)]
            self._state = {"values": values, "moments": moments, "updates": jax.numpy.int32(0)}
            step = _training_step(network, attributes, trained) if training else _inference(network)
            self._step = jax.jit(step, donate_argnums=0)
        self._results: list[Any] = []
        self._collected = 0  # losses that the plan has got

    def _run(self, bound, first_replay: int, num_replays: int) -> None:
        import jax

        stride = bound.iteration_stride
        with self._on_cpus():
            state = {**self._state, "iteration": jax.numpy.int32(first_replay * stride)}
            for _ in range(num_replays * stride):
                state, result = self._step(state, self._data)
                self._results.append(result)
            self._state = jax.block_until_ready(state)

    @contextmanager
    def _on_cpus(self) -> Iterator[None]:
        """Let this thread, which computes too, and the threads that it starts use one CPU each."""
        with kept_affinity():
            os.sched_setaffinity(0, self._cpus)
            yield

    def collect(self) -> bool:
        """Copy parameters, and the losses of all steps so far or the last answer, to where the plan keeps its own."""
        bound = self.bound
        for name in bound.plan.attributes["parameters"]:
            bound.view(name)[...] = _turned(np.asarray(self._state["values"][name]), BACK)
        if bound.plan.attributes["phase"] == "train":
            kept = bound.arrays["losses"]
            for step, loss in enumerate(self._results, self._collected):
                kept[step % len(kept)] = float(loss)
            self._collected += len(self._results)
        elif self._results:
            result = bound.view("logits" if "dataset.tokens" in bound.arrays else "probabilities")
            result[...] = np.asarray(self._results[-1]).reshape(result.shape)
        self._results.clear()
        return True

    def _forget(self) -> None:
        self._state = self._data = self._step = self._results = None


def _turned(array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return array.transpose(axes) if array.ndim == len(axes) else array


def _start(num_threads: int, cpus: set[int]) -> Any:
    """Start JAX with `num_threads` threads on these CPUs, and return it; or raise `MachineError`."""
    before = os.environ.get(POOL_SIZE)
    os.environ[POOL_SIZE] = str(num_threads)
    try:
        import jax

        jax.config.update("jax_platforms", "cpu")
        device = jax.devices()[0]
    finally:
        if before is None:
            del os.environ[POOL_SIZE]
        else:
            os.environ[POOL_SIZE] = before
    if device.platform != "cpu":
        raise MachineError(
            f"model 'jax' computes on the CPU, and JAX has started here for {device.platform}; start a new process"
        )
    tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text().strip() == POOL]
    allowed = {cpu for task in tasks for cpu in os.sched_getaffinity(int(task.name))}
    if len(tasks) != num_threads or not allowed <= cpus:
        raise MachineError(
            f"XLA must compute with {num_threads} threads on CPUs {sorted(cpus)}, and has {len(tasks)} on "
            f"{sorted(allowed)}, which it keeps until the process ends; start a new process"
        )
    return jax


def _batch(state: Mapping[str, Any], data: tuple) -> tuple:
    """Return the samples and labels of the state's iteration."""
    samples, labels, order = data
    index = order[state["iteration"] % len(order)]
    return samples[index], labels[index]


def _inference(network):
    """Return a function of the state and the data: the next state, and class probabilities, or logits of tokens."""
    import jax

    def infer(state, data):
        logits, _ = forward(network, state["values"], _batch(state, data)[0])
        return {**state, "iteration": state["iteration"] + 1}, logits if network.tokens else jax.nn.softmax(logits)

    return infer


def _training_step(network, attributes: Mapping[str, Any], trained: list[str]):
    """Return a function of the state and the data: the next state and the loss. Optimizers are PyTorch's."""
    import jax
    import jax.numpy as jnp

    optimizer, decay, clip = attributes["optimizer"], attributes["weight_decay"], attributes.get("clip_norm", 0.0)
    key = jax.random.key(0)

    def loss_of(own, others, samples, labels, iteration):
        logits, statistics = forward(network, {**others, **own}, samples, jax.random.fold_in(key, iteration))
        return mean_loss(logits, labels, attributes.get("label_smoothing", 0.0)), statistics

    def updated(value, gradient, first, second, count):
        rate = LEARNING_RATE
        weight = decay if attributes["decay"] == "all" or value.ndim > 1 else 0.0
        if optimizer == "adamw":
            value = value * (1 - rate * weight)
        else:
            gradient = gradient + weight * value
        if optimizer == "sgd":
            first = attributes["momentum"] * first + gradient
            return value - rate * first, first, second
        one, two = attributes["betas"]
        first, second = one * first + (1 - one) * gradient, two * second + (1 - two) * gradient**2
        root = jnp.sqrt(second / (1 - two**count)) + attributes["eps"]
        return value - rate / (1 - one**count) * first / root, first, second

    def step(state, data):
        values, count = state["values"], state["updates"] + 1
        own = {name: values[name] for name in trained}
        differentiate = jax.value_and_grad(loss_of, has_aux=True)
        (loss, statistics), gradients = differentiate(own, values, *_batch(state, data), state["iteration"])
        if clip:
            norm = jnp.sqrt(sum(jnp.sum(gradient**2) for gradient in gradients.values()))
            gradients = {name: gradients[name] * jnp.minimum(1.0, clip / (norm + 1e-6)) for name in trained}
        first, second = state["moments"]
        new = {n: updated(own[n], gradients[n], first[n], second[n], count) for n in trained}
        values = {**values, **statistics, **{n: new[n][0] for n in trained}}
        moments = [{n: new[n][k] for n in trained} for k in (1, 2)]
        return {"values": values, "moments": moments, "updates": count, "iteration": state["iteration"] + 1}, loss

    return step
