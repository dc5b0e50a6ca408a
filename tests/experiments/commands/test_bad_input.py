"""Bad values for every option, every key of every file, and environments: one sentence and exit code 2, in no time."""

import json
import os
import re
import subprocess
import sys
import time
from argparse import SUPPRESS, ArgumentTypeError

import pytest
from experiments.results.test_faults import run_with_faults
from experiments.synthetic_results import synthetic_rows, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds import forms_of_models
from programs import run_forktask, run_python

from forktask.cython_src.binding.executor import BaseExecutor
from forktask.cython_src.lowering.options import PlanOptions
from forktask.cython_src.records import fields
from forktask.experiments.commands.main import COMMANDS, main, make_parser
from forktask.experiments.metg.metg import MetgSettings
from forktask.experiments.sweep.configuration import Measure
from forktask.experiments.training.checkpoints import read_checkpoint
from forktask.experiments.training.config import TrainingConfig

LIMIT_S = 10  # of CPU time, which other programs do not lengthen; what waits for ever meets the limit of the test
pytestmark = pytest.mark.timeout(120)
# What commands need besides the option under test, so that it is the only thing wrong.
REQUIRED = {
    "check_model": ["serial"],
    "run": ["none.toml"],
    "report": ["none"],
    "gate": ["--against", "HEAD"],
    "plan": ["--network", "lenet5", "--graph", "x.svg"],
}
NO_TEXT = ["", "a\0b", "\x1b[2J", "\ud800", "x" * 5000]
NO_NUMBER = ["nan", "inf", "-inf", "1e20", "1e999", "1" * 30, "-1", "0x10", "1_000", " 1", "1;", "--", "None"]
NO_NUMBER += ["٣", "１"]  # digits of other scripts


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
    start = time.process_time()
    try:
        code = main(words)
    except Accepted:
        code = None
    except SystemExit as error:
        code = error.code
    text = capsys.readouterr().err
    assert time.process_time() - start < LIMIT_S, words
    assert code != 70 and "Traceback" not in text, f"{words}\n{text}"
    if code == 2:
        assert text.startswith("forktask: error: ") and text.count("\n") == 1, f"{words}\n{text}"
    return code


def options():
    """(command, action) of every option that takes a value."""
    result = []
    for name in COMMANDS:
        parser = make_parser(name)
        command = next(iter(parser._subparsers._group_actions[0].choices.values()))
        command.declare(command)
        result += [(name, a) for a in command._actions if a.nargs not in (0,) and a.dest != "help"]
    return result


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


# Right values of options that take neither any number, nor any text, nor one of some choices.
RIGHT = {
    "algorithms": "forward:16x256x256x8x8=direct",
    "betas": "0.9,0.99",
    "budget": "8",
    "counters": "instructions,r3f24",
    "fusion": "residual",
    "granularity": "images=8",
    "augment": "flip,crop",
    "check_finite": "true",
    "every_s": "20min",
    "inject": "preemption",
    "recompute": "true",
    "label_smoothing": "0.1",
    "memory_limit": "1GiB",
    "momentum": "0.9",
    "places": "cores",
}


