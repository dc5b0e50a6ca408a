"""A sweep on a real Slurm with two nodes, all on this machine: nodes die, tasks are requeued, cut short, cancelled."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from experiments.cluster.two_nodes import TwoNodes
from programs import run_forktask

from forktask.experiments.commands.main import main
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import (
    CapacityRow,
    MachineRow,
    OfShard,
    PlanRow,
    ProfileRow,
    RoundsRow,
    SampleRow,
)

SMALL = (Path(__file__).parent / "small.toml").read_text()
SHARDS = 10


def without_times(folder):
    """What two sweeps of one configuration have in common: all rows, without what a clock or a node says, and without
    the generations and profiles that make up for those in which the host had moved the CPUs."""
    result, results = Counter(), read_results(folder)
    planned = {True: results.run.config["profile_repeats"], False: results.run.config["repeats"]}
    for row in results.rows:
        if isinstance(row, OfShard) and row.repetition >= planned[isinstance(row, ProfileRow)]:
            continue
        match row:
            case PlanRow():
                result[repr(row)] += 1
            case CapacityRow():
                result["capacity", row.plan_id, row.interference, row.repetition] += 1
            case RoundsRow():
                result["rounds", row.plan_id, row.repetition, row.group, tuple(sorted(row.contestants))] += 1
            case SampleRow() | ProfileRow():
                names = ("config_id", "model", "threads", "plan_id", "check", "repetition", "position", "variables")
                same = [getattr(row, name) for name in (*names, "cpus", "instruction_set")]
                hashes = [row.weights_hash, row.losses_hash] if isinstance(row, SampleRow) else []
                result[type(row).__name__, repr([*same, *hashes])] += 1
    return result


@pytest.mark.slurm
@pytest.mark.timeout(900)
def test_a_sweep_survives_what_happens_to_nodes(tmp_path):
    """Check that a node that dies and comes back, a requeue, a cancelled array, and a time limit leave the rows that a
    plain sweep leaves, each once, and a report; `status` and `sbatch` say what they should on the way."""
    file, out, plain = tmp_path / "small.toml", tmp_path / "on nodes", tmp_path / "plain"
    file.write_text(SMALL)
    (tmp_path / "slurm").mkdir()
    with TwoNodes(tmp_path / "slurm") as nodes:

        def run(*words, code=0):
            result = run_forktask(*words, variables=nodes.environment, cwd=tmp_path, timeout=None)
            assert result.returncode == code, result.stderr
            return result.stdout + result.stderr

        on_slurm = ("run", "small.toml", "--on", "slurm", "--out", str(out))
        file.write_text(SMALL.replace('"test"', '"nowhere"'))
        assert "invalid partition" in run(*on_slurm, "--detach", code=2)
        file.write_text(SMALL)
        assert "2 tasks" in run(*on_slurm, "--detach")
        (first,) = [path for path in out.glob("slurm/*") if (path / "job_id").exists()]
        job_id = (first / "job_id").read_text()

        def has_begun(name):
            return lambda: (first / name / "begun").exists()

        nodes.until(has_begun("0.0"), "the first task begins")
        nodes.until(has_begun("1.0"), "the second task begins")
        of_task = dict(line.split() for line in nodes.call("squeue", "-h", "-r", "-t", "R", "-o", "%K %N").splitlines())
        killed = of_task["0"]
        nodes.kill_node(killed)
        nodes.call("scontrol", "requeue", f"{job_id}_1")
        nodes.until(has_begun("1.1"), "the requeued task begins again")
        nodes.start_node(killed)
        nodes.until(has_begun("0.1"), "the task of the dead node begins again")
        text = json.loads(run("status", str(out), "--json"))["jobs"]
        assert text["jobs"] == [job_id] and text["running"] == SHARDS and text["queued"] == text["ended"] == 0
        nodes.call("scancel", job_id)
        nodes.until(lambda: not nodes.call("squeue", "-h", "--me"), "the array is gone")

        # One task for all that is missing, which is more than a minute's: Slurm sends the signal in its last 40 s.
        limit = 'shards_per_task = 99\ntime = "0:01:00"\nend_before_s = 10'
        file.write_text(SMALL.replace("shards_per_task = 5", limit))
        run(*on_slurm, "--detach")
        nodes.until(lambda: not nodes.call("squeue", "-h", "--me"), "the limit is reached")
        logs = "".join(path.read_text() for path in out.glob("slurm/*/*.log"))
        assert re.search("the time limit is near|DUE TO TIME LIMIT", logs), "the second where a shard takes a minute"

        file.write_text(SMALL.replace("shards_per_task = 5", "shards_per_task = 3"))
        run(*on_slurm)
        assert (out / "report.html").exists()
        assert re.search(r"complete$", run("status", str(out)), re.MULTILINE)
        before = (out / "samples.jsonl").read_bytes()
        run(*on_slurm)
        assert (out / "samples.jsonl").read_bytes() == before, "what is complete is left alone"

        file.write_text(SMALL.replace("target_s = 4.0", "target_s = 0.02"))
        run("run", "small.toml", "--out", str(plain))
    assert without_times(out) == without_times(plain)
    assert {row.node.scheduler for row in read_results(out).of(MachineRow)} == {"n0", "n1"}
    assert main(["report", str(out)]) == 0
