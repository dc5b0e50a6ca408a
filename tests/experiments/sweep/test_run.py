"""Sweeps: what is measured, what is kept, what is said when something goes wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from experiments.made_up_machine import ANSWERED, OF_PROFILE
from experiments.made_up_machine import plan_row as fake_plan_row
from experiments.synthetic_results import CONDITIONS, OF_SAMPLE, OF_TURNS, OTHERS, typed
from msgspec import structs

from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import device as gpu_device
from forktask.experiments.analysis.estimates import MIN_GENERATIONS
from forktask.experiments.commands.compare import configuration_of
from forktask.experiments.commands.main import main, make_parser
from forktask.experiments.machine.environment import read_variables, this_node
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.grids import given_or_shipped, shipped
from forktask.experiments.results.rows import FailureRow, MachineRow, PlanRow, ProfileRow, SampleRow
from forktask.experiments.results.turns import MeasuredGroup, Rounds
from forktask.experiments.sampling.child import clean_environment, sample_environment
from forktask.experiments.sampling.hogs import hogs_running
from forktask.experiments.sweep import runner as runner_module
from forktask.experiments.sweep import shards as shards_module
from forktask.experiments.sweep.configuration import (
    AXES,
    Configuration,
    Grid,
    Measure,
    from_dict,
    parse_configuration,
    read_configuration,
)
from forktask.experiments.sweep.expected import plan_row
from forktask.experiments.sweep.runner import SweepRunner
from forktask.experiments.sweep.shards import Means
from forktask.experiments.sweep.status import describe_status, failure_report
from forktask.experiments.tables.progress import ProgressBar

# A measuring process without any measuring: does what the file FAKE says for the job's model, else gives a
# sample.
FAKE_SAMPLE = """
import json, os, signal, sys, time
sys.stdout = os.fdopen(int(os.environ["FORKTASK_ANSWERS"]), "w")
job = json.loads(sys.stdin.readline())
folder = sys.argv[1]
open(os.path.join(folder, "jobs.jsonl"), "a").write(json.dumps(job) + "\\n")
try:
    faults = json.load(open(os.path.join(folder, "faults.json")))
except FileNotFoundError:
    faults = {}
fault = faults.get(job["model"])
weights = "right"
if fault == "hang":
    time.sleep(60)
elif fault == "crash":
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
elif fault == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif fault == "silent":
    sys.exit(0)
elif fault == "memory":
    print(json.dumps({"failure": "memory", "message": "not enough memory"}))
    sys.exit(0)
elif fault == "wrong":
    weights = "wrong"
elif isinstance(fault, float):
    time.sleep(fault)
if job["kind"] == "sample":
    steps = {"short_steps": 10, "long_steps": 30}
    for said in ({}, {**steps, "turn_s": job["turn_s"]}, *[{"short_s": 0.01, "long_s": 0.03}] * 1000):
        print(json.dumps({"said": said}), flush=True)
        if json.loads(sys.stdin.readline()) is None:
            break
rows = json.load(open(os.path.join(folder, "rows.json")))
sample, profile = rows["sample"] | {"weights_hash": weights}, rows["gpu_" * job["model"].startswith("gpu_") + "profile"]
if job.get("profile"):
    print(json.dumps({"said": sample}), flush=True)
    sys.stdin.readline()
    if fault == "profile":
        os.kill(os.getpid(), signal.SIGSEGV)
