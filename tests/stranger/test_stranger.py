"""What a new user writes first: an own network, an own graph, a comparison, a scaling test.

`make stranger` runs all of it in an installation from a fresh clone.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCALING_TEST = """
import pytest
from graphs import means


@pytest.mark.scaling(models=["taskiter"], threads=[2])
def test_means(scaling):
    scaling(means, grain=16)
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    """A Python command in a folder of the user's."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.fixture
def folder(tmp_path):
    """A folder with the user's two programs, outside of the repository."""
    for name in ("network.py", "graphs.py"):
        shutil.copy(HERE / name, tmp_path)
    return tmp_path


def test_a_network_and_a_graph_run(folder):
    """Check that both programs print a run, equal weights and right sums, and that the network takes under 25 lines."""
    assert len((folder / "network.py").read_text().splitlines()) < 25
    network, graph = (run(folder, name) for name in ("network.py", "graphs.py"))
    assert network.stdout.startswith("<taskiter on 2 threads: 4 iterations in "), network.stderr
    assert network.stdout.endswith("same weights: True\n")
    assert graph.stdout.endswith("[2480. 5040. 7600.]\n"), graph.stderr


@pytest.mark.stranger
def test_a_comparison_leaves_a_table_and_a_page(folder):
    """Check `forktask compare` with the user's network."""
    words = ("--models", "serial,forkjoin,taskiter", "--threads", "1,2", "--quick", "--out", "results")
    done = run(folder, "-m", "forktask", "compare", "--network", "network.py:network", *words)
    assert done.returncode == 0, done.stderr
    assert "taskiter" in done.stdout
    assert {"samples.jsonl", "summary.csv", "report.html"} <= {path.name for path in (folder / "results").iterdir()}


@pytest.mark.stranger
def test_a_lost_parallelism_fails_with_a_clear_first_line(folder):
    """Check that a scaling test passes with its baseline, and names the loops once all tasks write one sum."""
    (folder / "test_scaling.py").write_text(SCALING_TEST)
    pytest_command = ("-m", "pytest", "-q", "--rootdir", ".", "-m", "scaling", "--scaling-budget", "0")
    baseline = run(folder, *pytest_command, "--scaling-update-baseline")
    assert baseline.returncode == 0 and "1 passed" in baseline.stdout, baseline.stdout
    program = folder / "graphs.py"
    program.write_text(program.read_text().replace("sums[number]", "sums[0]"))
    failed = run(folder, *pytest_command)
    assert failed.returncode == 1
    first = next(line for line in failed.stdout.splitlines() if line.startswith("E "))
    assert "means(grain=16): the graph is not the baseline's: edges 3 -> 5" in first
