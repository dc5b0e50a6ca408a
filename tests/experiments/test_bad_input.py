"""Bad values for every option, every key of every file, and environments: one sentence and exit code 2, in no time."""

import copy
import json
import os
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from contextlib import suppress

import msgspec
import pytest
from experiments.synthetic_results import synthetic_rows, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forktask.cython_src.binding.executor import BaseExecutor
from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.load import load
from forktask.experiments.commands.main import COMMANDS, main, make_parser
from forktask.experiments.report.render_text import render_text
from forktask.experiments.report.sections import build
from forktask.experiments.sampling.results import read_results
from forktask.experiments.sweep.configuration import AXES, Measure, fields
from forktask.experiments.sweep.status import describe_status
from forktask.experiments.sweep.tuned import keep_tuned, read_tuned
from forktask.experiments.training.checkpoints import State
from forktask.experiments.training.config import TrainingConfig
from forktask.experiments.training.train import read_marker

LIMIT_S = 10
# What commands need besides the option under test, so that it is the only thing wrong.
REQUIRED = {
    "run": ["none.toml"],
    "status": ["none"],
    "report": ["none"],
    "plot": ["none"],
    "generate": ["--checkpoint", "none"],
    "gate": ["--against", "HEAD"],
    "scaling_power": ["--simulate", "1"],
}
NO_TEXT = ["", "a\0b", "\x1b[2J", "\ud800", "x" * 5000]
NO_NUMBER = [
    "nan",
    "inf",
    "-inf",
    "1e20",
    "1" * 30,
    "-1",
    "٣",
    "１",
    "0x10",
    "1_000",
    " 1",
    "1;",
    "--",
    "1e999",
    "None",
]


class Accepted(BaseException):
    """A command was about to start processes or to run a plan."""


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch):
    """Let no command get as far as measuring."""

    def refuse(*arguments, **options):
        raise Accepted

    monkeypatch.setattr(BaseExecutor, "prepare", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


def call(words, capsys):
    """The exit code of a command (None: it was accepted) and its messages, once those were found to be in order."""
    start = time.monotonic()
    try:
        code = main(words)
    except Accepted:
        code = None
    except SystemExit as error:
        code = error.code
    said = capsys.readouterr().err
    assert time.monotonic() - start < LIMIT_S, words
    assert code != 70 and "Traceback" not in said, f"{words}\n{said}"
    if code == 2:
        assert said.startswith("forktask: error: ") and said.count("\n") == 1, f"{words}\n{said}"
    return code


def options():
    """(command, action) of every option that takes a value."""
    found = []
    for name in COMMANDS:
        parser = make_parser(name)
        command = next(iter(parser._subparsers._group_actions[0].choices.values()))
        command.declare(command)
        found += [(name, a) for a in command._actions if a.nargs not in (0,) and a.dest != "help"]
    return found


def is_number(action):
    """Whether an option takes numbers only."""
    if action.type is None or action.choices:
        return False
    try:
        action.type("1")
    except (ArgumentTypeError, ValueError):
        return False
    try:
        action.type("no number")
    except (ArgumentTypeError, ValueError):
        return True
    return False


@pytest.mark.parametrize(("command", "action"), [pytest.param(*o, id=f"{o[0]}-{o[1].dest}") for o in options()])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_option_refuses_nonsense(command, action, data, capsys):
    """Check what no option takes, what no number is, and what is none of the choices."""
    bad = list(NO_TEXT)
    if is_number(action):
        bad = NO_NUMBER + NO_TEXT[:2]
    elif action.choices:
        bad = ["nonsense", *NO_TEXT[:2]]
    value = data.draw(st.sampled_from(bad))
    required = REQUIRED.get(command, [])
    if action.option_strings:
        flag = action.option_strings[-1]
        words = [command.replace("_", "-"), *required, f"{flag}={value}"]
    else:
        words = [command.replace("_", "-"), value]
    assert call(words, capsys) == 2, words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "did you mean 'train'"),
        ("compare --thread-count 2", "no such argument: --thread-count"),
        ("compare --batches 2", "did you mean '--batch'"),
        ("compare --threads 99999999999 --oversubscribe", "[1, 4096]"),
        ("compare --interference 1000", "[0, 128]"),
        ("compare --models , --batch 8", "at least one model"),
        ("compare --granularity images=100000000000000000000", "granularity must be"),
        ("compare --granularity images=٣", "granularity must be"),
        ("compare --granularity rows=1000", "rows"),
        ("compare --batch 2147483648", "below 65537"),
        ("compare --repeats 100000000000000000000", "--repeats"),
        ("compare --target nan", "--target"),
        ("compare --betas 0.9,inf", "betas"),
        ("compare --network cifar10_cn", "did you mean 'cifar10_cnn'"),
        ("compare --models forkjion", "did you mean 'forkjoin'"),
        ("memory --plan-only --memory-limit 1G --batch 2147483648", "below 65537"),
        ("memory --memory-limit 1e400", "memory limit"),
        ("memory --memory-limit nan", "memory limit"),
        ("compare --models taskiter:unroll=٣", "whole number"),
        ("compare --models tasks:window=99999999999999999999", "whole number"),
        ("compare --budget １min", "such as 90s"),
        ("metg --batch 8", "--batch"),
        ("metg --width 65536 --steps 65536", "at most 1000000 tasks"),
        ("metg --pattern stencil_1", "did you mean 'stencil_1d'"),
        ("tune --seed -1", "--seed"),
        ("tune --budget 1", "--budget"),
        ("tune --seconds inf", "--seconds"),
        ("kernels --cpu 9999", "--cpu"),
        ("generate --checkpoint /dev/zero", "no file"),
        ("train --start /dev/zero --data synthetic:16 --batch 8", "regular file"),
        ("train --data synthetic:10000000000000000000000", "synthetic"),
        ("infer --checkpoint /dev/null", "no file"),
        ("infer --data synthetic:-1", "synthetic"),
        ("run /dev/zero", "regular file"),
        ("report /dev", "samples.jsonl"),
        ("gate --against HEAD --build {foo}", "{source}"),
        ("gate --against HEAD --build '", "--build"),
        ("gate --against HEAD --summary /none/summary.md", "/none"),
        ("gate --against HEAD --jsonl /none/rows.jsonl", "/none"),
    ],
)
def test_cases_by_name(words, said, capsys, tmp_path, monkeypatch):
    """Check values that once ended in a traceback, in a hang, or in silence."""
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    assert main(words.split()) == 2
    assert time.monotonic() - start < LIMIT_S
    error = capsys.readouterr().err
    assert error.startswith("forktask: error: ") and error.count("\n") == 1 and said in error, error
    assert os.listdir(tmp_path) == []