print(json.dumps({"row": profile if job["kind"] == "profile" or job.get("profile") else sample}))
"""
ENVIRONMENT = {"environment": {"cpu": {"model": "A"}, "node": this_node()}, "environment_id": "a"}
OF_GPU_PROFILE = {name: value for name, value in OTHERS["gpu_profile"].items() if name not in CONDITIONS}
GRID = Grid(models=("serial", "forkjoin", "joblib"), threads=(1, 2))
NUM_POINTS = 5  # serial runs on one thread only


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """A function that makes a runner over fake samples; its attributes hold the folder for faults and jobs.

    Hand-overs are not timed: where the host moves the CPUs, a sweep logs a generation more.
    """
    monkeypatch.setattr(shards_module.Machine, "handover", lambda self, cpus: None)
    folder = tmp_path / "fake"
    folder.mkdir()
    script = folder / "sample.py"
    script.write_text(FAKE_SAMPLE)
    (folder / "rows.json").write_text(
        json.dumps({"sample": ANSWERED, "profile": OF_PROFILE, "gpu_profile": OF_GPU_PROFILE})
    )

    def make(measure=None, grid=GRID, **faults):
        (folder / "faults.json").write_text(json.dumps(faults))
        measure = measure or Measure(repeats=2, profile=False, oversubscribe=True)
        return SweepRunner(
            Configuration(grid=grid, measure=measure),
            str(tmp_path / "out"),
            "forktask compare --out out",
            means=Means(
                sample_command=(sys.executable, "-S", str(script), str(folder)),
                plan_row=fake_plan_row,
                environment=ENVIRONMENT,
                machine_row=lambda: typed([{"kind": "machine"}])[0],
            ),
        )

    make.jobs = lambda: [json.loads(line) for line in (folder / "jobs.jsonl").read_text().splitlines()]
    return make


def interrupt(out):
    """Take the ends of sessions out of a folder, as if it had been interrupted before; return its file."""
    path = Path(out, "samples.jsonl")
    path.write_text("".join(line for line in path.read_text().splitlines(True) if '"kind":"session"' not in line))
    return path


def counts(results):
    return Counter(type(row).__struct_config__.tag for row in results.rows)


def test_a_sweep_measures_each_configuration_as_often_as_asked(runner):
    """Check rows by kind, blocks of one repetition each, different orders within them, and the recorded settings."""
    results = runner(Measure(repeats=4, oversubscribe=True)).run()
    rows = {"run": 1, "machine": 1, "plan": 1, "rounds": 4, "sample": 4 * NUM_POINTS, "profile": 3 * NUM_POINTS}
    assert counts(results) == rows | {"session": 1}
    samples = results.of(SampleRow)
    blocks = [samples[k : k + NUM_POINTS] for k in range(0, len(samples), NUM_POINTS)]
    orders = [[row.config_id for row in block] for block in blocks]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert [row.repetition for row in samples] == [k for k in range(4) for _ in range(NUM_POINTS)]
    measured = [row for row in results.rows if isinstance(row, SampleRow | ProfileRow)]
    assert [row.position for row in measured] == list(range(len(measured)))
    assert {row.variables["OPENBLAS_NUM_THREADS"] for row in samples} == {"1"}
    assert all(len(row.cpus) == row.threads for row in samples)


@pytest.mark.parametrize(
    ("models", "strongest"),
    [
        (("forkjoin", "forkjoin:region=persistent", "taskiter"), "forkjoin:region=persistent"),
        (("serial", "forkjoin", "taskiter"), "forkjoin"),
        (("serial", "taskiter"), "taskiter"),
    ],
)
def test_all_are_compared_with_the_strongest_fork_join_on_most_threads(models, strongest):
    """Check which configuration the others of a generation take turns with."""
    points = Configuration(grid=Grid(models=models, threads=(1, 3, 2))).points()
    (result,) = [point for point in points if point.config_id == shards_module._reference(points)]
    assert (result.model, result.threads) == (strongest, 3)


def test_a_finished_sweep_gets_another_session(runner, capsys, monkeypatch):
    """Check that the same command measures all anew, with generations of their own, and says so; and that a folder of a
    version that knew no sessions counts as one that is whole."""
    first = runner().run()
    assert counts(first)["session"] == 1 and "session" not in capsys.readouterr().err
    interrupt(runner().out_dir)
    monkeypatch.setattr(runner_module, "time", SimpleNamespace(time=lambda: OF_SAMPLE["started"] + 60))
    results = runner().run()
    assert counts(results) | {"machine": 0, "plan": 0} == counts(first) | {
        "run": 3, "sample": 4 * NUM_POINTS, "rounds": 4, "session": 2, "machine": 0, "plan": 0
    }  # fmt: skip
    assert Counter(row.repetition for row in results.of(SampleRow)) == dict.fromkeys(range(4), NUM_POINTS)
    assert "adding session 2 to" in (text := capsys.readouterr().err) and "counts as one with" in text
    status = describe_status(results)
    assert (status["sessions"], status["samples_missing"], status["resume"]) == (2, 0, None)


def measure_by_a_clock(monkeypatch, takes_s):
    """Let each contestant of a generation take the seconds of its job, one after the other, on a clock of its own."""
    clock = SimpleNamespace(now=0.0)

    def measure_generation(generation, machine):
        own = {c.name: float(takes_s(c.job)) for c in generation.contestants}
        clock.now += sum(own.values())
        rounds = Rounds([*own], [[*range(len(own))]], [[0.1] * len(own)], [None], [1.0], [0], [0])
        rows = {name: {**ANSWERED, **OF_TURNS, "timed_wall_s": seconds} for name, seconds in own.items()}
        return [MeasuredGroup(rounds, rows)]

    monkeypatch.setattr(shards_module, "measure_generation", measure_generation)
    monkeypatch.setattr(shards_module.Machine, "now", lambda: clock.now)


def test_a_budget_repeats_the_quick_plans(runner, monkeypatch, capsys):
    """Check that a first repetition is whole, and later ones have the plans that fit into the rest of the budget."""
    measure_by_a_clock(monkeypatch, lambda job: job["plan"]["batch"])
    grid = Grid(models=("serial", "forkjoin"), threads=(2,), batch=(100, 10, 1))

    def run(budget_s):
        measure = Measure(repeats=4, budget_s=budget_s, profile=False, oversubscribe=True)
        started = runner(measure, grid)
        started.undecided = lambda samples: None
        results = started.run()
        batch_of = {row.plan_id: row.batch for row in results.of(PlanRow)}
        return Counter(batch_of[row.plan_id] for row in results.of(SampleRow)), capsys.readouterr().err

    # Two models: repetitions cost 222, 22 (without batch 100), 2 and 2.
    assert run(249.0)[0] == {100: 2, 10: 4, 1: 8}
    result, text = run(1.0)
    assert result == {100: 4, 10: 6, 1: 10}, "a session begins with a whole generation"
    assert "the budget of 1.0 s is spent after 1 generation;" in text
    expected, taken = (line for line in text.splitlines() if "a generation" in line)
    assert "is expected to take" in expected and "the budget of 1.0 s holds 1; --budget" in expected
    assert "a generation took 3:42 min, a verdict needs 6 of them" in taken
    assert "--budget 1466s is enough (in a file: budget_s)" in taken


def test_a_model_far_behind_takes_from_the_budget_once(runner, monkeypatch, capsys):
    """Check that room for later generations is reckoned without it, in what is said and in what is measured."""
    measure_by_a_clock(monkeypatch, lambda job: {"joblib": 100.0, "forkjoin": 5.0}[job["model"]])
    measure = Measure(repeats=9, budget_s=121.0, profile=False, oversubscribe=True)
    started = runner(measure, Grid(models=("forkjoin", "joblib"), threads=(2,)))
    started.undecided = lambda results: {row.config_id for row in results.of(SampleRow) if row.model != "joblib"}
    assert Counter(row.model for row in started.run().of(SampleRow)) == {"joblib": 1, "forkjoin": 4}
    taken = next(line for line in capsys.readouterr().err.splitlines() if "a generation took" in line)
    assert "a generation took 1:45 min, later ones 5.0 s, a verdict needs 6 of them" in taken
    assert "holds 4; --budget 143s is enough" in taken


def test_results_of_long_steps_are_compared_after_fewer():
    """Check the number by a plan's work, and that one that was asked for holds."""
    assert Measure().checked(1e9) == 20 and Measure().checked(6e9) == 3
    assert Measure(check_iterations=7).checked(6e9) == 7


