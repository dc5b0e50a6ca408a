"""Joining results folders: what comes together, what is refused, and that nothing is lost."""

import json

import msgspec
import pytest
from experiments.synthetic_results import report_text, synthetic_rows, typed, write_rows

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.load import load
from forktask.experiments.cluster.merge import merge_folders
from forktask.experiments.commands.main import main
from forktask.experiments.report.verdicts import node_rows
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import FailureRow, MachineRow, RunRow, SampleRow

MODELS = ("serial", "forkjoin", "taskiter")
OF_GENERATION = ("sample", "profile")
ROWS = [row for row in synthetic_rows(models=MODELS, threads=(2,), repeats=7, profiles=2) if row["kind"] != "failure"]


def on(node, repetitions, change=lambda row: row, rows=ROWS, nodes="pooled"):
    """The rows of some repetitions, as a node leaves them."""
    where = {"host": node, "scheduler": "", "boot_id": f"boot of {node}"}
    result = []
    for row in rows:
        row = json.loads(json.dumps(row))
        if row["kind"] == "run":
            row["environment"] |= {"node": where, "kernel": "6.1", "affinity": [0, 1], "load_average": [len(node)]}
            row["config"]["nodes"] = nodes
        if row["kind"] in (*OF_GENERATION, "machine"):
            row["node"] = where
        if row["kind"] not in OF_GENERATION or row["repetition"] in repetitions:
            result.append(change(row))
    return result


def by_generation(rows):
    """Rows with those of each generation side by side."""
    return sorted(rows, key=lambda row: row.get("repetition", -1))


def write(tmp_path, **nodes):
    return [write_rows(tmp_path / name, by_generation(on(name, own))) for name, own in nodes.items()]


def measured(folder):
    """(config_id, repetition, node) of the samples of a folder."""
    return sorted((row.config_id, row.repetition, row.node.host) for row in read_results(folder).of(SampleRow))


def test_each_generation_is_there_once(tmp_path):
    """Check the union of folders that share generations, a machine and a run row for each node, that joining again or a
    part at a time changes nothing, and that the sources stay as they are."""
    folders = write(tmp_path, a=(0, 1, 2), b=(2, 3), c=(3, 4, 5, 6))
    before = [(f / "samples.jsonl").read_bytes() for f in folders]
    merged = merge_folders(folders, tmp_path / "out")
    assert (merged.rows["run"], merged.rows["machine"], merged.rows["plan"]) == (3, 3, 1)
    points = {row["config_id"] for row in ROWS if row["kind"] == "sample"}
    where = {0: "a", 1: "a", 2: "a", 3: "b", 4: "c", 5: "c", 6: "c"}
    assert measured(tmp_path / "out") == sorted((c, r, node) for c in points for r, node in where.items())
    assert merged.dropped == 2 * len(points)
    content = (tmp_path / "out" / "samples.jsonl").read_bytes()
    for some in (folders, folders[:1]):
        merge_folders(some, tmp_path / "out")
        assert (tmp_path / "out" / "samples.jsonl").read_bytes() == content
    merge_folders(folders[:1], tmp_path / "parts")
    merge_folders(folders[1:], tmp_path / "parts")
    assert (tmp_path / "parts" / "samples.jsonl").read_bytes() == content
    assert [(f / "samples.jsonl").read_bytes() for f in folders] == before


def test_a_generation_that_broke_off_is_taken_from_where_it_is_whole(tmp_path):
    """Check that a half-written row is left out, that the other copy of its generation comes whole, and that no failure
    takes the place of a sample."""
    rows = by_generation(on("a", (0, 1)))
    text = b"".join(msgspec.json.encode(row, enc_hook=str) + b"\n" for row in typed(rows)).decode()
    cut = write_rows(tmp_path / "a", []) / "samples.jsonl"
    cut.write_text(text[:-40])
    sample = next(row for row in ROWS if row["kind"] == "sample")
    failed = {key: sample[key] for key in ("config_id", "model", "threads", "plan_id")}
    failure = {"kind": "failure", **failed, "repetition": 0, "reason": "crash", "message": "lost"}
    whole = write_rows(tmp_path / "b", [*by_generation(on("b", (1,))), failure])
    merge_folders([tmp_path / "a", whole], tmp_path / "out")
    result = measured(tmp_path / "out")
    assert {(c, r) for c, r, _ in result} == {
        (row["config_id"], row["repetition"]) for row in rows if row["kind"] == "sample"
    }
    assert sum(r == 1 and node == "b" for _, r, node in result) == len(MODELS)
    assert read_results(tmp_path / "out").of(FailureRow) == []


def test_a_generation_that_broke_off_is_not_there_twice(tmp_path):
    """Check that samples without those of all contestants of their turns give way to a whole copy in another folder,
    whichever comes first, and stay where there is none."""

    def generation(node, repetition, count):
        samples = [row for row in on(node, (repetition,)) if row["kind"] == "sample"]
        turns = {"order": [[0, 1, 2]], "spin_s": [[1e-6] * 3], "handover_s": [None], "wall_s": [1.0]}
        turns |= {"group": 0, "steal_ticks": [0], "pressure_us": [0], "contestants": [r["config_id"] for r in samples]}
        about = {name: samples[0][name] for name in ("plan_id", "interference", "repetition", "node")}
        return [{"kind": "rounds", **about, **turns}, *samples[:count]]

    whole = [*on("a", ()), *generation("a", 0, 3)]
    a = write_rows(tmp_path / "a", [*whole, *generation("a", 1, 2)])
    b = write_rows(tmp_path / "b", [*on("b", ()), *generation("b", 1, 3), *generation("b", 2, 1)])
    for number, folders in enumerate(([a, b], [b, a])):
        merged = merge_folders(folders, tmp_path / str(number))
        where = {(repetition, node) for _, repetition, node in measured(tmp_path / str(number))}
        assert where == {(0, "a"), (1, "b"), (2, "b")}
        assert merged.rows["sample"] == 7 and merged.dropped == 2