BAD = st.one_of(
    st.sampled_from([None, True, "", "x", -1, 0, 1e300, 2**60, 2**70, [], {}, [[]], [None], {"": 1}, "NaN"]),
    st.integers(),
    st.text(max_size=5),
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


REMOVED = object()
CHANGE = st.one_of(st.just(REMOVED), BAD)
ROWS = synthetic_rows(models=("serial", "forkjoin", "taskiter"), repeats=3, failures=True)
ONE_OF_EACH = [next(i for i, row in enumerate(ROWS) if row["kind"] == kind) for kind in ("run", "machine", "plan")]
ONE_OF_EACH += [next(i for i, row in enumerate(ROWS) if row["kind"] == kind) for kind in ("sample", "profile")]
ONE_OF_EACH += [len(ROWS) - 1]
LOADED = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@LOADED
@given(data=st.data())
def test_changed_rows_are_refused_or_read(data, tmp_path):
    """Check that a changed key of a row never ends in anything but a report or one sentence."""
    number = data.draw(st.sampled_from(ONE_OF_EACH))
    path = data.draw(st.sampled_from(list(places(ROWS[number]))))
    new = data.draw(CHANGE)
    rows = [*ROWS]
    rows[number] = changed(rows[number], path, new)
    write_rows(tmp_path, rows)
    try:
        study = load(tmp_path)
        render_text(build(study))
    except UsageError as error:
        assert "\n" not in str(error)
    with suppress(UsageError):
        describe_status(read_results(tmp_path))


@settings(LOADED, max_examples=60)
@given(key=st.sampled_from([*AXES, *(f.name for f in fields(Measure))]), new=BAD)
def test_changed_sweeps_are_refused_or_expanded(key, new, tmp_path, capsys):
    """Check each key of a sweep file with values of any type."""
    table = "grid" if key in AXES and key != "seed" else "measure"
    if isinstance(new, dict) or new is None or new == [None]:
        text = f"[{table}]\n{key} = {{x = 1}}\n"
    else:
        text = f"[{table}]\n{key} = {json.dumps(new)}\n"
    (tmp_path / "sweep.toml").write_text("[grid]\nbatch = 8\n" * (table != "grid") + text)
    assert call(["run", str(tmp_path / "sweep.toml"), "--dry-run"], capsys) in (0, 2)


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 100_000, "a." * 8_000 + "b = 1", "[grid]\nbatch = nan", "[grid]\nbatch = inf", "\0", "[grid"],
    ids=["deep list", "deep key", "NaN", "infinity", "NUL", "cut"],
)
def test_sweeps_that_are_none(text, tmp_path, capsys):
    """Check nesting, numbers that are none, and what is no TOML."""
    (tmp_path / "sweep.toml").write_text(text)
    assert call(["run", str(tmp_path / "sweep.toml"), "--dry-run"], capsys) == 2


