"""Event logs of GPU models on the fake device, whose clock has another origin and another speed than the host's."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from gpu.fake_gpu.device import FakeDevice

from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.gpu import launch_log
from forktask.cython_src.gpu.bind import GpuBoundPlan
from forktask.cython_src.gpu.launch_log import LaunchLog
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.analysis.losses import COMPUTING, losses_of
from forktask.experiments.analysis.windows import typical
from forktask.experiments.diagnosis.case import LEAST_PART
from forktask.experiments.diagnosis.event_logs import busy_and_idle, diagnose_log
from forktask.experiments.events.event_states import CREATING, WAITING_DEVICE
from forktask.experiments.events.events import COPIES, HOST, STREAM, read_events, write_events
from forktask.experiments.sampling import gpu_profile
from forktask.experiments.sampling.trace import trace_run
from forktask.experiments.subjects.models import make_executor, parse_model
from forktask.experiments.subjects.subject import build
from forktask.forkjoin.gpu_executor import GpuStreamExecutor

DRIFT = 3e-4
ITERATIONS = 4
PLAN = {"network": "cifar10_cnn", "batch": 2, "layout": "nchw", "granularity": "images=1"}
# Lanes of each kind, and launches of a pass; None: as many as loops, or as the executor likes.
MODELS = {
    "gpu_forkjoin": (1, 0),
    "gpu_tasks": (None, 0),
    "gpu_tasks:taskwait=none:unit=block:streams=2": (2, 0),
    "gpu_taskgraph": (1, 1),
    "gpu_taskiter:unroll=2": (1, 1),
    "gpu_hostload": (1, 1),
    "gpu_offload": (1, 2),
    "gpu_both:policy=gpu": (1, 0),
}


@pytest.fixture(scope="module")
def device():
    """A device that runs no kernels: their times are those of Python."""
    fake = FakeDevice(execute=False, clock=lambda: 1000 + (1 + DRIFT) * time.monotonic())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_device, "default_gpu", lambda: fake)
        yield fake


def job(model):
    threads = 2 if model.startswith("gpu_both") else 1
    return {
        "model": parse_model(model),
        "threads": threads,
        "cpus": None,
        "plan": PLAN,
        "seed": 1,
        "warmup_s": 1e-6,
    } | {"target_s": 1e-6, "iterations": ITERATIONS}


@pytest.fixture(scope="module")
def logs(device):
    return {model: trace_run(job(model)) for model in MODELS}


def check_lanes(model, log, folder):
    """The log, written and read, after checks that hold on any device."""
    log = read_events(write_events(folder / "log.npz", log))
    streams, directions = MODELS[model]
    kinds = [kind for kind, _ in log.lanes]
    assert kinds[0] == HOST and kinds.count(COPIES) == directions
    assert kinds.count(STREAM) == streams if streams else kinds.count(STREAM) > 1
    passes = ITERATIONS // log.about["stride"]
    assert len(log.blocks) == passes * log.num_tasks and log.about["iterations"] == ITERATIONS
    window, error = typical(log, ITERATIONS), log.about["clock_error_ns"]
    assert (window.stop > window.start).all() and error < 1e6
    assert log.about["run_start_ns"] - error < window.start_ns and window.stop_ns < log.about["run_stop_ns"] + error
    assert CREATING in log.events["state"][log.events["worker"] == 0]
    return log


@pytest.mark.parametrize("model", MODELS)
def test_lanes_are_whole_and_on_one_clock(model, logs, tmp_path):
    """Check what `read_events` checks of a log that was written, each launch once a pass, and that nothing runs but
    while the host waits for it, within the error of the clocks."""
    log = check_lanes(model, logs[model], tmp_path)
    error = log.about["clock_error_ns"]
    assert log.about["clock_drift_ppm"] == pytest.approx(1e6 * DRIFT, rel=0.5)
    waits = log.events[(log.events["worker"] == 0) & (log.events["state"] == WAITING_DEVICE)]
    launched = log.blocks[np.isin(log.blocks["worker"], log.lanes_of(STREAM))]
    # Work of the fake device is done while the host waits for it, and at no other time.
    place = np.searchsorted(waits["start_ns"], launched["stop_ns"] + error, "right") - 1
    assert (place >= 0).all() and (launched["stop_ns"] <= waits["stop_ns"][place] + error).all()
    result = losses_of(log)
    assert sum(result.total_ns.values()) == len(log.lanes_of(*COMPUTING)) * log.wall_ns


def test_dependences_hold_in_the_log(logs):
    """Check by the log's own edges that no launch starts before those before it have ended."""
    for model, log in logs.items():
        window, error = typical(log, ITERATIONS), 2 * log.about["clock_error_ns"]
        source, target, token = (row[(log.edges[:2] < log.num_tasks).all(axis=0)] for row in log.edges)
        assert len(source), model
        for k in window.passes:
            before = k - token
            inside = before >= 0
            if model == "gpu_hostload":  # its input has two slots: it loads while the iteration before reads the other
                inside &= token == 0
            ends = window.stop[before[inside], source[inside]]
            assert (window.start[k, target[inside]] >= ends - error).all(), model