def test_a_point_that_a_node_cannot_reach_is_crossed_out_there(tmp_path):
    """Check column and verdict of a ratio on the node where two threads are ten times as fast as one."""

    def fast(row):
        if row["kind"] == "sample" and row["model"] == "taskiter":
            for kind in ("short_times_s", "long_times_s"):
                row[kind] = [0.1 * time for time in row[kind]]
            row["step_time_s"] *= 0.1
        return row

    nodes = {"a": on("a", range(3), fast), "b": on("b", range(3, 7))}
    folders = [write_rows(tmp_path / name, by_generation(rows)) for name, rows in nodes.items()]
    merge_folders(folders, tmp_path / "out")
    sweep = load(tmp_path / "out")
    (plan_id,) = sweep.plan_ids()
    rows = {row["node"]: row for row in node_rows(sweep, plan_id)}
    assert not rows["a"]["usable"] and rows["a"]["verdict"] == "not usable"
    assert rows["b"]["usable"] and rows["b"]["verdict"] != "not usable"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: {**row, "config": {**row["config"], "seed": 2}}, "another configuration: seed differ"),
        (lambda row: {**row, "config": {**row["config"], "batch": [8]}}, "another configuration: batch differ"),
        (lambda row: {**row, "environment": {**row["environment"], "forktask": "0.2"}}, "the same version of forktask"),
        (lambda row: {**row, "environment": {**row["environment"], "kernel": "6.2"}}, "the same kernel"),
        (lambda row: {**row, "environment": {**row["environment"], "affinity": [0]}}, "the same CPUs to run on"),
        (lambda row: {**row, "environment": {**row["environment"], "cpu": {"model": "B"}}}, "the same model of CPU"),
        (lambda row: {**row, "holds": "metg"}, "holds metg, not samples"),
    ],
)
def test_what_does_not_belong_together_is_refused(tmp_path, change, said):
    """Check one sentence for each difference, and that no folder is left."""
    one = write_rows(tmp_path / "a", on("a", (0,)))
    other = write_rows(tmp_path / "b", on("b", (1,), lambda row: change(row) if row["kind"] == "run" else row))
    with pytest.raises(UsageError, match=said):
        merge_folders([one, other], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_second_node_needs_leave(tmp_path, capsys):
    """Check that folders of several nodes are joined only where that was asked for, by file or argument, on the command
    line too, and that what is no folder of results, or is in use, is refused."""
    folders = [write_rows(tmp_path / name, on(name, own, nodes="one")) for name, own in {"a": (0,), "b": (1,)}.items()]
    out = str(tmp_path / "out")
    assert main(["merge", *map(str, folders), "--out", out]) == 2
    assert "must come from one node" in capsys.readouterr().err
    assert main(["merge", *map(str, folders), "--out", out, "--nodes", "pooled"]) == 0
    assert "2 machines, 6 samples, 6 profiles, 0 failures; 0 second copies" in capsys.readouterr().out
    assert main(["merge", *map(str, folders), "--out", out, "--nodes", "pooled", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rows"]["sample"] == 6 and result["dropped"] == 12
    assert len(read_results(out).of(MachineRow)) == len(read_results(out).of(RunRow)) == 2
    with pytest.raises(UsageError, match="a results folder must hold"):
        merge_folders([tmp_path / "nothing"], out)
    with pytest.raises(UsageError, match="a results folder must hold"):
        merge_folders([tmp_path / "nothing"], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "a.txt").touch()
    with pytest.raises(UsageError, match="must be empty or hold results"):
        merge_folders(folders, tmp_path / "foreign")


def test_pooled_nodes_are_compared_within_nodes(tmp_path):
    """Check that a slow node moves no ratio, although plans were measured on other nodes, and that two nodes' report
    opens and names both."""
    rows = synthetic_rows(models=MODELS, threads=(2,), batches=(32, 64), repeats=14, profiles=2, noise=0.002)
    plans = [row["plan_id"] for row in rows if row["kind"] == "plan"]

    def half(slow):
        """Each node has every second generation of the first plan, and the others of the second one."""

        def change(row):
            if row["kind"] == "sample" and slow:
                row["step_time_s"] *= 3
            return row

        def is_here(row):
            if row["kind"] not in OF_GENERATION:
                return True
            return (row["repetition"] + plans.index(row["plan_id"]) + slow) % 2 == 0

        return [row for row in on("ab"[slow], range(14), change, rows) if is_here(row)]

    folders = [write_rows(tmp_path / str(slow), by_generation(half(slow))) for slow in (0, 1)]
    merge_folders(folders, tmp_path / "out")
    sweep, alone = load(tmp_path / "out"), load(write_rows(tmp_path / "all", rows))
    for small, large in ((("serial", 1), ("serial", 1)), (("taskiter", 2), ("forkjoin", 2))):
        points = (plans[1], *large), (plans[0], *small)
        assert sweep.times.ratio(*points).value == pytest.approx(alone.times.ratio(*points).value, rel=0.02)
        assert sweep.times.ratio(*points).high / sweep.times.ratio(*points).low < 1.1
    text = report_text(tmp_path / "out")
    assert "What differs between nodes" in text