def test_generations_of_a_budget_are_not_measured_again(runner):
    """Check that a continued run leaves out repetitions in which all that was asked for has been measured."""
    grid = replace(GRID, threads=(2,))

    def run(repeats):
        started = runner(Measure(repeats=repeats, budget_s=600.0, profile=False, oversubscribe=True), grid)
        started.undecided = lambda results: {row.config_id for row in results.of(SampleRow) if row.model != "joblib"}
        return Counter((row.model, row.repetition) for row in started.run().of(SampleRow))

    first = run(2)
    interrupt(runner().out_dir)
    assert first == Counter([("joblib", 0), *((model, r) for model in ("serial", "forkjoin") for r in (0, 1))])
    assert run(3) == first + Counter([("serial", 2), ("forkjoin", 2)])


def test_a_sweep_goes_on_after_failures(runner):
    """Check that each way to fail becomes a row with its reason, is not repeated, and stops nothing else."""
    limit = Measure(repeats=2, profile=False, oversubscribe=True, time_limit_s=3.0)
    first = runner(limit, serial="hang", forkjoin="crash", joblib="memory")
    results = first.run()
    failures = {(row.model, row.threads): row for row in results.of(FailureRow)}
    assert counts(results) == {"run": 1, "machine": 1, "plan": 1, "failure": NUM_POINTS}
    assert failures["serial", 1].reason == "timeout"
    assert failures["joblib", 2].reason == "memory"
    assert failures["forkjoin", 2].reason == "crash"
    assert "SIGSEGV" in failures["forkjoin", 2].message and "last words" in failures["forkjoin", 2].message
    lines, trusted = failure_report(results)
    assert len(lines) == NUM_POINTS and trusted
    # A second attempt repeats crashes only.
    results = runner(limit).run()
    assert {row.model for row in results.of(SampleRow)} == {"forkjoin"}
    lines, trusted = failure_report(results)
    assert len(lines) == 3 and not any("forkjoin" in line for line in lines)


