"""Some tests on a real GPU once more, under NVIDIA's compute-sanitizer: `pytest -m compute_sanitizer`."""

import subprocess
import sys
from pathlib import Path

import kinds
import pytest

REAL = Path(__file__).with_name("test_gpu_real.py")
TESTS = (
    "test_numbers_are_the_cpus[one block a loop]",
    "test_numbers_of_networks_are_the_cpus[mobilenet_v2-own]",
    "test_networks_of_tokens[wide-own]",
)
COMMAND = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "0"]


def run(*before: str, more=()):
    """Run the tests in a process of its own, behind the words of another command."""
    command = [*before, *COMMAND, *more, *(f"{REAL}::{test}" for test in TESTS)]
    return subprocess.run(command, capture_output=True, text=True, cwd=REAL.parent.parent.parent)


@pytest.mark.compute_sanitizer
@pytest.mark.timeout(0)
@pytest.mark.parametrize("tool", ["racecheck", "memcheck"])
def test_compute_sanitizer_finds_nothing(tool):
    """Check shared-memory races and memory accesses of three tests, whose kernels are compiled before: the tool looks
    at kernels, and not at calls whose failure CuPy handles."""
    warm = run()
    assert warm.returncode == 0, warm.stdout[-3000:]
    options = ["--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no"]
    done = run(kinds.compute_sanitizer(), *options)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_sanitizer_has_three_tests_and_is_selected_alone():
    """Check that the tests exist by these names, and that `-m gpu` leaves the long run under the tool out."""
    assert "3 tests collected" in run(more=["--collect-only"]).stdout
    listed = [*COMMAND, "--collect-only", "-m", "gpu", str(REAL.parent)]
    result = subprocess.run(listed, capture_output=True, text=True, cwd=REAL.parent.parent.parent).stdout
    assert "test_gpu_real.py" in result and "sanitizer" not in result
