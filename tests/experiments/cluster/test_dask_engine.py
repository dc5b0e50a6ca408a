"""A Dask cluster as engine: what is lost is measured again, nothing twice, and nothing goes on behind the client."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from experiments.synthetic_results import completed, synthetic_rows

from forktask.cython_src.errors import UsageError
from forktask.experiments.cluster.client import measure_on
from forktask.experiments.commands.main import main
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import FailureRow, MachineRow, ProfileRow, RunRow, SampleRow, SessionRow
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure, read_configuration
from forktask.experiments.sweep.runner import SweepRunner

pytestmark = [pytest.mark.dask, pytest.mark.timeout(600)]
NETWORK = Grid(network=("lenet5",), batch=(4,), models=("serial",), threads=(1,))
# What a shard's process says after some milliseconds; it is started, asked and ended like the real one.
FAKE_BLOCK = """
import json, os, sys, time
from forktask.experiments.sampling.child import answer_job
given = json.loads(open(sys.argv[1]).read())
def measure(job):
    shard = job["shard"]
    with open(given["pids"], "a") as file:
        print(os.getpid(), file=file)
    time.sleep(given["seconds"])
    if shard["repetition"] in given.get("crash", ()):
        os.kill(os.getpid(), 9)
    run = [{**row, "config": job["configuration"]} for row in given["heads"] if row["kind"] == "run"]
    rows = [*run, *given["heads"][1:]] if job["begin"] else []
    place = {name: shard[name] for name in ("plan_id", "interference", "repetition")}
    return {"rows": rows + [{**given["sample"], **place, "config_id": c} for c in shard["samples"]]}
sys.exit(answer_job(measure, "usage"))
"""


class Cluster:
    """A scheduler and workers on this machine; a worker that is killed is followed by another one."""

    def __init__(self, folder, workers):
        self.folder, self.log = folder, open(folder / "log", "w")  # noqa: SIM115
        self.scheduler = self.start("scheduler", "--port", "0", "--host", "127.0.0.1", "--scheduler-file", "at.json")
        at = folder / "at.json"
        self.wait(lambda: at.exists() and at.read_text().endswith("}"))
        self.address = json.loads(at.read_text())["address"]
        self.workers = [self.worker() for _ in range(workers)]

    def start(self, *command):
        command = [sys.executable, "-P", "-m", "dask", *command, "--no-dashboard"]
        environment = {**os.environ, "OF_CLUSTER": str(self.folder)}
        return subprocess.Popen(command, cwd=self.folder, stdout=self.log, stderr=self.log, env=environment)

    def worker(self):
        return self.start("worker", self.address, "--nthreads", "1", "--no-nanny", "--memory-limit", "0")

    def replace(self, number):
        self.workers[number].kill()
        self.workers[number].wait()
        self.workers[number] = self.worker()

    def wait(self, condition):
        deadline = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.05)

    def wait_for_workers(self, count):
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=90)

    def end(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
        self.log.close()


@contextmanager
def cluster(folder, workers):
    running = Cluster(folder, workers)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
def fake(tmp_path):
    """A function that makes an engine's arguments for fake shards; `pids` are those of the processes so far."""
    heads = [completed(row) for row in synthetic_rows(models=("serial",), threads=(1,), repeats=1)]
    sample = next(row for row in heads if row["kind"] == "sample")
    script, settings, pids = (tmp_path / name for name in ("shard.py", "given.json", "pids"))
    script.write_text(FAKE_BLOCK)

    def arguments(seconds, **given):
        kept = [row for kind in ("run", "machine", "plan") for row in heads if row["kind"] == kind]
        settings.write_text(
            json.dumps({"pids": str(pids), "seconds": seconds, "heads": kept, "sample": sample, **given})
        )
        return {"shard_command": ("-P", str(script), str(settings))}

    arguments.pids = lambda: [int(line) for line in pids.read_text().split()] if pids.exists() else []
    arguments.name = str(script)
    return arguments


def processes(folder, name):
    """The processes that a cluster in a folder has started, directly or not, in whose command a text stands."""
    result = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            of_cluster = f"OF_CLUSTER={folder}\0".encode() in (path / "environ").read_bytes()
            if of_cluster and name.encode() in (path / "cmdline").read_bytes():
                result.append(int(path.name))
    return result


def configuration(repeats, grid=NETWORK):
    return Configuration(grid=grid, measure=Measure(repeats=repeats, profile=False, target_s=0.01, warmup_s=0.01))


def written(out):
    """How many samples a folder has, while it is written."""
    path = out / "samples.jsonl"
    return path.read_bytes().count(b'{"kind":"sample"') if path.exists() else 0


def measured(out):
    return Counter((row.config_id, row.repetition) for row in read_results(out).of(SampleRow))


def test_every_block_is_measured_once_while_workers_are_killed(tmp_path, fake, monkeypatch):
    """Check 200 shards on three workers of which 20 are killed at random: all there, none twice, no process left."""
    from forktask.experiments.cluster.dask_engine import DaskEngine

    monkeypatch.setenv("FORKTASK_DASK_SHARED_HOSTS", "1")
    requested, out, killed = configuration(200), tmp_path / "out", []
    choice = random.Random(1)

    def kill(running):
        for number in range(20):
            running.wait(lambda number=number: written(out) >= 9 * number + 5)
            time.sleep(choice.random() * 0.1)
            running.replace(choice.randrange(3))
            killed.append(number)

    with cluster(tmp_path, 3) as running:
        killer = threading.Thread(target=kill, args=(running,), daemon=True)
        killer.start()
        with DaskEngine(running.address, requested, "forktask run x", **fake(0.1)) as engine:
            results = measure_on(engine, requested, str(out), undecided=lambda results: set())
        killer.join(30)
        assert len(killed) == 20
        assert len(fake.pids()) > 200  # some were lost
        running.wait(lambda: not processes(tmp_path, fake.name))
    assert measured(out) == {(point.config_id, k): 1 for point in requested.points() for k in range(200)}
    assert results.of(FailureRow) == []
    assert len(results.of(MachineRow)) == 1


