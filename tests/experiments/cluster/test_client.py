"""Sweeps on nodes without a cluster: a scheduler that runs each task at once, rounds, lost shards, bad input."""

import json
import os
import sys
from pathlib import Path

import pytest
from experiments.synthetic_results import synthetic_rows, typed

from forktask.experiments.cluster.client import ROUND, measure_on, next_shards
from forktask.experiments.commands.main import main
from forktask.experiments.results.folder import Results, ResultsWriter, read_results
from forktask.experiments.results.rows import FailureRow, MachineRow, SampleRow
from forktask.experiments.sweep.configuration import Configuration, Grid, Measure

FILE = """
title = "Few"

[grid]
network = "starpu_cnn"
batch = 2
models = "serial"
threads = 1

[measure]
repeats = 3
target_s = 0.001
warmup_s = 0.001
check_iterations = 1
profile = false
nodes = "pooled"

[slurm]
time = "1:00:00"
options = ["--mem=0"]
setup = ["export SEEN_BY_TASK=1"]
"""
# Runs all tasks of an array before it answers, but for shards of a repetition that LOST names: these die at once.
SBATCH = f"""#!{sys.executable}
import json, os, subprocess, sys
from pathlib import Path
folder = Path(sys.argv[-1]).parent
with open(os.environ["CALLS"], "a") as calls:
    print(folder.name, file=calls)
for index, shards in enumerate(json.loads((folder / "job.json").read_text())["tasks"]):
    lost = [b for b in shards if str(b["repetition"]) == os.environ.get("LOST")]
    if lost:
        own = folder / f"{{index}}.0"
        own.mkdir()
        (own / "samples.jsonl").touch()
        (own / "begun").write_text("{{plan_id}}/{{interference}}/{{repetition}}".format(**lost[0]))
        continue
    with open(folder / f"{{index}}.log", "a") as log:
        environment = {{**os.environ, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(index)}}
        subprocess.run(["bash", sys.argv[-1]], env=environment, stdout=log, stderr=log)
print(7)
"""


