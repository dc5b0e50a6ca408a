"""Misuse of the executors of a GPU, on the fake device: the answers of those of the processor."""

import gc
from functools import cache

import numpy as np
import pytest
from gpu.fake_gpu.device import FakeDevice
from test_life_cycle import MISUSES, Case, check_misuse

from forktask.cython_src.gpu import blas as gpu_blas
from forktask.cython_src.gpu.bind import GpuBoundPlan, device_storage
from forktask.cython_src.gpu.blas import WORKSPACE_BYTES
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.experiments.subjects.models import MODELS

pytestmark = [pytest.mark.cxx, pytest.mark.timeout(120)]
SPECS = [name for name, model in MODELS.items() if model.device == "gpu" and not model.is_peer]
# A GPU looks for no decision to stop, and its arrays have no replacement on the host.
NOT_HERE = ("loop", "decisions", "lookahead", "exchanged")


@cache
def small_plan():
    """A plan that every model takes."""
    network = convolutional_classifier("small", (2, 8, 32), (5, 4), 3)
    sizes = {"num_images": 8, "num_batches": 2, "num_iterations_logged": 8}
    return lower(network, batch=4, granularity="images=2", layout="nchw", conv="direct", **sizes)


@cache
def expected(spec):
    """What four iterations leave in the persistent buffers."""
    case = GpuCase(spec)
    case.prepared().run(4)
    case.executor.close()
    return case.persistent()


class GpuCase(Case):
    """A small plan under one model of a GPU; `kernel` is called before each run."""

    pause_s = 0.15  # there is one such pause in a run

    def __init__(self, spec):
        self.plan, self.device = small_plan(), FakeDevice()
        super().__init__(spec)
        self.first = self.persistent()

    def make(self, num_threads=None, **options):
        executor = super().make(num_threads, **options)
        run = executor._run

        def with_kernel(*arguments):
            self.kernel()
            run(*arguments)

        executor._run = with_kernel
        return executor

    def bind(self, storage=None):
        bound = GpuBoundPlan(self.plan, storage, self.device)
        initialise(bound, 1)
        return bound

    def persistent(self):
        """Copies of the buffers that outlive an iteration."""
        kept = [b.name for b in self.plan.buffers.values() if b.persistent]
        return {name: np.array(self.bound.arrays[name]) for name in kept}

    def check(self):
        """The executor runs the plan as if nothing had happened."""
        for name, array in self.first.items():
            self.bound.arrays[name][...] = array
        self.prepared().run(4)
        result, right = self.persistent(), expected(self.spec)
        assert all(result[name].tobytes() == right[name].tobytes() for name in right)
        assert any(result[name].tobytes() != self.first[name].tobytes() for name in right)


@pytest.mark.parametrize("spec", SPECS)
def test_every_gpu_model_answers_a_misuse_alike(spec):
    """Check the sentence of each misuse, and that the same or a new executor runs the plan right afterwards."""
    case = GpuCase(spec)
    for misuse in MISUSES:
        if not any(word in misuse for word in NOT_HERE):
            case.executor.close()
            case.executor = case.make()
            try:
                check_misuse(case, misuse)
            except BaseException as error:
                error.add_note(f"the misuse: {misuse}")
                raise
    case.executor.close()


def test_fifty_executors_take_no_more_than_the_first(monkeypatch):
    """Check that events, streams, memory of the device and of the host are given back once an executor is closed, and
    that streams, which keep their workspaces, are used again."""
    monkeypatch.setattr(gpu_blas, "FILLING", 0)
    device, plan = FakeDevice(execute=False), small_plan()

    def held(number):
        bound = GpuBoundPlan(plan, device_storage(device, ("pageable", "pinned")[number % 2]), device)
        with MODELS[SPECS[number % len(SPECS)]].executor_class()() as executor:
            executor.prepare(bound)
            executor.run(2)
        bound.close()
        del bound, executor
        gc.collect()
        device.synchronize()
        for operations in (device.log, device.order, device._host_seen):  # which hold the arrays that they copied
            operations.clear()
        for stream in device.spare_streams:
            stream.last = None
        assert not device.events and device.host_bytes == {"pinned": 0, "managed": 0}
        memory = device.free_bytes() + WORKSPACE_BYTES * device.num_workspaces
        return device.counts["stream"], len(device.spare_streams), memory

    first = [held(number) for number in range(len(SPECS))][-1]
    assert first[0] == first[1] <= 12 and device.num_workspaces > 0
    assert all(held(number) == first for number in range(50))
