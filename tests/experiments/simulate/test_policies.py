"""Simulated executors: graphs of known makespans, brute force, the executors' own order, size and determinism."""

import itertools

import numpy as np
import pytest
from experiments.simulate.graphs import chain, independent, list_schedule_s, plan_of, stencil, three_stages
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import forms_of_models

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.bounds.bounds import fork_join_static_bound, graph_bounds_of
from forktask.experiments.simulate import policies
from forktask.experiments.simulate.machine_model import MachineModel, Overheads
from forktask.experiments.simulate.policies import Subject
from forktask.experiments.subjects.models import make_executor, parse_model

MODELS = [
    model
    for model in forms_of_models("region", "schedule", "taskwait", "barrier", "placement", "priority")
    if policies.can_simulate(parse_model(model))
]
TASKS = [model for model in MODELS if parse_model(model).takes_tasks]


def simulate(subject, model, *arguments, **options):
    """Simulate the model that a text names."""
    return policies.simulate(subject, parse_model(model), *arguments, **options)


def step(plan, seconds, model, threads, **options):
    """Simulate on a machine where nothing costs or shares anything."""
    return simulate(Subject(plan, np.asarray(seconds, float)), model, threads, **options).step_s


def test_two_coupled_cycles_take_the_longer_one():
    """Check that overlapping iterations take the maximum cycle mean, and those with a barrier the span."""
    plan, seconds = three_stages(), [4, 3, 5]
    bounds = graph_bounds_of(Subject(plan, np.array(seconds, float)).graph("none"), seconds)
    assert (bounds.span_s, bounds.cycle_mean_s) == (12, 8)
    for threads in (2, 3, 8):
        assert step(plan, seconds, "taskiter", threads) == 8
        assert step(plan, seconds, "taskiter:placement=stealing", threads) == 8
        assert step(plan, seconds, "tasks:taskwait=none", threads) == 8
        assert step(plan, seconds, "taskgraph", threads) == 12
        assert step(plan, seconds, "forkjoin", threads) == 12


@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from(["static", "dynamic"]))
@settings(deadline=None)
def test_fork_join_equals_its_exact_bound(seed, threads, schedule):
    """Check that loops take what the formulas for static and list scheduling say."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, rng.integers(1, 6))
    times = [rng.integers(1, 20, n).astype(float).tolist() for n in sizes]
    plan = plan_of(*[[((i,), ()) for i in range(n)] for n in sizes])
    bound = fork_join_static_bound if schedule == "static" else list_schedule_s
    assert step(plan, np.concatenate(times), f"forkjoin:schedule={schedule}", threads) == bound(times, threads)


def greedy_makespans(predecessors, seconds, threads):
    """All makespans of schedules in which no worker idles while a task is ready."""
    n, result = len(seconds), set()

    def go(now, running, done, started):
        if len(done) == n:
            result.add(now)
            return
        ready = [t for t in range(n) if t not in started and predecessors[t] <= done]
        free = min(threads - len(running), len(ready))
        for chosen in itertools.combinations(ready, free):
            busy = {**running, **{t: now + seconds[t] for t in chosen}}
            at = min(busy.values())
            ended = {t for t, end in busy.items() if end == at}
            go(at, {t: e for t, e in busy.items() if t not in ended}, done | ended, started | set(chosen))

    go(0, {}, frozenset(), frozenset())
    return result


@given(st.integers(0, 10**6), st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_small_graphs_take_what_some_greedy_schedule_takes(seed, threads):
    """Check task models with a barrier against all greedy schedules of random graphs of up to six tasks."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    before = [[u for u in range(t) if rng.random() < 0.4] for t in range(n)]
    plan = plan_of(*[[((t,), tuple(before[t]))] for t in range(n)])
    seconds = rng.integers(1, 10, n).tolist()
    possible = greedy_makespans([frozenset(b) for b in before], seconds, threads)
    for model in ("taskgraph", "taskgraph:placement=stealing", "tasks"):
        assert step(plan, seconds, model, threads) in possible, model


@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([*TASKS, "tasks:taskwait=none"]))
@settings(deadline=None)
def test_schedules_keep_dependences_and_run_each_task_once(seed, threads, model):
    """Check each iteration of random stencils: one task at a time on a worker, and none before its predecessors."""
    rng = np.random.default_rng(seed)
    plan = stencil(int(rng.integers(1, 6)), int(rng.integers(1, 6)))
    machine = MachineModel(line_s=0.1, wake_s=1.0, spin_s=2.0, overheads=Overheads(create_task_s=0.05))
    subject = Subject(plan, rng.integers(1, 9, plan.num_tasks), machine)
    result = simulate(subject, model, threads, seed=seed, run_lengths=(1, 3), keep_schedule=True)
    start, finish, worker = (result.schedule[name] for name in ("start", "finish", "worker"))
    assert np.isfinite(finish).all()
    source, target, token = subject.graph("none").edges()
    edges = [(u, v, k) for u, v, k in zip(source, target, token, strict=True) if max(u, v) < plan.num_tasks]
    assert all((start[k:, v] >= finish[: 3 - k, u] - 1e-9).all() for u, v, k in edges)
    for w in range(threads):
        mine = np.sort(start[worker == w]), np.sort(finish[worker == w])
        assert (mine[0][1:] >= mine[1][:-1] - 1e-9).all()