def test_a_killed_process_is_memory_only_with_evidence(runner, monkeypatch):
    """Check a process that was killed while the system's count of such ends grew."""
    counts = iter(range(100))
    monkeypatch.setattr("forktask.experiments.sampling.child.oom_kills", lambda: next(counts))
    rows = runner(grid=replace(GRID, models=("serial",)), serial="kill").run().of(FailureRow)
    assert [row.reason for row in rows] == ["memory"]


def test_wrong_weights_are_found_and_figures_refused(runner):
    """Check that a model with other weights becomes a failure that keeps the sample, and that nothing is trusted."""
    results = runner(grid=replace(GRID, threads=(1,)), joblib="wrong").run()
    rows = results.of(FailureRow)
    assert len(rows) >= 1 and {row.reason for row in rows} == {"mismatch"}
    assert all("bit for bit" in row.message and row.sample["weights_hash"] for row in rows)
    assert failure_report(results)[1] is False
    assert describe_status(results)["weights_agree"] is False
    # It stays so when the command is given again.
    assert failure_report(runner(grid=replace(GRID, threads=(1,))).run())[1] is False


def test_of_wrong_weights_the_rest_is_printed_and_the_wrong_model_is_logged(tmp_path, capsys):
    """Check the tables of a folder one of whose models has left other weights, what is said of its logged run, and the
    exit code."""
    command = ["compare", "--network", "lenet5", "--batch", "16", "--models", "serial,forkjoin,taskiter"]
    command += ["--threads", "1", "--repeats", "1", "--quick", "--out", str(tmp_path)]
    assert main(command) == 0
    (sample,) = (row for row in read_results(tmp_path).of(SampleRow) if row.model == "taskiter")
    kept = [name for name in FailureRow.__struct_fields__ if hasattr(sample, name)]
    about = {"measuring": "sample", "reason": "mismatch", "message": "weights are not those of serial", "sample": None}
    row = FailureRow(**{name: getattr(sample, name) for name in kept} | about)
    lines = (tmp_path / "samples.jsonl").read_bytes().splitlines()
    lines = [line for line in lines if b'"kind":"sample"' not in line or b'"model":"taskiter"' not in line]
    lines = [line for line in lines if b'"kind":"session"' not in line]
    encoded = msgspec.json.encode(row, enc_hook=str)
    (tmp_path / "samples.jsonl").write_bytes(b"\n".join([*lines, encoded, b""]))
    capsys.readouterr()
    assert main(command) == 1
    printed = capsys.readouterr()
    assert re.search(r"taskiter, other bits: in a logged run of \d+ iterations no block began before", printed.err)
    assert (
        "Not measured: taskiter on 1 thread: weights are not" in printed.out and "All times of taskiter" in printed.out
    )
    table = main(["report", str(tmp_path), "--json"]) or json.loads(capsys.readouterr().out)["speed"]
    assert {row["model"] for row in table} == {"serial", "forkjoin"}