@pytest.mark.parametrize(("command", "action"), [pytest.param(*o, id=f"{o[0]}-{o[1].dest}") for o in options()])
def test_every_option_takes_a_right_value(command, action):
    """Check that each option of each command can be used, alone, and that its records take the value."""
    choices = action.choices or re.findall(r"[^{},]+", str(action.metavar)) if "{" in str(action.metavar) else ()
    value = RIGHT.get(action.dest) or next(iter(action.choices or choices), "1" if is_number(action) else "x")
    places = [] if not action.option_strings else {"simulate": ["none"], "merge": ["none"]}.get(command)
    required = (REQUIRED.get(command, []) if places is None else places) + ["--out", "x"] * (command == "merge")
    words = [f"{action.option_strings[-1]}={value}"] if action.option_strings else [str(value)]
    parsed = make_parser(command).parse_args([command.replace("_", "-"), *required, *words])
    assert getattr(parsed, action.dest) not in (None, SUPPRESS, ())
    value = getattr(parsed, action.dest)
    value = value[0] if isinstance(value, list) else value  # one of an axis
    for record in (Measure, PlanOptions, MetgSettings, TrainingConfig):
        if isinstance(value, {field.name: field.kind for field in fields(record)}.get(action.dest, ())):
            record(**{action.dest: value})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "did you mean 'train'"),
        ("compare --thread-count 2", "no such argument: --thread-count"),
        ("compare --batch 4 16 64", "no such argument: 16 64; several values of an option have commas between them"),
        ("compare --threads 99999999999 --oversubscribe", "[1, 4096]"),
        ("compare --interference 1000", "[0, 128]"),
        ("compare --granularity images=100000000000000000000", "granularity must be"),
        (
            "plan --network cifar10_cnn --momentum 0.5 --optimizer adam --batch 1",
            "for optimizer sgd, got adam; leave it out",
        ),
        ("compare --granularity images=1000 --batch 16,64", "at most the 64 images"),
        ("compare --batch 2147483648", "below 65537"),
        ("compare --network gpt2_small --batch 4000 --memory-limit 1GiB", "batch 4000: the plan needs at least"),
        ("metg --network gpt2_small --batch 65536", "batch 65536: the plan needs at least"),
        ("compare --granularity foo=1", "some of images, channels, rows, heads, a whole number"),
        ("train --lr 0.1", "did you mean '--learning-rate'"),
        ("compare --network cifar10_cn", "did you mean 'cifar10_cnn'"),
        ("plan --network lenet5 --memory-limit nan", "memory limit"),
        ("compare --models taskiter:slots=2", "must not exceed unroll, which is 1"),
        ("compare --repeats 2 --profile-repeats 3", "at most repeats, which is 2, got 3"),
        ("compare --network none.py:graph(grain=16", "are written as in file.py:function(grain=16"),
        ("compare --network none.py:graph(grain=16)", "no file 'none.py'"),
        ("metg --width 65536 --steps 65536", "at most 1000000 tasks"),
        ("metg --radix 3", "--radix is for the patterns nearest, spread, got stencil_1d; leave it out"),
        ("metg --network lenet5 --width 4", "--width is an option of Task Bench graphs"),
        ("plan --network lenet5,cifar10_cnn", "takes one value, got 'lenet5,cifar10_cnn'; give the command once"),
        ("run lenet5 --trace", "--trace is for sweeps, got it with the study lenet5; leave it out"),
        ("run checkerboard --repeats 3", "no such argument: --repeats 3"),
        ("train --start /dev/zero --data synthetic:16 --batch 8", "regular file"),
        ("report /dev", "samples.jsonl"),
        ("gate --against HEAD --build {foo}", "{source}"),
        ("gate --against HEAD --summary /none/summary.md", "/none"),
        ("metg --fusion=--", "--fusion must have a value, got '--fusion=--'"),
        ("train --tokenizer t.json --network lenet5", "--tokenizer is for networks of tokens, got it"),
        ("train --decoder simplejpeg --network gpt2_tiny", "--decoder is for networks of images"),
    ],
)
def test_cases_by_name(words, said, capsys, tmp_path, monkeypatch):
    """Check values that once ended in a traceback, in a hang, or in silence, and options without a value or effect."""
    monkeypatch.chdir(tmp_path)
    start = time.process_time()
    assert main(words.split()) == 2
    assert time.process_time() - start < LIMIT_S
    error = capsys.readouterr().err
    assert error.startswith("forktask: error: ") and error.count("\n") == 1 and said in error, error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
@pytest.mark.parametrize(
    "command",
    [
        "run {}",
        "compare --tuned {} --batch 8",
        "train --start {} --data synthetic:16 --batch 8 --out {}.out",
        "train --network gpt2_tiny --data text:{} --out {}.out",
        "train --network {}:f --out {}.out",
        "gate --against HEAD --jsonl {}",
        "gate --against HEAD --summary {}",
    ],
)
def test_what_is_no_regular_file_is_refused(command, make, tmp_path, capsys):
    """Check that nothing waits for a fifo and nothing takes a folder for a file."""
    make(tmp_path / "thing")
    assert call(command.format(*[tmp_path / "thing"] * 2).split(), capsys) == 2
    assert os.listdir(tmp_path) == ["thing"]


@pytest.fixture
def processes(monkeypatch):
    """Undo `nothing_is_measured`."""
    monkeypatch.undo()


OPTIONS = "--data synthetic:32 --batch 8 --epochs 1 --threads 2 --oversubscribe --model"
TRAIN = ["train", *OPTIONS.split()]


@pytest.mark.parametrize(
    ("words", "variables", "code"),
    [
        ([*TRAIN, "forkjoin"], {"OMP_THREAD_LIMIT": "1"}, 2),
        ([*TRAIN, "forkjoin"], {"OMP_DYNAMIC": "true"}, 2),
        ([*TRAIN, "openmp_tasks"], {"OMP_THREAD_LIMIT": "1"}, 2),
        ([*TRAIN, "forkjoin"], {"OMP_MAX_ACTIVE_LEVELS": "0"}, 2),
        ([*TRAIN, "taskiter"], {"MPLBACKEND": "garbage"}, 0),
        (["--version"], {"MPLBACKEND": "garbage", "OMP_NUM_THREADS": "x", "PYTHONIOENCODING": "ascii"}, 0),
    ],
)
def test_environments(words, variables, code, tmp_path, processes):
    """Check variables of the environment that keep threads or figures away."""
    out = ["--out", str(tmp_path / "out")] if words[0] == "train" else []
    done = run_forktask(*words, *out, variables=variables)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    if code:
        assert done.stderr.startswith("forktask: error: ") and done.stderr.count("\n") == 1
        assert all(name in done.stderr for name in variables) and done.stderr.count("OMP_") <= 2


DRY_SWEEP = '[grid]\nnetwork = "cifar10_cnn"\nmodels = ["serial"]\nthreads = 1\n'
DRY_STUDY = '[train]\nnetwork = "cifar10_cnn"\ndata = "synthetic:64"\nmodel = "serial"\nthreads = 1\n'


