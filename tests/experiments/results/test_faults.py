"""Faults while files are written: full disk, kill -9, Ctrl-C. One sentence, nothing lost, the next call goes on."""

import json
import os
import pwd
import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from builds import built
from experiments.synthetic_results import typed
from programs import run_python

from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.results.files import cache_folder, unfinished, write_atomically
from forktask.experiments.results.folder import SAMPLES, ResultsWriter, read_results

pytestmark = pytest.mark.timeout(240)

# Makes one call of the command line after the other, each in a fork of a process that has loaded all modules, and
# lets `fault` happen when the file `place` is written for the `number`th time.
DRIVER = """
import json, os, resource, signal, sys
import forktask.experiments.report.files, forktask.experiments.metg.figure, forktask.experiments.training.train
from forktask.experiments.commands.main import main
from forktask.experiments.report import figures
from forktask.experiments.results import files

open_part, replace = files._part, os.replace

def inject(place, number, fault):
    times = 0
    if fault == "little memory":
        resource.setrlimit(resource.RLIMIT_AS, (6_000_000 << 10,) * 2)

    def make(path):
        nonlocal times
        times += path.name == place
        if times == number and path.name == place and fault == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))
        return open_part(path)

    def put(source, target):
        if times == number and os.path.basename(target) == place and fault in ("SIGKILL", "SIGINT"):
            os.kill(os.getpid(), signal.Signals[fault])
        return replace(source, target)

    files._part, os.replace = make, put

for words, *injected in json.loads(sys.argv[1]):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # All figures are written by the same lines: one is enough, and none where the fault is elsewhere.
        figures.available_figures = lambda *_: ["speedup"] if "speedup.svg" in injected else []
        if injected:
            inject(*injected)
        code = main(words.split())
        sys.stderr.flush()
        os._exit(code)
    os.close(write)
    with open(read) as messages:
        said = messages.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]), flush=True)
"""
FAULTS = {"full": 2, "SIGKILL": -9, "SIGINT": 130}


def run_with_faults(folder, calls):
    """Exit code and messages of each call: (words,) or (words, place, number, fault)."""
    done = run_python(DRIVER, json.dumps(calls), cwd=folder)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_said(fault, code, said, place, remedy="make room and give the same command again"):
    """A code that tells the fault, no traceback, and one sentence about a full disk."""
    assert code == FAULTS[fault] and "Traceback" not in said, said
    last = said.splitlines()[-1] if said else ""
    if fault == "full":
        assert last.startswith("forktask: error: ") and f"{place} cannot be written" in last
        assert last.endswith(remedy)
    if fault == "SIGINT":
        assert "interrupted" in last


