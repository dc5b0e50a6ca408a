"""Changed keys of every file that is read, and files that are none: one sentence, or a value of the right type."""

import copy
import json
import tomllib
from contextlib import suppress

import pytest
from experiments.simulate.folders import MACHINE, results_folder
from experiments.synthetic_results import NODE, completed, trace_row, typed, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.speeds import main_plan
from forktask.experiments.commands.main import main
from forktask.experiments.diagnosis.case import Case
from forktask.experiments.diagnosis.diagnose import diagnose
from forktask.experiments.report.exports import export_folder
from forktask.experiments.report.rendering import render_text
from forktask.experiments.report.sections import build
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import KINDS, parse_row
from forktask.experiments.scaling.model import BASELINE, Baselines, differences
from forktask.experiments.simulate.machine_model import read_machine
from forktask.experiments.simulate.predict import error_text, knows_machine, missing, prediction_table
from forktask.experiments.studies.configuration import read_study
from forktask.experiments.sweep.configuration import (
    ARGUMENTS,
    AXES,
    Measure,
    fields,
    parse_configuration,
    read_configuration,
)
from forktask.experiments.sweep.status import describe_status

REMOVED = object()
BAD = st.one_of(
    st.sampled_from([None, True, "", "x", -1, 0, 1e300, 2**60, 2**70, [], {}, [[]], [None], {"": 1}, "NaN"]),
    st.integers(),
    st.text(max_size=5),
)
CHANGE = st.one_of(st.just(REMOVED), BAD)
DRAWN = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def places(value, path=()):
    """Paths to all values within nested lists and mappings; of lists the first element only."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def changed(value, path, new):
    """A copy with one value changed, or taken out."""
    result = copy.deepcopy(value)
    holder = result
    for key in path[:-1]:
        holder = holder[key]
    if new is REMOVED:
        del holder[path[-1]]
    else:
        holder[path[-1]] = new
    return result


def as_toml(value):
    """A value as TOML writes it within a line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {as_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    return "nan" if value is None else json.dumps(value)


def write_toml(path, values):
    path.write_text("".join(f"{json.dumps(key)} = {as_toml(value)}\n" for key, value in values.items()))


def write_json(path, values):
    path.write_text(json.dumps(values) + "\n")


PREDICTED = {"work_us": 2.0, "span_us": 1.0, "cycle_mean_us": 1.0}
PREDICTED["threads"] = {"2": {"forkjoin_us": 1.5, "speedup": {"forkjoin": 1.3, "taskgraph": 2.0, "taskiter": 2.0}}}
GRAPH = {"tasks": 2, "edges": 1, "cross_edges": 1, "joins": 0, "loops": {"add.0": {"blocks": 2, "edges": 1}}}
ENTRY = {"graph": GRAPH, "block_ns": {"add.0": [1000, 1000]}, "predicted": PREDICTED}
STUDY = {
    "title": "small",
    "train": {"network": ["lenet5", "cifar10_cnn"], "model": "serial", "epochs": 2, "seeds": 2, "betas": [0.9, 0.99]},
    "study": {"accuracy": [0.9], "time_limit_s": 60.0},
    "stages": [{"learning_rate": 0.1}, {"frozen": "conv1"}],
    "quick": {"epochs": 1},
}
ROUND = {
    "order": [[0]],
    "spin_s": [[1e-3]],
    "handover_s": [None],
    "wall_s": [0.1],
    "steal_ticks": [0],
    "pressure_us": [0],
}


def use_baseline(path):
    entry = Baselines(False).entry(path.parent, "test", "subject")
    if entry is not None:
        differences(entry, {**ENTRY, "assumed": []})
        differences({**ENTRY, "assumed": []}, {**entry, "assumed": []})


def use_machine(path):
    machine = read_machine(str(path))
    machine.sharing(8)
    machine.memory_seconds(machine.bandwidth_bytes_per_s and read_machine(str(path)).sharing(2)[0], 1e9)


# Kind of file -> its name, how it is written, its content, and what reads and uses it.
FILES = {
    "baseline": (BASELINE, write_json, {"schema_version": 1, "tests": {"test": {"subject": ENTRY}}}, use_baseline),
    "study": ("study.toml", write_toml, STUDY, lambda path: read_study(path).quick().trainings()),
    "machine": ("machine.toml", write_toml, tomllib.loads(MACHINE.to_toml()), use_machine),
}


@pytest.mark.parametrize("kind", FILES)
@DRAWN
@given(data=st.data())
def test_changed_files_are_refused_or_read(kind, data, tmp_path):
    """Check each key of each kind of file, and that the file itself is right."""
    name, write, content, use = FILES[kind]
    path = tmp_path / name
    write(path, content)
    use(path)
    write(path, changed(content, data.draw(st.sampled_from(list(places(content)))), data.draw(CHANGE)))
    before = path.read_bytes()
    try:
        use(path)
    except UsageError as error:
        assert "\n" not in str(error)
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of a folder that every command can read: one of each kind at least, but for those of a GPU and of metg."""
    folder, _ = results_folder(tmp_path_factory.mktemp("results"))
    result = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    plan = next(row for row in result if row["kind"] == "plan")
    capacity = {"kind": "capacity", "repetition": 0, "capacity": {"2": 1.9}}
    failure = {"kind": "failure", "model": "joblib", "threads": 2, "plan_id": plan["plan_id"], "config_id": "f"}
    failure |= {"reason": "timeout", "message": "too long"}
    rounds = {"kind": "rounds", "plan_id": plan["plan_id"]}
    session = {"kind": "session", "node": NODE, "generations": 9}
    return [completed(row) for row in (*result, rounds, capacity, failure, session, trace_row(plan["plan_id"]))]


def one_of_each(rows):
    """The number of the first row of each kind."""
    return {row["kind"]: number for number, row in reversed([*enumerate(rows)])}


def test_every_field_is_required_and_typed(rows):
    """Check each field of each kind of row: without it, or with a value of another type, the sentence names it."""
    assert {*one_of_each(rows)} == {*KINDS} - {"gpu_profile", "metg", "metg_failure", "durations", *OF_TRAININGS}
    for row in (rows[number] for number in one_of_each(rows).values()):
        typed([row])
        for name in row.keys() - {"interference", "layers_id"}:
            with pytest.raises(ValueError, match=name):
                typed_as_written(changed(row, (name,), REMOVED))
            for wrong in (object_of_another_type(row[name]), "NaN"):
                with pytest.raises(ValueError, match=name if wrong != "NaN" else "malformed|invalid"):
                    typed_as_written(changed(row, (name,), wrong))


def object_of_another_type(value):
    """A value that no field takes which takes this one."""
    return 3 if isinstance(value, dict) else [True] if value is None else {"": 1}


def typed_as_written(row):
    return parse_row(json.dumps(row).replace('"NaN"', "NaN").encode())


def use_of_commands(folder):
    """What report, simulate and diagnose do with the rows of a folder, without pictures."""
    describe_status(read_results(folder))
    sweep = load(folder)
    render_text(build(sweep))
    export_folder(folder, ["csv", "bmf"])
    plan_id = main_plan(sweep)
    if knows_machine(sweep) and not missing(sweep, plan_id):
        error_text(prediction_table(sweep, plan_id, (1, 2)))
        diagnose(Case(sweep, plan_id))


@settings(DRAWN, max_examples=40)
@given(data=st.data())
def test_changed_rows_are_refused_or_read(data, rows, tmp_path):
    """Check that a changed value of a row, as deep as it goes, never ends in anything but an answer or one sentence."""
    number = one_of_each(rows)[data.draw(st.sampled_from(sorted(one_of_each(rows))))]
    path = data.draw(st.sampled_from(list(places(rows[number]))))
    damaged = [*rows[:number], changed(rows[number], path, data.draw(CHANGE)), *rows[number + 1 :]]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in damaged))
    try:
        use_of_commands(tmp_path)
    except UsageError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("command", ["report", "diagnose", "simulate", "report --csv", "status"])
def test_damaged_rows_are_one_sentence_of_every_command(command, rows, tmp_path, capsys):
    """Check exit code 2, and that the sentence names file, line, field and what was expected; nothing is lost."""
    number = one_of_each(rows)["sample"]
    write_rows(tmp_path, [*rows[:number], {**rows[number], "disturbance": "much"}, *rows[number + 1 :]])
    before = (tmp_path / "samples.jsonl").read_bytes()
    name, *options = command.split()
    assert main([name, str(tmp_path), *options]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "Expected `object`, got `str`" in text
    assert f"{tmp_path / 'samples.jsonl'}" in text and f"line {number + 1} " in text and "disturbance" in text
    assert (tmp_path / "samples.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "kind, damage",
    [
        ("rounds", {"pressure_us": []}),
        ("rounds", {"wall_s": [0.0]}),
        ("rounds", {"handover_s": []}),
        ("rounds", {"spin_s": [[]], "order": [[]]}),
        ("rounds", {"order": [[7]]}),
        ("rounds", {"steal_ticks": [0, 0]}),
        ("rounds", {"additions_per_cycle": {"0": [4.8, 4.8]}}),
        ("sample", {"rounds": [0, 1, 2]}),
        ("sample", {"long_steps": 1, "short_steps": 1}),
        ("sample", {"warmup_lengths": []}),
    ],
)
def test_lists_of_a_row_belong_together(kind, damage, rows, tmp_path, capsys):
    """Check that lists of unequal length, and turns without a contestant or a time, are one sentence of the report."""
    number = one_of_each(rows)[kind]
    if kind == "rounds":  # of one round
        rows = [*rows[:number], {**rows[number], **ROUND}, *rows[number + 1 :]]
    if "warmup_lengths" in damage:
        damage = {**damage, "warmup_times_s": [0.1]}
    write_rows(tmp_path, rows)
    read_results(tmp_path)
    write_rows(tmp_path, [*rows[:number], {**rows[number], **damage}, *rows[number + 1 :]])
    assert main(["report", str(tmp_path)]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and f"line {number + 1} is not" in text


@settings(DRAWN, max_examples=150)
@given(key=st.sampled_from([ARGUMENTS, *AXES, *(f.name for f in fields(Measure))]), new=BAD)
def test_changed_sweeps_are_refused_or_expanded(key, new):
    """Check each key of a sweep file with values of any type."""
    table = "grid" if key in (ARGUMENTS, *AXES) and key != "seed" else "measure"
    values = {"grid": {"batch": 8}, "measure": {}}
    values[table][key] = float("nan") if new is None else new
    with suppress(UsageError):
        parse_configuration(values).points()


OF_TRAININGS = {"evaluated", "epoch", "trained", "training", "training_failure", "loading", "loading_failure"}


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 100_000, "a." * 3_000 + "b = 1", "[grid]\nbatch = nan", "[grid]\nbatch = inf", "\0", "[grid"],
    ids=["deep list", "deep key", "NaN", "infinity", "NUL", "cut"],
)
def test_files_that_are_no_toml(text, tmp_path):
    """Check nesting, numbers that are none, and what is no TOML, in every file of TOML."""
    path = tmp_path / "file.toml"
    path.write_text(text)
    for read in (read_configuration, read_study, lambda path: read_machine(str(path))):
        with pytest.raises(UsageError, match=r"\A.*\Z"):
            read(path)


@pytest.mark.parametrize("text", ["", "null", "[]", "[" * 100_000, '{"a":' * 50_000, "\xff", '{"kind": NaN}', "1e400"])
def test_files_that_are_no_json(text, tmp_path):
    """Check deep nesting, cut files and numbers that are none, in every file of JSON."""
    for name, write, _, use in FILES.values():
        if write is write_json:
            (tmp_path / name).write_bytes(text.encode("latin-1") + b"\n")
            with pytest.raises(UsageError, match=r"\A.*\Z"):
                use(tmp_path / name)
    (tmp_path / "samples.jsonl").write_bytes(text.encode("latin-1") + b"\n")
    with pytest.raises(UsageError):
        read_results(tmp_path)


def test_grids_of_a_milliard_points_are_refused(tmp_path, capsys):
    """Check that the size of a grid is known before it is expanded."""
    numbers = json.dumps(list(range(1, 4000)))
    sweep, study = tmp_path / "sweep.toml", tmp_path / "study.toml"
    some = json.dumps(list(range(1, 400)))
    sweep.write_text(f"[grid]\nbatch = {some}\nsequence = {some}\ndropout_seed = {some}\n")
    study.write_text(f"[train]\nbatch = {some}\nepochs = {some}\ndropout_seed = {some}\n")
    assert main(["run", str(sweep), "--dry-run"]) == 2 and "at most" in capsys.readouterr().err
    assert main(["run", str(study), "--out", str(tmp_path / "out")]) == 2 and "runs" in capsys.readouterr().err
    sweep.write_text(f"[grid]\nbatch = {numbers}\n")
    assert main(["run", str(sweep), "--dry-run"]) == 2 and "bytes" in capsys.readouterr().err