def test_copies_have_their_bytes(logs):
    """Check the bytes of copies: of each step's input, and of a graph's counter once."""
    images, labels = 2 * 3 * 32 * 32 * 4, 2 * 4
    sizes = logs["gpu_hostload"].copies["num_bytes"]
    assert (
        len(sizes) % ITERATIONS == 0 and sizes.sum() % ITERATIONS == 0 and sizes.sum() >= ITERATIONS * (images + labels)
    )
    assert logs["gpu_taskgraph"].copies["num_bytes"].tolist() == [8]
    assert not len(logs["gpu_forkjoin"].copies)


def test_a_log_that_is_off_records_nothing(device):
    """Check that no event is recorded for it, and that one too small gives nothing incomplete."""
    spec = parse_model("gpu_tasks")
    bound = build(job("gpu_tasks"), spec)
    with make_executor(spec, 1) as executor:
        executor.prepare(bound)
        before = len(device.log)
        executor.run(1)
        assert ("time",) not in [operation.label for operation in device.log[before:]]
    with make_executor(spec, 1, event_capacity=3) as executor:
        executor.prepare(bound)
        executor.run(1)
        assert bound.log is None and bound.device is device and isinstance(executor.workers, LaunchLog)
        with pytest.raises(RuntimeError, match="the log holds 3 launches but"):
            executor.workers.read()
        executor.workers.switch_log(False)
        executor.workers.clear_events()
        executor.run(1)
        assert not len(executor.workers.read().launches)


def test_what_keeps_the_device_idle_is_found(logs):
    """Check that times of a step add up to it, and which finding each model has."""
    idle = {}
    for model, log in logs.items():
        busy_s, idle[model] = busy_and_idle(log)
        assert busy_s + sum(idle[model].values()) == pytest.approx(log.wall_ns * 1e-9 / ITERATIONS), model
        findings = diagnose_log(log)
        assert all(finding.cost_s >= 0 and finding.text.endswith(".") for finding in findings)
        large = {reason for reason, seconds in idle[model].items() if seconds >= LEAST_PART * log.step_s}
        assert large and large <= {finding.kind for finding in findings}, model
    assert idle["gpu_forkjoin"]["launches"] > 0 == idle["gpu_forkjoin"]["copies"] < idle["gpu_offload"]["copies"]


CALL_S, KERNEL_S = 4e-6, 2e-6


class TimedDevice(FakeDevice):
    """The host's time passes within calls of the device alone. A launch begins when its call ends, or what was given to
    its stream before; an event is recorded when its call begins."""

    def __init__(self):
        super().__init__(execute=False)
        self.host_s, self.busy_until_s = 1000.0, {}
        self.time = SimpleNamespace(monotonic_ns=lambda: round(1e9 * self.host_s), time=time.time)
        self.time.perf_counter = lambda: self.host_s

    def _give(self, stream, label, action):
        begin, self.host_s = self.host_s, self.host_s + CALL_S
        operation = super()._give(stream, label, action)
        launched = label[0] == "launch"
        length = label[2]["replay"] * 1e-9 if label[:2] == ("launch", "spin") else launched * KERNEL_S
        start = max(self.host_s if launched else begin, self.busy_until_s.get(stream, 0.0))
        operation.ended_s = self.busy_until_s[stream] = start + length
        return operation

    def synchronize(self, stream=None):
        super().synchronize(stream)
        self.host_s = max(self.host_s, *self.busy_until_s.values()) if self.busy_until_s else self.host_s

    def elapsed_s(self, start, stop):
        return stop.operation.ended_s - start.operation.ended_s


@pytest.fixture
def timed(monkeypatch):
    device = TimedDevice()
    for module in (launch_log, gpu_profile):
        monkeypatch.setattr(module, "time", device.time)
    monkeypatch.setattr(gpu_profile._IssuedAhead, "clock", staticmethod(device.time.perf_counter))
    return GpuBoundPlan(task_bench("stencil_1d", 4, 3), None, device)


def test_a_profile_shows_kernels_and_no_waits_for_the_host(timed):
    """Check that a kernel half as long as the call that launches it is timed as long as it is."""
    times, passes, step_s = gpu_profile.kernel_times(timed, 1e-3)
    launches = sum(len(launches) for launches in timed.launches)
    assert sum(map(sum, times.values())) == pytest.approx(passes * launches * KERNEL_S, rel=0.01)
    assert passes >= 3 and step_s > 0


def test_a_trace_is_off_by_no_more_than_it_says(timed):
    """Check that a launch that its stream waited for is as long as it was, within the error that the log states."""
    with GpuStreamExecutor(event_capacity=1000) as executor:
        executor.prepare(timed)
        executor.run(4)
        log = executor.workers.read()
    lengths = log.launches["stop_ns"] - log.launches["start_ns"]
    assert len(lengths) == 4 * timed.num_loops
    assert (abs(lengths - 1e9 * KERNEL_S) <= log.clock["error_ns"]).all() and log.clock["error_ns"] < 2e9 * CALL_S