CLIENT = """
import json, sys
from forktask.experiments.cluster.client import measure_on
from forktask.experiments.cluster.dask_engine import DaskEngine
from forktask.experiments.sweep.configuration import from_dict
address, configuration, out, command = json.loads(sys.argv[1])
asked = from_dict(configuration)
try:
    with DaskEngine(address, asked, "forktask run x", shard_command=command) as engine:
        measure_on(engine, asked, out, undecided=lambda results: set())
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_an_interrupted_client_leaves_no_process_and_loses_no_row(tmp_path, fake):
    """Check Ctrl-C: the running shard ends at once, finished ones are kept, and a second run measures the rest."""
    from forktask.experiments.cluster.dask_engine import DaskEngine

    requested, out = configuration(6), tmp_path / "out"
    slow = fake(1.0)
    with cluster(tmp_path, 1) as running:
        given = json.dumps([running.address, requested.as_dict(), str(out), slow["shard_command"]])
        client = subprocess.Popen([sys.executable, "-P", "-c", CLIENT, given])
        running.wait(lambda: len(fake.pids()) >= 3 and written(out) == 2)
        client.send_signal(signal.SIGINT)
        assert client.wait(60) == 130
        kept = measured(out)
        assert not processes(tmp_path, fake.name) and 2 <= len(kept) < 6
        with DaskEngine(running.address, requested, "forktask run x", **fake(0.01)) as engine:
            measure_on(engine, requested, str(out), undecided=lambda results: set())
    assert set(measured(out).values()) == {1} and len(measured(out)) == 6


def test_a_real_sweep_goes_through_dask(tmp_path):
    """Check `forktask run --on dask:`: rows as of a plain sweep; a worker killed in a shard leaves no process, and its
    shard is measured by the next worker."""
    file, out = tmp_path / "small.toml", tmp_path / "out"
    file.write_text(
        'title = "Small"\n[grid]\nnetwork = "lenet5"\nbatch = 4\nmodels = ["serial", "forkjoin"]\nthreads = 1\n'
        "[measure]\nrepeats = 3\ntarget_s = 0.05\nprofile_repeats = 1\n"
    )
    of_block, of_sample = "forktask.experiments.cluster.dask_worker", "forktask.experiments.sampling.measure"
    with cluster(tmp_path, 1) as running:

        def kill():
            running.wait(lambda: processes(tmp_path, of_sample))
            running.replace(0)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        assert main(["run", str(file), "--on", f"dask:{running.address}", "--out", str(out)]) == 0
        killer.join(30)
        running.wait(lambda: not processes(tmp_path, of_block) and not processes(tmp_path, of_sample))
    SweepRunner(read_configuration(file), str(tmp_path / "plain"), "forktask run x").run()

    def content(folder):
        results = read_results(folder)
        logged = {row.config_id for row in results.of(ProfileRow)}  # again where a log took longer than timed runs
        rows = Counter(
            (type(row).__name__, getattr(row, "config_id", ""), getattr(row, "repetition", ""))
            for row in results.rows
            if not isinstance(row, SessionRow | ProfileRow)  # an engine's folder has sessions by node and time alone
        )
        return rows, logged

    assert content(out) == content(tmp_path / "plain")
    hashes = [{row.weights_hash for row in read_results(f).of(SampleRow)} for f in (out, tmp_path / "plain")]
    assert hashes[0] == hashes[1]
    (run,) = read_results(out).of(RunRow)
    assert run.config == read_results(tmp_path / "plain").run.config and run.node.boot_id


def test_what_cannot_be_measured_on_is_refused(tmp_path, fake, monkeypatch):
    """Check an address nobody answers at, two workers on a host, another version, and what a worker cannot run."""
    from forktask.experiments.cluster import dask_engine
    from forktask.experiments.cluster.dask_engine import DaskEngine

    requested = configuration(1)
    monkeypatch.setattr(dask_engine, "REPLY_S", 2.0)
    for address in ("tcp://127.0.0.1:1", "nonsense:::", "nonsense", "127.0.0.1:99999"):
        with pytest.raises(UsageError, match="must name a Dask scheduler that answers"):
            DaskEngine(address, requested, "forktask run x")

    def refused(text, requested=requested, **arguments):
        with (
            DaskEngine(running.address, requested, "forktask run x", **arguments) as engine,
            pytest.raises(UsageError) as told,
        ):
            engine.measure(requested.shards(), lambda rows: None, lambda *counts: None)
        assert text in str(told.value)

    with cluster(tmp_path, 2) as running:
        running.wait_for_workers(2)
        refused("must have a host each")
        monkeypatch.setenv("FORKTASK_DASK_SHARED_HOSTS", "1")
        refused("oversubscribe", configuration(1, Grid(network=("lenet5",), models=("forkjoin",), threads=(4096,))))
        greet = dask_engine.greet
        for changed, text in (
            ({"host": "elsewhere"}, 'need nodes = "pooled"'),
            ({"instruction_sets": ["generic"]}, "must have the same instruction sets"),
            ({"version": "0.0.1"}, "got 0.0.1 at"),
        ):

            def changed_one(dask_worker, changed=changed, first=running.workers[0].pid):
                return greet(dask_worker) | (changed if os.getpid() == first else {})

            monkeypatch.setattr(dask_engine, "greet", changed_one)
            refused(text)
