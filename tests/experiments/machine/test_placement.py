"""Placement as an option: CPUs of workers by places and bind, what a curve over threads meets, and bad input."""

import os
from collections import Counter

import pytest
from experiments.machine.test_environment import topology_files, write_tree
from experiments.machine.test_real_machines import caches

from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.machine.placement import Placement
from forktask.experiments.machine.topology import BINDS, PLACES, cpu_order, read_topology
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import MetgRow, SampleRow, TraceRow
from forktask.experiments.sampling.generation import contestant_of
from forktask.experiments.subjects.models import parse_model
from forktask.experiments.training.config import TrainingConfig
from forktask.experiments.training.train import data_for
from forktask.experiments.training.trainer import Trainer

# Two sockets x two nodes x two last-level caches x two cores x two threads; siblings differ by 16.
CORES = range(16)
NODE = topology_files({c + s: (c // 8, c // 4, f"{c},{c + 16}") for s in (0, 16) for c in CORES}) | caches(
    [(16, [c, c + 1, c + 16, c + 17], f"{c}-{c + 1},{c + 16}-{c + 17}\n") for c in CORES[::2]]
)
CPUS = range(32)


@pytest.fixture
def node(tmp_path):
    return write_tree(tmp_path, NODE)


@pytest.mark.parametrize(
    ("places", "bind", "cpus"),
    [
        ("cores", "close", [0, 1, 2, 3]),
        ("cores", "close", [*CORES, 16]),
        ("cores", "spread", [0, 4, 8, 12]),
        ("cores", "spread", [*CORES, 16, 24]),
        ("threads", "close", [0, 16, 1, 17]),
        ("threads", "spread", [0, 4, 8, 12]),
        ("llc", "close", [0, 2, 4, 6]),
        ("llc", "spread", [0, 4, 8, 12]),
        ("llc", "close", [0, 1, 2, 3, 4, 6, 8, 10, 12, 14]),
        ("llc", "spread", [0, 1, 2, 4, 6, 8, 9, 10, 12, 14]),
        ("numa", "close", [0, 4]),
        ("numa", "spread", [0, 8]),
        ("numa", "close", [0, 1, 2, 4, 5, 8, 9, 12, 13]),
        ("sockets", "close", [0, 8]),
        ("sockets", "close", [0, 1, 8, 9]),
        ("sockets", "spread", [0, 4, 8, 12]),
        ("5,3,9-10", "close", [5, 3]),
        ("5,3,9-10", "spread", [5, 9]),
    ],
)
def test_workers_get_the_cpus_of_openmps_words(node, places, bind, cpus):
    """Check CPUs against those that OMP_PLACES and OMP_PROC_BIND mean, written by hand."""
    assert cpu_order(len(cpus), CPUS, root=node, places=places, bind=bind) == cpus


@pytest.mark.parametrize("bind", ["close", "spread"])
@pytest.mark.parametrize("places", PLACES)
def test_every_number_of_workers_has_cpus_of_its_own_in_equal_shares(node, places, bind):
    """Check, for each number, that no CPU is given twice before all are, and that places get equal shares."""
    place = {c["cpu"]: c for c in read_topology(node)["cpus"]}
    common = PLACES[places] or "cpu"
    for n in (*range(1, 33), 64, 70):
        order = cpu_order(n, CPUS, root=node, places=places, bind=bind, oversubscribe=True)
        assert max(Counter(order).values()) == -(-n // 32)
        shares = Counter(place[cpu][common] for cpu in order)
        assert max(shares.values()) - min(shares.values()) <= 1
        if PLACES[places]:
            assert len(shares) == min(n, len({c[common] for c in place.values()}))
        if places != "threads":
            cores = Counter(place[cpu]["core"] for cpu in order)
            assert len(cores) == min(n, 16)


def test_uneven_places_are_filled_before_any_cpu_gets_two_workers(node):
    """Check a cpuset with one core of the first socket: the second takes what the first cannot."""
    assert cpu_order(6, [1, 17, *range(8, 16)], root=node, places="sockets") == [1, 17, 8, 9, 10, 11]


def test_places_that_there_are_not_are_refused(node):
    """Check one sentence each: no such place, a CPU outside the cpuset, too many threads, hidden caches, no pinning."""
    for places, text in (
        ("socket", "got 'socket'; did you mean 'sockets'"),
        ("0,0", "each once, such as 0-3,8, got '0,0'"),
        ("3-1", "got '3-1'"),
        ("", "got ''"),
    ):
        with pytest.raises(UsageError, match=text):
            Placement(places=places)
        with pytest.raises(UsageError, match=text):
            cpu_order(1, CPUS, root=node, places=places)
    with pytest.raises(UsageError, match="this process may use, 0-7, got 8-9 in 7-9; leave them out"):
        cpu_order(1, range(8), root=node, places="7-9")
    with pytest.raises(UsageError, match="must not exceed the 2 CPUs of places 3,5, got 3; ask for fewer or pass"):
        cpu_order(3, CPUS, root=node, places="3,5")
    assert cpu_order(3, CPUS, root=node, places="3,5", oversubscribe=True) == [3, 5, 3]
    with pytest.raises(UsageError, match="places=llc needs caches that the kernel shows"):
        cpu_order(1, [0], root=node / "nowhere", places="llc")
    for record in (Placement, TrainingConfig):
        with pytest.raises(UsageError, match="got llc with bind=none; bind close or spread"):
            record(places="llc", bind="none")
    with pytest.raises(UsageError, match=f"one of {', '.join(BINDS)}; got 'spred'; did you mean 'spread'"):
        Placement(bind="spred")


@pytest.mark.parametrize("command", ["compare", "run strong_scaling", "trace", "metg", "train"])
def test_commands_refuse_places_in_one_sentence(command, capsys):
    """Check that every command whose threads are measured has the options, and names a CPU that it may not use."""
    usable = os.sched_getaffinity(0)
    strange = max(usable) + 1
    bind = ["--bind", "close"] if command == "train" else []
    for places, text in (("sokets", "did you mean 'sockets'"), (str(strange), f"got {strange} in {strange}")):
        assert main([*command.split(), "--places", places, *bind]) == 2
        error = capsys.readouterr().err.strip()
        assert text in error and "Traceback" not in error


def test_idle_threads_sleep_where_a_list_has_fewer_cpus_than_threads():
    """Check the wait policy of two threads on one CPU of several, and that of threads that are not pinned."""
    spec, one = parse_model("forkjoin"), min(os.sched_getaffinity(0))
    crowded = contestant_of("a", spec, 2, limit_s=1.0, cpus=Placement(places=str(one), oversubscribe=True).cpus(2))
    assert crowded.job["cpus"] == [one, one] and crowded.variables["OMP_WAIT_POLICY"] == "passive"
    alone = contestant_of("a", spec, 1, limit_s=1.0, cpus=Placement(bind="none").cpus(1))
    assert alone.job["cpus"] is None and alone.variables["OMP_WAIT_POLICY"] == "active"


def test_training_is_pinned_where_asked(monkeypatch):
    """Check the CPUs of a training's executors: none by default, those of the places otherwise."""
    usable = sorted(os.sched_getaffinity(0))
    config = TrainingConfig(data="synthetic:16", network="lenet5", batch=4, threads=1)
    with Trainer(config, data_for(config), 0) as trainer:
        assert trainer.executor.cpus is None
    config = config.with_changes(bind="close", places=str(usable[-1]))
    with Trainer(config, data_for(config), 0) as trainer:
        trainer.train_epoch()
        assert trainer.executor.cpus == usable[-1:]
        assert all(executor.cpus == usable[-1:] for _, _, executor in trainer.evaluations._plans.values())


LAST = str(max(os.sched_getaffinity(0)))
PLAN = ["--network", "lenet5", "--batch", "2", "--threads", "2"]
PLACED = ["--places", LAST, "--bind", "spread", "--oversubscribe"]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["compare", *PLAN, "--quick", "--models", "forkjoin,taskiter"], SampleRow),
        (["trace", *PLAN, "--seconds", "0.01", "--models", "taskiter"], TraceRow),
        (["metg", "--quick", "--steps", "2", "--threads", "2", "--models", "taskiter"], MetgRow),
    ],
    ids=["compare", "trace", "metg"],
)
def test_rows_say_where_threads_were(command, kind, tmp_path):
    """Check that a list of CPUs reaches measuring processes and rows, and the configuration of the run."""
    out = str(tmp_path / "out")
    assert main([*command, *PLACED, "--out", out]) == 0
    results = read_results(out)
    assert (results.run.config["places"], results.run.config["bind"]) == (LAST, "spread")
    rows = results.of(kind)
    assert rows and all(row.cpus == [int(LAST)] * 2 for row in rows if hasattr(row, "cpus"))