def test_a_sweep_of_a_milliard_points_is_refused(tmp_path, capsys):
    """Check that the size of a grid is known before it is expanded."""
    numbers = json.dumps(list(range(1, 4000)))
    (tmp_path / "sweep.toml").write_text(f"[grid]\nbatch = {numbers}\nsequence = {numbers}\ndropout_seed = {numbers}\n")
    assert call(["run", str(tmp_path / "sweep.toml"), "--dry-run"], capsys) == 2


@settings(LOADED, max_examples=100)
@given(data=st.data())
def test_changed_tuned_files_are_refused_or_read(data, tmp_path):
    """Check each key of a file of `forktask tune`."""
    plan = {"network": "cifar10_cnn", **TrainingConfig().plan.as_dict()}
    row = {"model": "serial", "threads": 1, "granularity": "rows=1", "times": {"auto": [0.1]}, "step_time_s": 0.1}
    path = tmp_path / "tuned.json"
    path.unlink(missing_ok=True)
    keep_tuned(path, {"plan": plan, "candidates": ["auto"], "rows": [row]})
    content = json.loads(path.read_text())
    path.write_text(json.dumps(changed(content, data.draw(st.sampled_from(list(places(content)))), data.draw(CHANGE))))
    try:
        read_tuned(path)
    except UsageError as error:
        assert str(path) in str(error) and "\n" not in str(error)


@settings(LOADED, max_examples=100)
@given(data=st.data())
def test_changed_markers_are_refused_or_read(data, tmp_path):
    """Check each key of the marker of a training run."""
    content = {"format_version": 1, "config": TrainingConfig().as_dict()}
    content["config"]["betas"] = list(content["config"]["betas"])
    changes = changed(content, data.draw(st.sampled_from(list(places(content)))), data.draw(CHANGE))
    (tmp_path / "training.json").write_text(json.dumps(changes))
    try:
        read_marker(tmp_path)
    except UsageError as error:
        assert "training.json" in str(error) and "\n" not in str(error)


@settings(LOADED, max_examples=100)
@given(data=st.data())
def test_changed_states_of_checkpoints_have_another_type(data):
    """Check that whatever is read from a checkpoint's state has the type that it was written with."""
    epoch = {name: 1 if name in ("seed", "epoch") else 0.5 for name in State.__annotations__ and _columns()}
    content = {"format_version": 2, "network": "cifar10_cnn", "seed": 0, "epoch": 1, "iteration": 4, "history": [epoch]}
    msgspec.convert(content, State)
    path = data.draw(st.sampled_from(list(places(content))))
    new = data.draw(BAD.filter(lambda value: value not in (None, [])))
    try:
        found = msgspec.to_builtins(msgspec.convert(changed(content, path, new), State))
    except msgspec.ValidationError:
        return
    assert found["history"] == [] or all(isinstance(v, int | float) for v in found["history"][0].values())


def _columns():
    from forktask.experiments.training.checkpoints import HISTORY_COLUMNS

    return HISTORY_COLUMNS