@pytest.mark.parametrize(
    "kind, words, said",
    [
        ("sweep", ["--on", "nope"], "--on must be slurm or dask:ADDRESS"),
        ("sweep", ["--on", "dask"], "--on must be slurm or dask:ADDRESS"),
        ("sweep", ["--on", "slurm", "--trace", "--script"], "traces are of one machine"),
        ("sweep", ["--places", "4095"], "places must be CPUs that this process may use"),
        ("both", ["--out", "/dev/zero"], "must be a folder that can be written"),
        ("both", ["--out", "foreign"], "must be empty or hold results of forktask"),
        ("both", ["--out", "file/below"], "Not a directory"),
        ("both", ["--out", "other"], "holds"),
    ],
)
def test_a_dry_run_refuses_what_a_run_refuses(kind, words, said, tmp_path, capsys, monkeypatch):
    """Check the sentence of both, and that neither changes a folder; a dry run of a good one makes none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").touch()
    (tmp_path / "file").touch()
    write_rows(tmp_path / "other", synthetic_rows())
    before = sorted(tmp_path.rglob("*"))
    for text in (DRY_SWEEP, DRY_STUDY) if kind == "both" else (DRY_SWEEP,):
        path = tmp_path.parent / f"{tmp_path.name}.toml"
        path.write_text(text)
        for dry in (["--dry-run"], []):
            assert main(["run", str(path), *words, *dry]) == 2
            assert said in capsys.readouterr().err
        assert sorted(tmp_path.rglob("*")) == before
        assert main(["run", str(path), "--out", "new/folder", "--dry-run"]) == 0
        assert sorted(tmp_path.rglob("*")) == before


def test_output_survives_every_encoding(processes):
    """Check that characters that the encoding of a pipe lacks are written as escapes."""
    program = "from forktask.experiments.commands import main, plan\n"
    program += "plan.call = lambda arguments: print('2 \\u00b5s')\nraise SystemExit(main.main(['plan']))"
    for encoding, text in (("utf-8", "2 \u00b5s\n".encode()), ("ascii", b"2 \\xb5s\n")):
        done = run_python(program, variables={"PYTHONIOENCODING": encoding}, text=False, timeout=60)
        assert (done.returncode, done.stdout) == (0, text), done


@pytest.mark.parametrize("end", ["| head -c0", "> /dev/full", ">&-"], ids=["closed pipe", "full disk", "closed"])
def test_output_that_nobody_takes(end, processes):
    """Check that no traceback comes, and no code 120 from the interpreter's own end."""
    command = f"set -o pipefail; {sys.executable} -P -m forktask plan {end}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {"| head -c0": (0, 141), "> /dev/full": (2,), ">&-": (0,)}[end], done
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "0<&- >&- 2>&-", "2> /dev/full"])
def test_closed_streams_end_no_command(closed, processes, tmp_path):
    """Check that a command that shows how far it is ends as always, that its files hold nothing else, and the code."""
    call = f"{sys.executable} -P -m forktask train --data synthetic:16 --network lenet5 --batch 8 --out"
    for words, code in ((f"{tmp_path}/out --epochs 1", 0), (f"{tmp_path}/other --epochs 0", 2)):
        done = subprocess.run(["bash", "-c", f"{call} {words} {closed}"], capture_output=True, timeout=120, check=False)
        assert done.returncode == code and not done.stderr
    assert read_checkpoint(tmp_path / "out" / "checkpoint-seed-0.safetensors", "lenet5", 0)[1].epoch == 1
    assert json.loads((tmp_path / "out" / "summary.json").read_text())


INTERRUPTED = """
import atexit, os, signal, sys
place = {place!r}

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, *rest):
        if name == place:
            interrupt()

sys.meta_path.insert(0, Finder())
if place == "atexit":
    atexit.register(interrupt)
sys.argv[1:] = ["compare", "--help"]
from forktask.__main__ import main
sys.exit(main())
"""


OF_OURS = ("forktask.experiments.commands.main", "forktask.experiments.commands.compare")


@pytest.mark.parametrize("place", [*OF_OURS, "numpy.linalg", "msgspec", "atexit"])
def test_an_interrupt_is_no_traceback(place, processes):
    """Check Ctrl-C while modules are loaded, ours and others', and at the interpreter's own end."""
    done = run_python(INTERRUPTED.format(place=place), timeout=60)
    assert (done.returncode, done.stderr) == (130, "forktask: interrupted\n")


def test_threads_that_cannot_start(tmp_path, processes):
    """Check a sentence where libraries would abort, exit or fail on their own, and that few threads still run."""
    models = forms_of_models("region", has=lambda model: model.max_threads != 1)
    calls = [f"train {OPTIONS} {model} --threads {n} --out {model}" for model in models for n in (2000, 2)]
    result = iter(run_with_faults(tmp_path, [(call, "", 0, "little memory") for call in calls]))
    for model, (many, text), (few, failure) in zip(models, result, result, strict=True):
        assert few == 0, (model, failure)
        assert many == 2 and text.count("\n") == 1, (model, text)
        assert text.startswith("forktask: error: 2000 threads must be "), (model, text)