def test_plans_without_a_fixed_order_of_sums_are_not_compared_bitwise(runner):
    """Check that a plan that says it is not deterministic may give different weights."""
    one = runner(grid=replace(GRID, threads=(1,)), joblib="wrong")
    one.means.plan_row = lambda *a: structs.replace(fake_plan_row(*a), deterministic=False)
    assert one.run().of(FailureRow) == []


def test_a_second_node_is_refused_unless_nodes_are_pooled(runner):
    """Check that a run goes on where it began, after a reboot and in another container too; that pooled nodes have a
    machine row each and may differ in what is no kind; and that rows name their nodes."""

    def on(host, boot_id, libc, nodes="one", repeats=2):
        one = runner(Measure(repeats=repeats, profile=False, oversubscribe=True, nodes=nodes))
        node = {"host": host, "scheduler": "", "boot_id": boot_id}
        one.means.environment = {"environment": {**ENVIRONMENT["environment"], "libc": libc, "node": node}}
        one.means.environment["environment_id"] = libc
        one.means.machine_row = lambda: typed([{"kind": "machine", "node": node}])[0]
        return one

    on("a", "1", "c").run()
    for again, repeats in ((("a", "2"), 3), (("container", "1"), 4)):
        interrupt(runner().out_dir)
        results = on(*again, "c", repeats=repeats).run()
        assert len(results.of(SampleRow)) == repeats * NUM_POINTS and len(results.of(MachineRow)) == 1
    interrupt(runner().out_dir)
    with pytest.raises(UsageError, match="must come from one node, got 'a' and 'b'"):
        on("b", "3", "c", repeats=5).run()
    results = on("b", "3", "d", "pooled", 5).run()
    assert [row.node.host for row in results.of(MachineRow)] == ["a", "b"]
    assert Counter(row.node.host for row in results.of(SampleRow))["b"] == NUM_POINTS
    other = on("e", "4", "d", "pooled", 6)
    other.means.environment["environment"]["kernel"] = "another"
    with pytest.raises(UsageError, match="must have the same kernel"):
        other.run()