@pytest.mark.parametrize("text", ["", "null", "[]", "[" * 100_000, '{"a":' * 50_000, "\xff", '{"kind": NaN}', "1e400"])
def test_files_that_are_no_json(text, tmp_path):
    """Check deep nesting, cut files and numbers that are none, in every file of JSON."""
    content = text.encode("latin-1")
    for name in ("tuned.json", "training.json", "samples.jsonl"):
        (tmp_path / name).write_bytes(content + b"\n")
    with pytest.raises(UsageError):
        read_tuned(tmp_path / "tuned.json")
    with pytest.raises(UsageError):
        read_marker(tmp_path)
    with pytest.raises(UsageError):
        read_results(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
@pytest.mark.parametrize(
    "command",
    [
        "run {}",
        "compare --tuned {} --batch 8",
        "tune --file {}",
        "infer --checkpoint {}",
        "generate --checkpoint {}",
        "train --start {} --data synthetic:16 --batch 8 --out {}.out",
        "gate --against HEAD --jsonl {}",
        "gate --against HEAD --summary {}",
        "scaling-power --file {}",
    ],
)
def test_what_is_no_regular_file_is_refused(command, make, tmp_path, capsys):
    """Check that nothing waits for a fifo and nothing takes a folder for a file."""
    make(tmp_path / "thing")
    assert call(command.format(*[tmp_path / "thing"] * 2).split(), capsys) == 2
    assert os.listdir(tmp_path) == ["thing"]


def in_new_process(words, **variables):
    """Run the command line in a fresh process with other variables of the environment."""
    program = [sys.executable, "-P", "-m", "forktask", *words]
    return subprocess.run(
        program, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def processes(monkeypatch):
    """Undo `nothing_is_measured`."""
    monkeypatch.undo()


TRAIN = [
    "train",
    "--data",
    "synthetic:32",
    "--batch",
    "8",
    "--epochs",
    "1",
    "--threads",
    "2",
    "--oversubscribe",
    "--model",
]


@pytest.mark.parametrize(
    ("words", "variables", "code"),
    [
        ([*TRAIN, "forkjoin"], {"OMP_THREAD_LIMIT": "1"}, 2),
        ([*TRAIN, "forkjoin"], {"OMP_DYNAMIC": "true"}, 2),
        ([*TRAIN, "openmp_tasks"], {"OMP_THREAD_LIMIT": "1"}, 2),
        ([*TRAIN, "taskiter"], {"MPLBACKEND": "garbage"}, 0),
        (["--version"], {"MPLBACKEND": "garbage", "OMP_NUM_THREADS": "x", "PYTHONIOENCODING": "ascii"}, 0),
    ],
    ids=["OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_THREAD_LIMIT of tasks", "MPLBACKEND", "version"],
)
def test_environments(words, variables, code, tmp_path, processes):
    """Check variables of the environment that keep threads or figures away."""
    out = ["--out", str(tmp_path / "out")] if words[0] == "train" else []
    done = in_new_process([*words, *out], **variables)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    if code:
        assert done.stderr.startswith("forktask: error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_and_options(shell, capsys):
    """Check that the program for each shell names every command and an option of each that has some."""
    assert main(["completion", shell]) == 0
    program = capsys.readouterr().out
    assert all(name.replace("_", "-") in program for name in COMMANDS)
    assert "weight-gradients" in program and "--granularity" in program


def test_completion_without_its_package(capsys, monkeypatch):
    """Check the sentence where the extra is missing."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "forktask[completion]" in capsys.readouterr().err


def test_the_version_is_there_at_once(processes):
    """Check that neither NumPy nor a library of figures is loaded for `--version`."""
    program = "import sys; from forktask.experiments.commands.main import main\ntry: main(['--version'])\nfinally: "
    program += "print(sorted({'numpy', 'pandas', 'matplotlib', 'seaborn', 'msgspec', 'joblib'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[1:] == ["[]"]


@pytest.mark.parametrize("end", ["| head -c0", "> /dev/full", ">&-"], ids=["closed pipe", "full disk", "closed"])
def test_output_that_nobody_takes(end, processes):
    """Check that no traceback comes, and no code 120 from the interpreter's own end."""
    command = f"set -o pipefail; {sys.executable} -P -m forktask networks {end}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {"| head -c0": (0, 141), "> /dev/full": (2,), ">&-": (0,)}[end], done
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
