"""Measuring process for llm.c's CPU program of GPT-2, which its user has built: a peer's side of `forktask peers`.

    python -P -m forktask.experiments.peers.llmc_worker < job.json

The program (`make train_gpt2` in llm.c) reads a model file and token files of fixed names in its working directory and
trains on 4 samples of 64 tokens. It is started in a temporary folder with the network's initial weights and one batch,
so that its losses can be compared with ours of the same steps. It prints a line a step, with the loss and the time.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.networks import gpt2
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import get_network
from ..analysis.agreement import LOSS_TOLERANCES, disagreement
from ..results.files import write_atomically
from ..sampling.child import answer_job
from ..sampling.timing import take_turns
from ..subjects.models import make_executor
from ..subjects.subject import answer, build

BATCH, SEQUENCE = 4, 64  # what the program trains on
LEARNING_RATE = 1e-4
OPTIMIZER = {
    "optimizer": "adamw",
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "clip_norm": 0.0,
}  # of the program, whatever the job's plan says
MODEL_FILE = "gpt2_124M.bin"  # the header has the sizes, whatever the name says
TOKEN_FILES = (
    "dev/data/tinyshakespeare/tiny_shakespeare_train.bin",
    "dev/data/tinyshakespeare/tiny_shakespeare_val.bin",
)
CHECKED_STEPS = len(LOSS_TOLERANCES)  # the first takes memory, so all of these are the warm-up too
LEAST_STEPS = 3  # that time a step
STEP = re.compile(r"^step (\d+): train loss (\S+) \(took (\S+) ms\)")
# Files: a model and tokens, each behind 256 integers of 4 bytes, little-endian.
MODEL, TOKENS = (20240326, 3), (20240520, 1)  # numbers that name a format and its version
HEADER_INTS = 256
PADDING = 128  # the vocabulary is padded with rows of zeros to a multiple
FIRST_LAYER = "h.0."


def sizes_of(network: Network) -> dict[str, int]:
    """Return the sizes of a GPT-2, or raise `UsageError`."""
    sizes = gpt2.sizes_of(network)
    if sizes is None:
        raise UsageError(f"llm.c's files are of GPT-2 networks, such as gpt2, and {network.name!r} is none; use one")
    return sizes


def write_model(path: Path, parameters: Mapping[str, np.ndarray], network: Network) -> None:
    """Write float32 parameters by the names of `networks.gpt2`: each tensor for all layers before the next."""
    sizes = sizes_of(network)
    padding = -sizes["vocabulary"] % PADDING
    parts = []
    for name in gpt2.network("one layer", **{**sizes, "num_layers": 1}).parameter_shapes():
        of_layers = [name]
        if name.startswith(FIRST_LAYER):
            of_layers = [f"h.{n}.{name.removeprefix(FIRST_LAYER)}" for n in range(sizes["num_layers"])]
        parts += [np.ascontiguousarray(parameters[each], "<f4") for each in of_layers]
        if name == "wte.weight":
            parts.append(np.zeros((padding, sizes["features"]), "<f4"))
    named = ("positions", "vocabulary", "num_layers", "heads", "features")
    header = _header(*MODEL, *(sizes[name] for name in named), sizes["vocabulary"] + padding)
    write_atomically(path, header, *parts)


def write_tokens(path: Path, tokens: np.ndarray) -> None:
    """Write tokens in [0, 65536)."""
    write_atomically(path, _header(*TOKENS, tokens.size), np.ascontiguousarray(tokens, "<u2"))


def _header(*numbers: int) -> np.ndarray:
    header = np.zeros(HEADER_INTS, "<i4")
    header[: len(numbers)] = numbers
    return header


class Program:
    """The running program, which is timed by the lines that it prints; it stops and goes on with this process.

    Parameters
    ----------
    lines : iterator of str
        What it prints.
    path : str
        For messages.
    """

    stride = 1

    def __init__(self, lines: Iterator[str], path: str):
        self._lines, self._path, self._last = lines, path, ""
        self.losses: list[float] = []

    def run(self, passes: int) -> float:
        """Wait for steps, and return their time by the program's own clock, in seconds.

        The first step of a turn may hold the time in which the program was stopped: turns begin with an untimed run.
        """
        times_s: list[float] = []
        for line in self._lines:
            self._last = line or self._last
            if found := STEP.match(line):
                try:
                    self.losses.append(float(found[2]))
                    times_s.append(float(found[3]) / 1e3)
                except ValueError:
                    raise UsageError(
                        f"{self._path} must print the loss and time of a step, got {line!r}; build llm.c's train_gpt2"
                    ) from None
            if len(times_s) == passes:
                return sum(times_s)
        raise UsageError(
            f"{self._path} must print a line such as 'step 0: train loss 5.356086 (took 120.5 ms)' for each step, got "
            f"{len(self.losses)}, and last {self._last!r}; build llm.c's train_gpt2"
        )


def measure_llmc(job: Mapping[str, Any]) -> Generator[dict[str, Any], Any, dict[str, Any]]:
    """Measure the program `job["llmc"]` in turns with others: the row of a sample, by the program's own clock.

    Raises
    ------
    UsageError
        The program cannot be started, ends before enough steps, or has other losses than our steps.
    """
    started = time.time()
    bound = build({**job, "plan": {**job["plan"], **OPTIMIZER}})
    yield {}
    bound.arrays["learning_rates"][...] = LEARNING_RATE
    bound.arrays["batch_order"][...] = bound.arrays["batch_order"][0]  # the program repeats the only batch
    with tempfile.TemporaryDirectory(prefix="forktask-llmc-") as folder:
        tokens = bound.arrays["dataset.tokens"][: BATCH * SEQUENCE + 1]
        for name in TOKEN_FILES:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tokens(path, tokens)
        parameters = {name: bound.view(name) for name in bound.plan.attributes["parameters"]}
        write_model(Path(folder, MODEL_FILE), parameters, get_network(job["plan"]["network"]))
        del parameters
        with make_executor("serial", 1, cpus=None) as executor:
            executor.prepare(bound)
            executor.run(CHECKED_STEPS)
        expected = answer(bound, CHECKED_STEPS)
        del executor, bound  # its memory is the program's now
        with contextlib.closing(_lines(job["llmc"], folder)) as lines:
            program = Program(lines, job["llmc"])
            program.run(CHECKED_STEPS)
            if wrong := disagreement(expected, program.losses):
                raise UsageError(
                    f"the losses of {job['llmc']} must be those of our steps, but beside ours its answer {wrong}"
                )
            yield from take_turns(program, program.run(LEAST_STEPS) / LEAST_STEPS, job["turn_s"])
    return {
        "kind": "sample",
        "losses": program.losses,
        "expected_losses": expected,
        "pid": os.getpid(),
        "started": started,
    }


def _lines(program: str, folder: str) -> Iterator[str]:
    """Yield the lines that a program prints, as it prints them, and end it when no more are wanted.

    A terminal makes the C library write each line at once; to a pipe they would come at the end, after steps that
    generate text and take much longer than those that are timed.
    """
    reader, writer = os.openpty()
    try:
        process = subprocess.Popen([program], cwd=folder, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
    except OSError as error:
        os.close(reader)
        raise UsageError(f"{program} must be a program of this machine, got {error.strerror}; build it again") from None
    finally:
        os.close(writer)
    try:
        # Reading fails instead of ending when the program has closed its side of the terminal.
        with os.fdopen(reader, errors="replace") as lines, contextlib.suppress(OSError):
            for line in lines:
                yield line.strip()
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(answer_job(measure_llmc, "refused"))