DRIVER = """
import json, sys
sys.argv = json.loads(sys.argv[1])
sys.path.insert(0, sys.argv[0])
from experiments.sweep.test_run import ENVIRONMENT, GRID, fake_plan_row, typed
from forktask.experiments.sweep.configuration import Configuration, Measure
from forktask.experiments.sweep.shards import Means
from forktask.experiments.sweep.runner import SweepRunner
folder, out = sys.argv[1:]
try:
    SweepRunner(Configuration(grid=GRID, measure=Measure(repeats=2, profile=False, oversubscribe=True)), out,
          "forktask compare --out out", means=Means((sys.executable, "-S", folder + "/sample.py", folder),
          fake_plan_row, ENVIRONMENT, lambda: typed([{"kind": "machine"}])[0])).run()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_sweep_keeps_its_samples(runner, tmp_path, how):
    """Check that a kill loses at most a generation, that Ctrl-C says how to go on, and that the rest is added."""
    out = runner(serial=0.2, forkjoin=0.2, joblib=0.2).out_dir
    arguments = [str(Path(__file__).parents[2]), str(tmp_path / "fake"), out]
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", DRIVER, json.dumps(arguments)], stderr=subprocess.PIPE, text=True
    )
    path = Path(out, "samples.jsonl")
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_text().count('"kind":"sample"') < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    kept = read_results(out).of(SampleRow)
    started = len(runner.jobs())
    assert 3 <= len(kept) < 2 * NUM_POINTS
    assert started - len(kept) <= NUM_POINTS, "at most a generation is lost"
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "To continue: forktask compare --out out" in errors
    results = runner().run()
    assert len({(row.config_id, row.repetition) for row in results.of(SampleRow)}) == 2 * NUM_POINTS
    assert results.of(SampleRow)[: len(kept)] == kept
    assert not describe_status(results)["samples_missing"]


def test_an_interrupted_budget_is_not_complete(runner, capsys):
    """Check that with a budget, which asks for no number of generations, a session without its end is not complete."""
    measure = Measure(repeats=2, budget_s=1e5, oversubscribe=True)
    out = runner(measure).out_dir
    runner(measure).run()
    assert main(["status", out]) == 0 and "complete" in capsys.readouterr().out.splitlines()[-1]
    interrupt(out)
    assert main(["status", out]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "interrupted before its budget was spent. To continue: forktask compare --out out" in last


def test_status_says_what_is_missing(runner, capsys):
    """Check the numbers, the way to go on, and both outputs of the command."""
    out = runner().out_dir
    results = runner().run()
    assert describe_status(results)["resume"] is None
    path = interrupt(out)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    assert main(["status", out]) == 0
    text = capsys.readouterr().out
    assert "3 samples and 0 profiles are missing" in text and "To continue: forktask compare --out out" in text
    assert main(["status", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples_missing"] == 3
    assert main(["status", out + "/nothing"]) == 2


def test_status_of_a_model_that_is_not_installed(runner, capsys):
    """Check that a folder with somebody else's model is described, and that such a model cannot go on here."""
    out = Path(runner().out_dir)
    runner().run()
    samples = out / "samples.jsonl"
    samples.write_text(samples.read_text().replace('"joblib"', '"my_queue:depth=3"'))
    assert main(["status", str(out)]) == 0
    text = capsys.readouterr().out
    assert "my_queue:depth=3" in text and "complete" in text.splitlines()[-1]
    with pytest.raises(UsageError, match="no model is called 'my_queue'"):
        from_dict(read_results(out).run.config).check_machine()


def test_the_measured_process_gets_a_clean_environment():
    """Check that what cripples or steers BLAS and OpenMP is gone, and spinning depends on the cores left."""
    gone = {"OPENBLAS_CORETYPE": "Haswell", "OMP_PLACES": "cores", "GOMP_SPINCOUNT": "1"}
    own = {"PATH": "/bin", "FORKTASK_ISA": "avx2", **gone}
    settings = sample_environment(threads=2, hogs=0, cores=2)
    assert clean_environment(own, settings) == {"PATH": "/bin", "FORKTASK_ISA": "avx2", **settings}
    own = {"LD_PRELOAD": "/a/libiomp5.so:/b/libjemalloc.so.2 libomp.so.5", "MALLOC_CONF": "x", "GLIBC_TUNABLES": "y"}
    kept = {"MALLOC_CONF": "x", "GLIBC_TUNABLES": "y"}  # an allocator stays; the OpenMP library is the model's
    assert clean_environment(own, {}) == kept | {"LD_PRELOAD": "/b/libjemalloc.so.2"}
    preloaded = clean_environment(own, {"LD_PRELOAD": "libomp.so"})["LD_PRELOAD"]
    assert preloaded == "libomp.so:/b/libjemalloc.so.2"
    assert [v["kind"] for v in read_variables(own)] == ["memory"] * 3
    assert settings["OMP_WAIT_POLICY"] == "active"
    assert sample_environment(4, 0, 2)["OMP_WAIT_POLICY"] == "passive"
    assert sample_environment(2, 1, 2)["OMP_WAIT_POLICY"] == "passive"
    assert sample_environment(4, 0, 2, "active")["OMP_WAIT_POLICY"] == "active"


def test_hogs_run_and_end():
    """Check that interfering processes run while they should, on their CPU, and are gone afterwards."""
    cpus = sorted(os.sched_getaffinity(0))
    with hogs_running(1, cpus) as hogs:
        assert [hog.poll() for hog in hogs] == [None]
        assert os.sched_getaffinity(hogs[0].pid) == {cpus[-1]}
    assert hogs[0].returncode == -signal.SIGKILL


