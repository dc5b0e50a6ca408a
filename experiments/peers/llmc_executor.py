"""llm.c's CPU program of GPT-2, which its user has built, as one more executor.

The program (`make train_gpt2` in llm.c) reads a model file and token files of fixed names in its working directory and
trains on 4 samples of 64 tokens. It is started in a temporary folder with the network's initial weights and one batch,
so that its losses can be compared with ours of the same steps. It prints one line per step, with the loss.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ...cython_src.binding.bind import bind
from ...cython_src.binding.executor import BaseExecutor
from ...cython_src.errors import MachineError, UsageError
from ...cython_src.lowering.lower import lower
from ...cython_src.networks import gpt2
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import get_network
from ...cython_src.typed_text import parse_real
from ...forkjoin.executor import SerialExecutor
from ..analysis.agreement import LOSS_TOLERANCES, disagreement
from ..results.files import write_atomically
from ..subjects.peer_models import LLMC
from ..subjects.subject import answer

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
STEP = re.compile(r"^step \d+: train loss (\S+) \(took \S+ ms\)")
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


class LlmcExecutor(BaseExecutor):
    """The running program: a step has ended when its line has come. It stops and goes on with this process.

    The first step of a run may hold the time in which the program was stopped: turns begin with an untimed run. Raises
    `UsageError`: no program, other plans than it was written for, or losses that are not those of our own steps.
    """

    about = LLMC

    def _prepare(self, bound, *recorded) -> None:
        path = shutil.which(self.options.program)
        if path is None:
            raise MachineError(
                f"llmc:program must name a program that can be run, got {self.options.program!r}; run make train_gpt2 "
                f"in llm.c"
            )
        attributes = bound.plan.attributes
        network = get_network(attributes.get("network", ""))
        sizes_of(network)
        wanted = {"batch": BATCH, "sequence": SEQUENCE, "phase": "train", "optimizer": OPTIMIZER["optimizer"]}
        for name, value in wanted.items():
            if attributes.get(name) != value:
                raise MachineError(f"{name} must be {value}, all that llm.c's program does, got {attributes.get(name)}")
        self._losses: list[float] = []
        self._owned = ExitStack()
        folder = self._owned.enter_context(tempfile.TemporaryDirectory(prefix="forktask-llmc-"))
        for name in TOKEN_FILES:
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_tokens(file, bound.arrays["dataset.tokens"][: BATCH * SEQUENCE + 1])
        write_model(Path(folder, MODEL_FILE), {name: bound.view(name) for name in attributes["parameters"]}, network)
        expected = _own_losses(bound, network)
        lines = _lines(os.path.abspath(path), folder, self.num_threads)
        self._lines = self._owned.enter_context(contextlib.closing(lines))
        self._wait_for(CHECKED_STEPS)
        if wrong := disagreement(expected, self._losses):
            raise UsageError(
                f"the losses of {path} must be those of our steps, but compared with ours its answer {wrong}"
            )

    def _run(self, bound, first_replay: int, num_replays: int) -> None:
        self._wait_for(num_replays)

    def _wait_for(self, steps: int) -> None:
        last, wanted = "", len(self._losses) + steps
        while len(self._losses) < wanted:
            line = next(self._lines, None)
            if line is None:
                raise UsageError(
                    f"{self.options.program} must print a line such as 'step 0: train loss 5.356086 (took 120.5 ms)' "
                    f"for each step, got {len(self._losses)}, and last {last!r}; build llm.c's train_gpt2"
                )
            last = line or last
            if result := STEP.match(line):
                self._losses.append(parse_real(result[1]))

    def collect(self) -> bool:
        """Leave the plan alone: the program trains by another optimizer, and `prepare` has compared its losses."""
        return False

    def _forget(self) -> None:
        if (owned := self.__dict__.pop("_owned", None)) is not None:
            owned.close()


def _own_losses(bound, network: Network) -> list[float]:
    """Return the losses of our own steps from the same weights, on the same batch, by the program's optimizer."""
    batches = bound.arrays["batch_order"].size // BATCH
    options = {"batch": BATCH, "sequence": SEQUENCE, "num_images": batches * BATCH, "num_batches": batches}
    own = bind(lower(network, **options, **OPTIMIZER))
    for name in ("dataset.tokens", *bound.plan.attributes["parameters"]):
        own.view(name)[...] = bound.view(name)
    own.arrays["learning_rates"][...] = LEARNING_RATE
    own.arrays["batch_order"][...] = bound.arrays["batch_order"][0]  # the program repeats the only batch
    with SerialExecutor(1) as executor:
        executor.prepare(own)
        executor.run(CHECKED_STEPS)
    return answer(own, CHECKED_STEPS)


def _lines(program: str, folder: str, threads: int) -> Iterator[str]:
    """Yield the lines that a program prints, as it prints them, and end it when no more are wanted.

    A terminal makes the C library write each line at once; to a pipe they would come at the end, after steps that
    generate text and take much longer than those that are timed.
    """
    reader, writer = os.openpty()
    try:
        process = subprocess.Popen(
            [program],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
        )
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
