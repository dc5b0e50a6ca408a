"""The C headers by themselves: deque tests, and everything under ThreadSanitizer with negative controls."""

import os
import subprocess
from pathlib import Path

import pytest
from builds import built
from kinds import LONG

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
pytestmark = [pytest.mark.timeout(1000), pytest.mark.cc]
# gcc warns that the sanitizer does not model fences. The only two order "publish, then look for sleepers" against
# "announce, then look for work" (idle.h); no data are handed over by them.
FLAGS = ["-std=gnu11", "-g", "-O1", "-Wno-tsan", "-I", str(ROOT / "tasking"), "-I", str(ROOT)]


def build(source, *flags):
    """Compile one program of native/."""
    command = ["cc", *FLAGS, *flags, HERE / "native" / f"{source}.c", "-lpthread"]
    return built("".join((source, *flags)), command)


def run(program, *arguments, timeout=120):
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, env=environment
    )


def test_deque():
    """Check smoke, owner_lifo_thief_fifo, wraparound, stampede, no_task_lost_or_duplicated, no_starvation."""
    done = run(build("test_deque", "-Wall", "-Wextra", "-Werror"), 100_000)
    assert done.returncode == 0, done.stderr
    names = "smoke owner_lifo_thief_fifo wraparound stampede no_task_lost_or_duplicated no_starvation"
    assert done.stdout.split()[1::2] == names.split() and {*done.stdout.split()[::2]} == {"ok"}


def test_thieves_look_near_first():
    """Check the order of victims on a machine of two sockets, and that those of one distance come in any order."""
    done = run(build("test_victims", "-Wall", "-Wextra", "-Wno-unused-function"))
    assert done.returncode == 0, done.stderr


@pytest.mark.tsan
def test_no_race_in_deque():
    """Check the deque under ThreadSanitizer."""
    done = run(build("test_deque", "-fsanitize=thread"), 10_000)
    assert done.returncode == 0, done.stderr


CLAIMS = ("LOOK=1", "AHEAD=60", "CLAIM_NS=2000")  # homes open a few iterations ahead and decide anew in each iteration


@pytest.mark.tsan
@pytest.mark.parametrize(
    ("settings", "num_threads"),
    [
        *(((), n) for n in ((1, 2, 3, 4, 8, 16) if LONG else (2, 5))),
        *((CLAIMS, n) for n in ((2, 3, 4, 8) if LONG else (3,))),
    ],
)
def test_no_race_in_runtime(settings, num_threads):
    """Check replay, compiled programs and eager tasks under ThreadSanitizer, against serial order; no wake-up is lost
    even where threads sleep at once and take no naps."""
    settings = [f"-DPROGRAM_{setting}" for setting in ("NAPS=0", *settings)]
    done = run(build("race_runtime", "-fsanitize=thread", *settings), 1000 if LONG else 40, num_threads, timeout=900)
    assert done.returncode == 0, done.stderr


# An ordering that hands over data -> the sanitizer must see a race when it is gone.
WEAKENED = [
    "ORDER_REPLAY_COUNT_DOWN",
    "ORDER_REPLAY_LAST",
    "ORDER_PROGRAM_PUBLISH",
    "ORDER_PROGRAM_SEE",
    "ORDER_PROGRAM_DONE",
    "ORDER_EAGER_CLOSE",
    "ORDER_EAGER_COUNT_DOWN",
    "ORDER_EAGER_PUSH_EDGE",
    "ORDER_EAGER_FOUND_CLOSED",
    "ORDER_EAGER_RETIRE",
    "ORDER_DEQUE_PUSH_BOTTOM",
]


@pytest.mark.tsan
@pytest.mark.parametrize("order", WEAKENED if LONG else WEAKENED[:2])
def test_a_weakened_ordering_is_caught(order):
    """Check that the sanitizer would notice: negative controls."""
    program = build("race_runtime", "-fsanitize=thread", f"-D{order}=relaxed")
    done = run(program, 400, 4)
    assert done.returncode == 66, done.stdout + done.stderr
    assert "data race" in done.stderr