@pytest.fixture
def scheduler(tmp_path, monkeypatch):
    """A folder on PATH with commands of Slurm; writes one of them again."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def write(name, text):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    write("sbatch", SBATCH)
    write("squeue", "#!/bin/sh\n")
    write("scontrol", "#!/bin/sh\necho 'MaxArraySize            = 3'\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("forktask.experiments.report.figures.available_figures", lambda *_: [])
    (tmp_path / "few.toml").write_text(FILE)
    write.calls = lambda: (tmp_path / "calls").read_text().split() if (tmp_path / "calls").exists() else []
    return write


RUN = ["run", "few.toml", "--on", "slurm", "--out", "out"]


def test_what_is_there_is_not_submitted_again(scheduler, capsys):
    """Check a sweep of more shards than an array takes, that the same command adds nothing, that half a row is mended
    from the folder of its task, and that more repetitions submit only themselves."""
    assert main(RUN) == 0
    assert scheduler.calls() == ["round-1"] and read_results("out").of(MachineRow)
    (line,) = [line for line in Path("out/slurm/round-1/batch.sh").read_text().splitlines() if "--array" in line]
    assert line.endswith("--array=0-1"), "MaxArraySize of 3 allows two tasks"
    before = Path("out/samples.jsonl").read_bytes()
    assert main(RUN) == 0 and scheduler.calls() == ["round-1"]
    Path("out/samples.jsonl").write_bytes(before[:-30])
    assert main(RUN) == 0 and scheduler.calls() == ["round-1"]
    assert len(read_results("out").of(SampleRow)) == 3 and Path("out/samples.jsonl.partial").exists()
    Path("few.toml").write_text(FILE.replace("repeats = 3", "repeats = 4"))
    assert main([*RUN, "--detach"]) == 0 and scheduler.calls() == ["round-1", "round-2"]
    assert "forktask status out" in capsys.readouterr().err and len(read_results("out").of(SampleRow)) == 3
    assert main(RUN) == 0 and scheduler.calls() == ["round-1", "round-2"]
    assert sorted(row.repetition for row in read_results("out").of(SampleRow)) == [0, 1, 2, 3]
    capsys.readouterr()
    assert main(["status", "out", "--json", "--watch"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"]["done"] == 4


def test_a_block_that_is_always_lost_becomes_a_row(scheduler, monkeypatch):
    """Check that it is given out three times, and that what others measured is kept."""
    monkeypatch.setenv("LOST", "2")
    assert main(RUN) == 1
    results = read_results("out")
    assert scheduler.calls() == ["round-1", "round-2", "round-3"]
    (lost,) = results.of(FailureRow)
    assert (lost.reason, lost.repetition) == ("crash", 2) and "never ended" in lost.message
    assert {row.repetition for row in results.of(SampleRow)} == {0, 1}
    monkeypatch.delenv("LOST")
    assert main(RUN) == 0 and {row.repetition for row in read_results("out").of(SampleRow)} == {0, 1, 2}


def refusing(said):
    return f"#!/bin/sh\necho '{said}' >&2\nexit 1\n"


BAD_FILES = [
    ('time = "1 h"', "one word"),
    ('options = ["mem=0"]', "begin with a dash"),
    ('setup = ["a\\nb"]', "list of lines"),
    ('partiton = "x"', "did you mean 'partition'"),
    ("cpus_per_task = -1", "whole number of at least 0"),
]


@pytest.mark.parametrize(("line", "words"), BAD_FILES)
def test_bad_tables_are_one_sentence(scheduler, capsys, line, words):
    """Check that each wrong key of [slurm] is refused before anything is asked of the scheduler, and on one machine."""
    Path("few.toml").write_text(f"{FILE.partition('[slurm]')[0]}[slurm]\n{line}\n")
    for command in (RUN, ["run", "few.toml", "--dry-run"]):
        assert main(command) == 2
        text = capsys.readouterr().err
        assert words in text and text.count("\n") == 1
    assert not scheduler.calls()


def test_what_the_scheduler_lacks_or_refuses_is_one_sentence(scheduler, capsys, monkeypatch, tmp_path):
    """Check the sentence, and that the folder takes a better command, for each way in which nothing gets measured."""

    def refused(words, command=RUN):
        capsys.readouterr()
        assert main(command) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert words in last and last.startswith("forktask: error: ")

    for words in (["--on", "pbs"], ["--on", "dask:"]):
        refused("slurm or dask:ADDRESS", ["run", "few.toml", *words])
    refused("--detach belongs to --on slurm", ["run", "few.toml", "--detach"])
    refused("must be a folder that can be written", [*RUN[:-1], "few.toml/out"])
    scheduler("sbatch", refusing("sbatch: error: Invalid account or account/partition combination specified"))
    refused("said 'sbatch: error: Invalid account or account/partition combination specified'")
    scheduler("sbatch", "#!/bin/sh\necho module: not found > $(dirname $2)/0.log\necho 7\n")
    refused("0.log ends with 'module: not found'")
    with ResultsWriter("out"):
        refused("only one process may use out")
    scheduler("sbatch", SBATCH)
    assert main(RUN) == 0
    Path("few.toml").write_text(FILE.replace("batch = 2", "batch = 3"))
    refused("another configuration: batch differ")
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("few.toml").write_text(FILE.replace("repeats = 3", "repeats = 5"))
    refused("must find Slurm's sbatch on PATH")


def test_a_script_is_written_without_a_scheduler(tmp_path, monkeypatch, capsys):
    """Check what it asks for, that bash reads it, and that nothing is submitted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("few.toml").write_text(FILE)
    assert main([*RUN, "--script"]) == 0
    script = Path(capsys.readouterr().out.removeprefix("sbatch ").strip())
    lines = script.read_text().splitlines()
    wanted = {"--array=0-2", "--requeue", "--exclusive", "--time=1:00:00", "--mem=0", "--signal=B:USR1@120"}
    assert wanted <= {line.removeprefix("#SBATCH ") for line in lines}
    assert lines[-2] == "export SEEN_BY_TASK=1" and lines[-1].startswith("exec ")
    assert os.system(f"/bin/bash -n {script}") == 0