# --- configurations
# ---------------------------------------------------------------------------------------------------


def test_lists_expand_to_a_grid():
    """Check the product, that one-thread models take part once, that equal models are not measured twice, and that all
    plans are cut for the same number of threads."""
    configuration = parse_configuration(
        {"grid": {"batch": [8, 16], "models": ["serial", "forkjoin", "forkjoin:region=loop"], "threads": [1, 2]}}
    )
    result = Counter((p.plan["batch"], p.model, p.threads) for p in configuration.points())
    assert result == Counter(
        (batch, model, threads)
        for batch in (8, 16)
        for model, threads in (("serial", 1), ("forkjoin", 1), ("forkjoin", 2))
    )
    assert len({p.config_id for p in configuration.points()}) == 6
    assert len({p.plan_id for p in configuration.points()}) == 2
    assert {p.plan["granularity"] for p in configuration.cut_for_threads().points()} == {"threads=2"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[grid]\nbach = 8\n", ["bach", "batch", "network"]),
        ("[grid]\n[measure]\nrepeat = 8\n", ["repeat", "repeats"]),
        ("repeats = 8\n", ["repeats", "measure"]),
        ("grid = 8\n", ["[grid]"]),
        ("[grid]\nbatch = '8'\n", ["batch", "whole number", "'8'"]),
        ("[grid]\nbatch = true\n", ["batch", "whole number"]),
        ("[grid]\nbatch = []\n", ["batch", "empty"]),
        ("[grid]\nmodels = ['taskloop']\n", ["taskloop", "forkjoin"]),
        ("[grid]\ninterference = -1\n", ["interference", "-1"]),
        ("[grid]\n[measure]\nrepeats = 0\n", ["repeats", "at least 1"]),
        ("[grid]\n[measure]\ntarget_s = -0.5\n", ["target_s", "positive"]),
        ("[grid]\n[measure]\nwait_policy = 'lazy'\n", ["wait_policy", "passive"]),
        ("[grid\n", ["TOML"]),
    ],
)
def test_bad_files_are_refused(tmp_path, text, words):
    """Check one clear sentence with the offending key or value and the known ones."""
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_configuration(path)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_a_missing_file_names_the_shipped_ones(tmp_path, monkeypatch):
    """Check the message, and that shipped configurations are found by name, also beside a folder of their results."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"got 'none\.toml', which is neither; shipped: .*strong_scaling"):
        given_or_shipped("none.toml")
    with pytest.raises(UsageError, match="No such file"):
        read_configuration(given_or_shipped(str(tmp_path / "none.toml")))
    assert given_or_shipped("strong_scaling") == given_or_shipped("strong_scaling.toml") != "strong_scaling.toml"
    Path("strong_scaling").mkdir()
    assert given_or_shipped("strong_scaling") == given_or_shipped("strong_scaling.toml") != "strong_scaling.toml"


SHIPPED = shipped("sweep")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_configurations_say_how_to_read_them(path):
    """Check that each parses, explains its curve, has generations enough for answers, of which a host may spoil one,
    and becomes small with --quick."""
    assert re.search("How to read its (curve|table)", path.read_text())
    configuration = read_configuration(path)
    assert configuration.measure.repeats > MIN_GENERATIONS
    quick = configuration.quick()
    assert len(quick.shards()) < len(configuration.shards())
    assert quick.measure.repeats == 1
    assert quick.title == f"{configuration.title}, small form"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_the_small_form_keeps_the_question(path):
    """Check that every value of what is swept stays, but for what the file's table [quick] has in its place, that each
    batch has a small one of its own in its place where that says nothing, and that what was left out is said."""
    configuration = read_configuration(path)
    quick, named = configuration.quick(), tomllib.loads(path.read_text()).get("quick", {})
    for axis in AXES:
        before, after = getattr(configuration.grid, axis), getattr(quick.grid, axis)
        if axis not in ("batch", "threads", *named):
            assert after == before, axis
        else:
            assert after == before or f"{axis} {', '.join(map(str, after))} in place of" in quick.left_out
        if axis in named:
            assert [*map(str, after)] == [*map(str, named[axis] if isinstance(named[axis], list) else [named[axis]])]
    before, after = configuration.grid.batch, quick.grid.batch
    if "batch" not in named:
        assert sorted(range(len(after)), key=after.__getitem__) == sorted(range(len(before)), key=before.__getitem__)
        assert len(set(after)) == len(before) and max(after) <= 8
    assert max(after) <= max(before)
    assert quick.how_to_read == f"{quick.left_out} {configuration.how_to_read}"


def test_a_small_comparison_keeps_what_was_asked_for():
    """Check that `compare --quick` measures the batches and threads that were named, and otherwise the most threads."""

    def quick(*words):
        parser = make_parser("compare")
        return configuration_of(parser.parse_args(["compare", "--quick", *words])).quick()

    named = quick("--batch", "30,60,120", "--threads", "1,2")
    assert named.grid.batch == (30, 60, 120) and named.grid.threads == (1, 2) and named.measure.repeats == 1
    assert len(quick().grid.threads) == 1


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_configurations_lower_and_complete(path, runner, monkeypatch):
    """Check that plans of the largest batch can be lowered, with one granularity, and that the small sweep runs, which
    has them all."""
    monkeypatch.setattr(gpu_device, "count_gpus", lambda: 1)
    configuration = read_configuration(path)
    alike = {}
    for network, options in configuration.plans():
        alike.setdefault((network, structs.replace(options, batch=1, granularity="auto")), []).append(options)
    for (network, _), several in alike.items():
        plan_row("id", {"network": network, **max(several, key=lambda options: options.batch).as_dict()})
    made = runner()
    made.configuration = configuration.quick()
    made.means.plan_row = plan_row
    results = made.run()
    assert counts(results)["sample"] == len(made.configuration.points())
    assert len(results.of(PlanRow)) == len(made.configuration.plans())


def test_profiles_are_measured_among_the_samples(runner):
    """Check that the profiles of a repetition follow its samples, and that status counts them."""
    made = runner(Measure(repeats=4, profile_repeats=2, oversubscribe=True))
    results = made.run()
    rows = [row for row in results.rows if isinstance(row, SampleRow | ProfileRow)]
    assert [type(row) for row in rows[: 2 * NUM_POINTS]] == [SampleRow] * NUM_POINTS + [ProfileRow] * NUM_POINTS
    assert len(results.of(ProfileRow)) == 2 * NUM_POINTS
    assert {row.repetition for row in results.of(ProfileRow)} == {0, 1}
    status = describe_status(results)
    assert status["profiles_missing"] == 0 and {c["profiles"] for c in status["configurations"]} == {2}
    path = interrupt(made.out_dir)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"kind":"profile"' not in line))
    assert describe_status(read_results(made.out_dir))["profiles_missing"] == 2 * NUM_POINTS
    assert Measure(repeats=2, profile_repeats=5).profiles == 2


def test_a_profile_that_crashes_leaves_its_sample(runner):
    """Check that what was measured before stays, and what the failure is said to be of."""
    results = runner(Measure(repeats=1, profile_repeats=1, oversubscribe=True), joblib="profile").run()
    assert counts(results)["sample"] == NUM_POINTS
    failed = [(row.model, row.threads, row.measuring, row.reason) for row in results.of(FailureRow)]
    assert sorted(failed) == [("joblib", count, "profile", "crash") for count in (1, 2)]
    assert len(results.of(ProfileRow)) == NUM_POINTS - len(failed)


def test_progress_in_a_file_names_the_plan(runner, monkeypatch, capsys):
    """Check that where standard error is no terminal lines say how far a sweep is, and which plan is measured."""
    monkeypatch.setattr(ProgressBar, "LINE_S", 0.0)
    runner(Measure(repeats=2, profile=False, oversubscribe=True)).run()
    texts = [line for line in capsys.readouterr().err.splitlines() if "measuring: 50 %" in line]
    assert texts and "generation 2 of 2, " in texts[0] and "train" in texts[0] and texts[0].endswith(" configurations")