@pytest.mark.parametrize("model", ["forkjoin", *TASKS])
def test_one_worker_runs_the_blocks_in_the_executors_order(model):
    """Check the order of three iterations on one worker against the executor's event log."""
    plan = task_bench("stencil_1d", 7, 5, kernel="empty")
    with make_executor(model, 1, event_capacity=1000) as executor:
        executor.prepare(bind(plan))
        executor.run(3)
        events = np.sort(executor.workers.events(), order="start_ns", kind="stable")
    result = simulate(Subject(plan, np.ones(35)), model, 1, run_lengths=(1, 3), keep_schedule=True)
    iteration, task = np.unravel_index(np.argsort(result.schedule["start"], axis=None, kind="stable"), (3, 35))
    assert list(zip(iteration, task, strict=True)) == list(zip(events["iteration"], events["task"], strict=True))


def test_time_is_accounted_for():
    """Check that useful, inflated, runtime and idle time add up to threads times time."""
    machine = MachineModel(
        bandwidth_bytes_per_s={1: 1e9, 4: 2e9},
        line_s=1e-7,
        overheads=Overheads(region_s={1: 1e-6}, create_task_s=1e-7, eager_task_s=1e-7, block_s=1e-7),
    )
    plan = stencil(8, 6)
    subject = Subject(plan, np.full(48, 1e-5), machine)
    subject.block_bytes = np.full(48, 5e3)
    for model in ("forkjoin", "tasks", "taskgraph", "taskgraph:placement=stealing"):
        r = simulate(subject, model, 4)
        assert r.useful_s == pytest.approx(48e-5)
        assert min(r.inflation_s, r.idle_s) >= -1e-12
        assert r.useful_s + r.inflation_s + r.runtime_s + r.idle_s == pytest.approx(4 * r.step_s, rel=0.2)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_commutative_blocks_run_one_at_a_time(model, threads):
    """Check that blocks that add to one cell in any order take their sum, however many workers there are."""
    assert step(plan_of([((), (), (0,))] * 5), [3, 1, 4, 1, 5], model, threads) == 14


def test_a_worker_runs_another_task_while_a_lock_is_held():
    """Check two blocks on each of two locks: workers of loops wait where they stand, those of tasks turn to the other
    lock, and no two blocks of a lock ever run at once."""
    plan = plan_of([((), (), (lock,)) for lock in (0, 0, 1, 1)])
    assert step(plan, [1] * 4, "forkjoin:schedule=dynamic", 2) == 3
    assert step(plan, [1] * 4, "forkjoin", 2) == 2  # each thread has one lock
    for model in TASKS:
        assert step(plan, [1] * 4, model, 2) == 2, model
    random = np.random.default_rng(1)
    blocks = [((), (), (int(lock),)) for lock in random.integers(0, 3, 24)]
    plan, seconds = plan_of(blocks[:12], blocks[12:]), random.integers(1, 9, 24)
    for model, threads in itertools.product(MODELS, (2, 5)):
        result = simulate(Subject(plan, seconds.astype(float)), model, threads, keep_schedule=True).schedule
        for lock in range(3):
            own = [task for task, block in enumerate(blocks) if block[2] == (lock,)]
            spans = sorted((result["start"][k, t], result["finish"][k, t]) for k in range(2) for t in own)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), (model, threads)


def test_data_of_another_core_take_longer():
    """Check two threads that each read what the other has just written, a second for a cell of 4 bytes, and write anew
    what the other has read, as long again; unless reader and writer are one, or the cell has left the cache."""
    machine = MachineModel(transfer_bytes_per_s=4.0, last_level_cache_bytes=1e6)
    small = MachineModel(transfer_bytes_per_s=4.0, last_level_cache_bytes=4.0)
    writers = [((0,), ()), ((1,), ())]
    crossed, straight = plan_of(writers, [((2,), (1,)), ((3,), (0,))]), plan_of(writers, [((2,), (0,)), ((3,), (1,))])

    def found(plan, threads, on):
        return simulate(Subject(plan, np.full(4, 2.0), on), "forkjoin", threads)

    two = found(crossed, 2, machine)
    assert two.step_s == 6 and two.runtime_s == 0 and two.inflation_s == 3  # a first writer waits for nobody
    assert found(straight, 2, machine).step_s == 4 and found(crossed, 1, machine).step_s == 8
    assert found(crossed, 2, small).step_s == 4