def test_without_a_scheduler_no_folder_is_left(tmp_path, monkeypatch, capsys):
    """Check that the missing program is named before anything is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("few.toml").write_text(FILE)
    assert main(RUN) == 2
    assert "must find Slurm's sbatch on PATH" in capsys.readouterr().err
    assert os.listdir() == ["few.toml"]


class Breaking:
    """An engine whose generations break off, each as often as `breaks` says: of two contestants one has no sample."""

    def __init__(self, configuration, breaks, stop=False):
        self.configuration, self.breaks, self.stop, self.given = configuration, breaks, stop, []

    def fetch(self, keep):
        pass

    def measure(self, shards, keep, show):
        for shard in shards:
            k = shard.repetition
            times = self.given.count(k)
            self.given.append(k)
            left = [*shard.samples][: 1 if times < self.breaks.get(k, 0) else None]
            about = {"plan_id": shard.plan_id, "interference": 0, "repetition": k}
            turns = {"order": [[0, 1]], "spin_s": [[1e-6] * 2], "handover_s": [None], "wall_s": [1.0], "group": 0}
            turns |= {"steal_ticks": [0], "pressure_us": [0], "contestants": [*shard.samples]}
            head = [row for row in synthetic_rows(models=("serial",), repeats=1) if row["kind"] == "run"]
            head[0]["config"] = self.configuration.as_dict()
            # position: how often the generation was given before
            common = {"kind": "sample", "model": "serial", "threads": 1, "position": times, **about}
            samples = [{**common, "config_id": config_id, "step_time_s": 1.0} for config_id in left]
            keep(typed([*head, {"kind": "rounds", **about, **turns}, *samples]))
        if self.stop:
            raise KeyboardInterrupt
        return True


def test_a_generation_that_broke_off_gives_way_to_a_whole_one(tmp_path):
    """Check that what broke off is given out again and its part left out, and that it is kept where the client is
    stopped before a whole one came."""
    configuration = Configuration(
        grid=Grid(network=("lenet5",), batch=(4,), models=("serial", "tasks"), threads=(1,)),
        measure=Measure(repeats=3, profile=False),
    )

    def measured(folder):
        return sorted((row.repetition, row.position) for row in read_results(folder).of(SampleRow))

    engine = Breaking(configuration, {1: 2})
    measure_on(engine, configuration, str(tmp_path / "whole"), undecided=lambda results: None)
    assert sorted(engine.given) == [0, 1, 1, 1, 2]
    assert measured(tmp_path / "whole") == [(0, 0), (0, 0), (1, 2), (1, 2), (2, 0), (2, 0)]
    with pytest.raises(KeyboardInterrupt):
        stopped = Breaking(configuration, {1: 2}, stop=True)
        measure_on(stopped, configuration, str(tmp_path / "part"), undecided=lambda results: None)
    assert measured(tmp_path / "part") == [(0, 0), (0, 0), (1, 0), (2, 0), (2, 0)]


def test_rounds_end_when_all_is_decided_or_the_budget_spent(capsys):
    """Check which repetitions of which configurations are asked for, as rows come in."""
    measure = Measure(repeats=3 * ROUND, budget_s=100.0, profile=False)
    configuration = Configuration(grid=Grid(models=("serial", "tasks"), threads=(1,)), measure=measure)
    serial, tasks = (point.config_id for point in configuration.points())
    plan_id = configuration.points()[0].plan_id

    def rows(repetitions, wall_s, ids=(serial, tasks)):
        result = []
        for repetition in repetitions:
            shard = {"plan_id": plan_id, "interference": 0, "repetition": repetition}
            result.append({"kind": "rounds", **shard, "contestants": list(ids), "wall_s": [wall_s]})
            common = {"kind": "sample", "model": "serial", "threads": 1, **shard}
            result += [{**common, "config_id": config_id} for config_id in ids]
        return result

    def asked(results, wanted, failed=()):
        shards = next_shards(configuration, results, lambda _: wanted, set(failed))
        return [(shard.repetition, {*shard.samples}) for shard in shards]

    def results(*some):
        return Results(Path("out"), list(typed([row for part in some for row in part])))

    first = results(rows(range(ROUND), 1.0))
    assert asked(results(), None) == [(k, {serial, tasks}) for k in range(ROUND)]
    assert asked(first, {tasks}) == [(k, {tasks}) for k in range(ROUND, 2 * ROUND)]
    assert asked(first, None, [(serial, ROUND)])[0] == (ROUND, {tasks})
    assert asked(first, set()) == [] and "every comparison is decided after 4 generations" in capsys.readouterr().err
    assert asked(results(rows(range(ROUND), 30.0)), {tasks}) == [] and "larger budget" in capsys.readouterr().err
    whole = [rows(range(3 * ROUND), 1.0)]
    assert asked(results(*whole), {tasks}) == []
