"""The gate between two commits, on a small repository of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from experiments.scaling.fakes import FakeMachine

from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.scaling import clock, gate
from forktask.experiments.scaling.clock import binomial_interval

AUTHOR = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
MODULE = """
import numpy as np
from forktask import UserGraph

def fill(out):
    out[...] = VALUE

def graph():
    made = UserGraph("own")
    made.task(fill, writes=made.array("x", np.zeros(4)))
    return made
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with two commits of a package; `first` is a tag."""
    folder = tmp_path / "repository"
    (folder / "own").mkdir(parents=True)

    def git(*words):
        subprocess.run(
            ["git", "-C", folder, "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
            check=True,
            capture_output=True,
        )

    git("init", "--quiet")
    for value in ("1", "2"):
        (folder / "own" / "__init__.py").write_text(MODULE.replace("VALUE", value))
        git("add", ".")
        git("commit", "--quiet", "-m", value)
        if value == "1":
            git("tag", "first")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(folder)
    return folder


COMMAND = ["gate", "--against", "first", "--network", "own:graph", "--models", "taskiter", "--threads", "1"]
COMMAND += ["--build", "cp -r {source}/own {target}/own"]


@pytest.fixture
def machine(monkeypatch):
    """A machine on which a commit is as fast as `times` says of the value that its package has, "1" or "2"."""
    machine = FakeMachine({"taskiter": 1.0}, noise=0.01).install(monkeypatch)
    machine.times, sample = {"1": 1.0, "2": 1.0}, machine.sample

    def sample_of_commit(side, effort):
        text = Path(side.installation, "own", "__init__.py").read_text()
        value = "2" if "= 2" in text else "1"
        machine.times_ms["taskiter"] = machine.times[value]
        row = sample(side, effort)
        return {**row, "weights_hash": value}

    machine.sample = sample_of_commit
    return machine


def test_equal_commits_pass(repository, machine, capsys):
    """Check that both commits are installed, that no worse time passes, and that other results are mentioned."""
    assert main(COMMAND) == 0
    out = capsys.readouterr().out
    assert "taskiter on 1: HEAD/first is " in out and ": pass" in out
    assert "the commits leave different results" in out
    done = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1


def test_a_slower_commit_fails(repository, machine, tmp_path):
    """Check exit code 1, the summary and the rounds on disk."""
    machine.times["2"] = 1.1
    assert main([*COMMAND, "--summary", str(tmp_path / "s.md"), "--jsonl", str(tmp_path / "s.jsonl")]) == 1
    assert "## Gate: HEAD against first" in (tmp_path / "s.md").read_text()
    rows = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert rows[1]["verdict"] == "fail" and len(rows[1]["commits"]) == 2 and rows[1]["generations"]


def test_strict_means_that_the_budget_must_suffice(repository, machine):
    """Check that an open end is exit code 0, and 3 with --strict."""
    machine.times["2"] = 1.05
    assert main([*COMMAND, "--budget", "20"]) == 0
    assert main([*COMMAND, "--budget", "20", "--strict"]) == gate.INCONCLUSIVE_EXIT


@pytest.mark.parametrize(
    "change, said",
    [
        (["--against", "no_such"], "must be a commit of"),
        (["--repository", "/"], "; go to a clone, or name one with --repository"),
        (["--build", "false"], "must build, false ended with 1"),
        (["--build", "true"], "true must install commit"),
        (["--network", "own.py:graph"], "of two commits is named as package.module:function, got 'own.py:graph'"),
        (["--network", "other:graph"], "HEAD must install package other, it does not"),
        (["--null", "3"], "either --against, another commit, or --null, claims of identical code, got both"),
        (["--function", "own:graph"], "functions and programs run no plan and no execution model, got --network too"),
        (["--at-most", "0"], "must be a positive number"),
    ],
)
def test_bad_use(repository, machine, capsys, change, said):
    """Check that each mistake gives one sentence and exit code 2."""
    assert main([*COMMAND, *change]) == 2
    assert said in capsys.readouterr().err


def test_a_clone_of_another_owner_is_named(repository, machine, capsys, monkeypatch):
    """Check git's reason and remedy where somebody else owns the clone, without the advice to go to one."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    assert main(COMMAND) == 2
    text = capsys.readouterr().err
    assert "dubious ownership" in text and "; call: git config --global --add safe.directory" in text
    assert "go to a clone" not in text and text.count("\n") == 1


CALLS = """
import sys
def work(n=1):
    return sum(range(n * VALUE))
if __name__ == "__main__":
    print("time:", VALUE * float(sys.argv[1]))
"""


@pytest.mark.parametrize(
    "call",
    [
        ["--function", "own:work(n=20000)"],
        ["--program", f"{sys.executable} {{target}}/own/__init__.py 1e-3", "--time-pattern", r"time: (\S+)"],
    ],
)
def test_calls_of_two_commits(repository, call, capsys, monkeypatch):
    """Check with real processes, whose budget is for the first generations, that each commit's own function or program
    is measured, although the repository has one too."""
    for value, commit in (("10", "HEAD~1"), ("1", "HEAD")):
        (repository / "own" / "__init__.py").write_text(CALLS.replace("VALUE", value))
        subprocess.run(["git", "commit", "-qam", commit], check=True, env={**os.environ, **AUTHOR})
    monkeypatch.setattr(clock, "MIN_GENERATIONS", 2)
    command = ["gate", "--against", "HEAD~1", "--threads", "1", *COMMAND[-2:], "--budget", "600"]
    assert main([*command, *call]) == 0
    out = capsys.readouterr().out
    assert re.search(r"1: HEAD/HEAD~1 is 0\.[0-2]", out)
    if call[0] == "--function":
        assert "the commits leave different results" in out
    else:
        assert main([*command, *call[:1], "own/a.out"]) == 2
        assert "must be named below {target}, where --build installs each, got 'own/a.out'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "count, number, low, high", [(0, 20, 0, 0.1684), (1, 20, 0.00127, 0.2487), (20, 20, 0.8316, 1), (0, 1, 0, 0.975)]
)
def test_binomial_interval(count, number, low, high):
    """Check some published values of Clopper and Pearson's interval."""
    assert binomial_interval(count, number) == pytest.approx((low, high), abs=1e-4)


def test_an_installation_that_is_hidden_is_refused(tmp_path):
    """Check that a build is refused if processes would import another one."""
    (tmp_path / "forktask").mkdir()
    (tmp_path / "forktask" / "__init__.py").write_text("__file__ = '/elsewhere/forktask/__init__.py'\n")
    with pytest.raises(UsageError, match="must import what it built, got /elsewhere"):
        gate.check_imported(tmp_path)


def test_a_terminated_gate_leaves_no_worktree(tmp_path):
    """Check that SIGTERM in the middle of a build ends the process with 143 and takes the worktree out again."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git[:3], "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    program = f"""if True:
        import time
        from pathlib import Path
        from forktask.experiments.scaling.gate import worktree
        with worktree({str(repository)!r}, "HEAD", Path({str(tmp_path / "source")!r})):
            print("ready", flush=True)
            time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n" and (tmp_path / "source").is_dir()
    process.terminate()
    assert process.wait(30) == gate.TERMINATED_EXIT
    listed = subprocess.run([*git[:3], "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert listed.count("\n") == 1 and not (tmp_path / "source").exists()