def test_bandwidth_is_shared():
    """Check blocks that wait for memory all the time: four of them take twice as long at twice one's bandwidth."""
    machine = MachineModel(bandwidth_bytes_per_s={1: 1e9, 2: 2e9, 4: 2e9})
    subject = Subject(independent(4), np.full(4, 1.0), machine)
    subject.block_bytes = np.full(4, 1e9)
    for threads, expected in ((1, 4), (2, 2), (4, 2)):
        for model in ("forkjoin", "taskgraph"):
            assert simulate(subject, model, threads).step_s == pytest.approx(expected)
    subject.block_bytes = np.full(4, 0.5e9)  # half of the time: one of four takes (0.5 + 0.5) s on all
    assert simulate(subject, "forkjoin", 4).step_s == pytest.approx(1.0)


BETWEEN = {"0": {"0": 1e9, "1": 0.5e9}, "1": {"0": 0.5e9, "1": 1e9}}


@pytest.mark.parametrize(
    ("policy", "alone_s", "together_s"), [("interleave", 6, 2), ("first_touch", 4, 2), ("node0", 4, 4)]
)
def test_each_node_has_a_bandwidth_and_remote_memory_takes_longer(policy, alone_s, together_s):
    """Check four blocks that wait for memory all the time, on two nodes of two threads whose memory serves one thread's
    bandwidth: alone half of interleaved memory takes twice as long; together both nodes serve, or one."""
    rates = {1: 1e9, 2: 1e9, 4: 2e9}
    machine = MachineModel(bandwidth_bytes_per_s=rates, between_nodes=BETWEEN, threads_per_node=2, memory_policy=policy)
    assert machine.bandwidth_of_node() == {1: 1e9, 2: 1e9}
    subject = Subject(independent(4), np.full(4, 1.0), MachineModel(bandwidth_bytes_per_s={1: 1e9}))
    subject.block_bytes = np.full(4, 1e9)
    assert simulate(subject, "forkjoin", 1, machine).step_s == pytest.approx(alone_s)
    for model in ("forkjoin", "taskgraph"):
        assert simulate(subject, model, 4, machine).step_s == pytest.approx(together_s)
    there = Subject(independent(4), np.full(4, alone_s / 4), machine)  # remote memory is part of what was measured
    there.block_bytes = subject.block_bytes
    assert simulate(there, "forkjoin", 1).step_s == pytest.approx(alone_s)
    assert simulate(there, "forkjoin", 4).step_s == pytest.approx(together_s)


def test_a_task_that_runs_away_from_its_memory_takes_longer():
    """Check first touch: two blocks whose cells the other one's thread wrote first, on two nodes."""
    machine = MachineModel(
        bandwidth_bytes_per_s={1: 1e9}, between_nodes=BETWEEN, threads_per_node=1, memory_policy="first_touch"
    )
    plan = plan_of([((0,), ()), ((1,), ())], [((1,), ()), ((0,), ())])
    subject = Subject(plan, np.full(4, 1.0), MachineModel(bandwidth_bytes_per_s={1: 1e9}))
    subject.block_bytes = np.full(4, 1e9)
    assert subject.memory_parts(machine, np.array([0, 1])).tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]
    run = simulate(subject, "forkjoin", 2, machine)
    assert run.step_s == pytest.approx(3) and run.inflation_s == pytest.approx(2)


def test_another_machine_scales_arithmetic_and_memory_apart():
    """Check a machine of twice the peak and half the bandwidth."""
    here = MachineModel(peak_flops_per_s=1e9, bandwidth_bytes_per_s={1: 1e9})
    there = MachineModel(peak_flops_per_s=2e9, bandwidth_bytes_per_s={1: 0.5e9})
    subject = Subject(independent(2), np.array([1.0, 1.0]), here)
    subject.block_bytes = np.array([0.0, 0.5e9])
    seconds, share = subject.on(there)
    assert seconds.tolist() == [0.5, 1.25]
    assert share.tolist() == [0.0, 0.8]


def test_impossible_requests_are_refused():
    """Check models without a known policy, and thread counts."""
    subject = Subject(chain(2), np.ones(2))
    for model, threads, words in (("joblib", 2, "joblib"), ("forkjoin", 0, "1024"), ("forkjoin", 1025, "1025")):
        with pytest.raises(UsageError, match=words):
            simulate(subject, model, threads)