@contextmanager
def disk_with_room(room):
    """Let no file grow beyond a size, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_full_disk_keeps_every_row(room, tmp_path):
    """Check that a row that does not fit leaves the file as it was, and is added once there is room."""
    run, row = typed([{"kind": "run"}, {"kind": "machine"}])
    with ResultsWriter(tmp_path) as writer:
        writer.start(run)
        before = (tmp_path / SAMPLES).read_bytes()
        with disk_with_room(len(before) + room), pytest.raises(UsageError, match="make room and give the same command"):
            writer.append(row)
        assert (tmp_path / SAMPLES).read_bytes() == before
        writer.append(row)
    assert len(read_results(tmp_path).rows) == 2


@pytest.mark.parametrize(
    ("command", "cases"),
    [
        (
            "compare --quick --models serial --threads 1 --no-profile --batch 4 --out results",
            [
                ("speedup.svg", 1, "full"),
                ("summary.csv", 1, "SIGKILL"),
                *[("report.html", 1, fault) for fault in FAULTS],
            ],
        ),
        (
            "metg --quick --models serial --threads 1 --out results",
            [("metg.csv", 1, "full"), ("metg_stencil_1d.svg", 1, "SIGKILL"), ("metg_stencil_1d.svg", 1, "SIGINT")],
        ),
    ],
    ids=["compare", "metg"],
)
def test_faults_after_measuring(command, cases, tmp_path):
    """Check the last seconds of a command: samples are measured once by each start, and the same command comes to its
    end."""
    *result, last = run_with_faults(tmp_path, [*((command, *case) for case in cases), (command,)])
    for (place, _, fault), (code, text) in zip(cases, result, strict=True):
        check_said(fault, code, text, place)
    assert last[0] == 0
    (rows,) = (tmp_path / "results").glob("*.jsonl")
    kinds = [json.loads(line)["kind"] for line in rows.read_text().splitlines()]
    assert kinds.count("sample") + kinds.count("metg") == max(1, kinds.count("session"))


def test_faults_in_training(tmp_path):
    """Check checkpoint and summary: the run goes on from its last epoch, to the bits of one without a fault."""
    train = "train --network lenet5 --data synthetic:16 --batch 8 --epochs 2 --model serial --threads 1 --out"
    checkpoint = "checkpoint-seed-0.safetensors"
    cases = [
        (checkpoint, 1, "SIGKILL"),
        (checkpoint, 2, "full"),
        (checkpoint, 2, "SIGKILL"),
        ("summary.json", 1, "SIGINT"),
    ]
    calls = [(f"{train} whole",)]
    for number, (place, times, fault) in enumerate(cases):
        calls += [(f"{train} {number}", place, times, fault), (f"{train} {number}",), (f"{train} {number} --resume",)]
    whole, *result = run_with_faults(tmp_path, calls)
    assert whole[0] == 0, whole

    def weights(name):
        return json.loads((tmp_path / name / "summary.json").read_text())["seeds"][0]["parameters_sha256"]

    for number, (place, times, fault) in enumerate(cases):
        faulty, again, resumed = result[3 * number : 3 * number + 3]
        # The same command begins anew where no epoch was kept, and names --resume where one was, as the fault does.
        kept = times == 2 or place == "summary.json"
        remedy = f"make room and go on with: forktask train --resume --out {number}" if kept else "same command again"
        check_said(fault, *faulty, place, remedy)
        assert again[0] == (2 if kept else 0) and ("add --resume" in again[1]) == kept, again
        assert resumed[0] == 0, resumed
        assert weights(str(number)) == weights("whole")
        assert not [name for name in os.listdir(tmp_path / str(number)) if name.startswith(".")]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(os.devnull)], ids=["pipe", "link to device"])
def test_nothing_but_a_file_is_replaced(make, tmp_path):
    """Check that a pipe and a link to a device are refused, and stay what they are."""
    path = tmp_path / "out"
    make(path)
    before = path.lstat()
    with pytest.raises(UsageError, match="must be a regular file or none yet"):
        write_atomically(path, b"new")
    assert os.path.samestat(path.lstat(), before) and os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("number", [1, 2])
def test_what_a_killed_process_left_is_written_anew(number, tmp_path):
    """Check that nothing but the file stays after a later run, and that writers of one file wait for each other."""
    path = tmp_path / "report.html"
    program = (
        "import os, sys\nfrom forktask.experiments.results import files\n"
        "os.replace = lambda *_: os.kill(os.getpid(), 9)\nfiles.write_atomically(sys.argv[1], 'x' * 100_000)"
    )
    for _ in range(number):
        done = run_python(program, path)
        assert done.returncode == -9 and [p.name for p in unfinished(tmp_path)] == [".report.html.part"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: [write_atomically(path, f"{i}" * 50_000) for _ in range(20)], range(4)))
    assert os.listdir(tmp_path) == [path.name] and len(set(path.read_text())) == 1
    assert path.stat().st_size == 50_000


@pytest.mark.parametrize("error", ["ENOSYS", "ENOLCK"])
def test_a_file_system_without_locks_is_said_once(error, tmp_path):
    """Check that files are written and folders taken where `flock` fails as on Lustre, NFS and FUSE without it."""
    source = f"#include <errno.h>\nint flock(int f, int how) {{ errno = {error}; return -1; }}"
    library = built(f"no_flock_{error}.so", ["cc", "-shared", "-fPIC", "-x", "c", "-"], source)
    program = (
        "import sys\nfrom forktask.experiments.results.files import locked_file, write_atomically\n"
        "for name in 'ab':\n"
        "    with locked_file(sys.argv[1]), locked_file(sys.argv[1], wait=True):\n"
        "        write_atomically(f'{sys.argv[1]}/{name}', name)"
    )
    done = run_python(program, tmp_path, variables={"LD_PRELOAD": str(library)})
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert done.stderr.count("\n") == 1 and "has no locks" in done.stderr


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    """Be a user without HOME and without an entry in passwd, like those of containers; give the temporary folder."""

    def nobody(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_user_without_a_home_has_a_cache(homeless, monkeypatch):
    """Check the cache in the temporary folder, and that one of somebody else is refused."""
    folder = cache_folder("images")
    assert folder.parent.parent == homeless
    folder.mkdir(parents=True)
    assert cache_folder("images") == folder
    own = os.getuid()
    (homeless / f"forktask-{own + 1}").symlink_to(folder)
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    with pytest.raises(UsageError, match="--cache"):
        cache_folder("images")


@pytest.mark.parametrize("words", ["--data idx:~/mnist", "--data thumbnails:20 --cache ~/images", "--data csv:~/a.csv"])
def test_a_user_without_a_home_cannot_name_one(words, homeless, capsys):
    """Check that ~ is refused with one sentence, wherever a path may begin with it."""
    assert main(["train", *words.split(), "--model", "serial", "--epochs", "1", "--out", str(homeless / "out")]) == 2
    assert "set HOME, or write the whole path" in capsys.readouterr().err
