"""Everything a user chooses about a plan, written once.

Flags of the command line, keys of sweep files, columns of tables, titles of figures, and what makes two samples
comparable derive from these fields. A new option is a new field here and its use in the lowering.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ..errors import UsageError
from ..kernels.convolution.algorithms import CONV_OPTIONS, read_algorithms
from ..kernels.simd.instruction_sets import LANES
from ..networks.layers import SEQUENCE
from ..plan.chained_sums import FORMS
from ..records import Record, about, fields_of

LARGEST = 65_536  # number of a granularity
AUTO_THREADS = 8  # that granularity "auto" cuts loops for
BLOCKS_WANTED = 16  # of a loop, for these threads
LARGEST_BATCH = 65_537  # lowering makes an object for each block, so that larger ones take minutes

# What can be joined into one loop, each a switch of its own:
# activation   ReLU or GELU into the convolution, norm, fully connected or linear layer before it
# pooling      ReLU and max-pooling into the convolution before them
# residual     the addition of a shortcut into the norm, convolution or linear layer before it; of tokens also the
#              gradient that comes around a norm into that of the norm
# statistics   sums for batch norm into the convolution before it
# depthwise    backward pass of a depthwise convolution and of the norm after it, with the sums of the norm before
# normalise    a norm and its activation into the depthwise convolution that reads it; in training with `depthwise` only
# norm         the addition of two tensors of tokens, where no layer before it takes it, into the norm that is the first
#              to read the sum
# loss         the gradient of the logits into the loss; of images always
FUSIONS = ("activation", "pooling", "residual", "statistics", "depthwise", "normalise", "norm", "loss")


@dataclass(frozen=True)
class Granularity:
    """How loops are cut into blocks: by cost, into enough blocks for some threads (0: for eight); or images (samples),
    output channels (features), rows (tokens of a sample) and heads of a block (0: not cut); or "device": not at all, as
    a launch on a GPU divides a block among all multiprocessors, but for sums over samples, which have as many parts as
    fill it."""

    images: int = 0
    channels: int = 0
    rows: int = 0
    heads: int = 0
    threads: int = 0
    device: bool = False

    @property
    def is_auto(self) -> bool:
        return self == Granularity(threads=self.threads)

    @property
    def for_threads(self) -> int:
        """Threads that loops have enough blocks for, where they are cut by cost."""
        return self.threads or AUTO_THREADS

    def wanted(self, blocks: int = BLOCKS_WANTED) -> int:
        """Return how many blocks a loop should have that is cut into `blocks` of them by "auto"."""
        return -(-blocks * self.for_threads // AUTO_THREADS)

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """From "auto", "device", "threads=64", or a list such as "images=16,channels=8,rows=4"; heads likewise."""
        if text in ("auto", "device"):
            return cls(device=text == "device")
        *names, _ = cls.__dataclass_fields__
        values: dict[str, Any] = {}
        for part in text.split(","):
            key, _, value = part.partition("=")
            known = key in names and key not in values and not (values and "threads" in (key, *values))
            if not known or not re.fullmatch("[0-9]{1,5}", value) or not 1 <= int(value) <= LARGEST:
                raise UsageError(
                    f"granularity must be 'auto', 'device' or give threads, or some of images, channels, rows, heads, "
                    f"a whole number in [1, {LARGEST}], such as 'threads=64' or 'images=16,channels=8', got {text!r}"
                )
            values[key] = int(value)
        return cls(**values)


def check_images(granularity: str, batch: int) -> None:
    """Raise `UsageError` where blocks would have more images than any batch asked for has, filled up to whole
    vectors."""
    if Granularity.parse(granularity).images > -(-batch // LANES) * LANES:
        raise UsageError(
            f"granularity must have at most the {batch} images of a batch in a block, got {granularity!r}; lower "
            f"it, or leave the images out"
        )


class PlanOptions(Record, frozen=True):
    """Options of a plan; see `lower`.

    Raises
    ------
    UsageError
        A value out of its range, or options that exclude each other.
    """

    batch: Annotated[int, about("images or other samples of a step", least=1, below=LARGEST_BATCH)] = 64
    sequence: Annotated[int, about("tokens of a sample, in networks of tokens", least=1, below=65_537)] = SEQUENCE
    phase: Annotated[
        str,
        about(
            "train: forward, backward, update; forward: probabilities; evaluate: forward and loss",
            choices=("train", "forward", "evaluate"),
        ),
    ] = "train"
    granularity: Annotated[
        str,
        about(
            "auto: by cost, into enough blocks for eight threads, or for the most of a sweep; threads=N: for N of "
            "them; device: a loop is one block (auto where only streams of a GPU run it); or the size of a block, "
            "some of images=N,channels=N,rows=N,heads=N"
        ),
    ] = "auto"
    weight_gradients: Annotated[
        str,
        about(
            "partial: a buffer for each group of blocks, summed in order; chain: blocks add to one buffer one by one; "
            "commutative: in any order; tree: a buffer for each block, summed in pairs",
            choices=("partial", *FORMS),
        ),
    ] = "partial"
    memory: Annotated[
        str, about("full: each buffer its own memory; shared: transient ones share it", choices=("full", "shared"))
    ] = "full"
    fusion: Annotated[str, about(f"what is joined into one loop: all, none, or some of {', '.join(FUSIONS)}")] = "all"
    conv: Annotated[str, about("algorithm of the convolutions; auto: the cheapest by cost", choices=CONV_OPTIONS)] = (
        "auto"
    )
    algorithms: Annotated[
        str,
        about(
            "overrides of `conv` per convolution 3 x 3 with channels in the lanes, such as "
            "weights:16x256x256x8x8=winograd4: direction, images, channels of both sides, height, width; between "
            "commas"
        ),
    ] = ""
    products: Annotated[
        str,
        about(
            "of linear layers of tokens with 256 inputs and outputs or more; float32: multiply-adds; bf16x6: six of "
            "bfloat16 for one, other bits with less error, faster where the processor has AMX",
            choices=("float32", "bf16x6"),
        ),
    ] = "float32"
    layout: Annotated[
        str,
        about(
            "axes of maps; the vector lanes hold images (nchw16), pixels (nchw), channels (nhwc) or features of tokens "
            "(rows)",
            choices=("auto", "nchw16", "nchw", "nhwc", "rows"),
        ),
    ] = "auto"
    optimizer: Annotated[str, about("algorithm of the update", choices=("sgd", "adam", "adamw"))] = "sgd"
    momentum: Annotated[float, about("momentum of SGD", least=0, below=1)] = 0.9
    weight_decay: Annotated[float, about("weight decay of the optimizer, in PyTorch's convention", least=0)] = 1e-4
    decay: Annotated[
        str,
        about(
            "parameters that the weight decay applies to; matrices: those with more than one dimension",
            choices=("all", "matrices"),
        ),
    ] = "all"
    betas: Annotated[tuple[float, float], about("decay rates of the moments in Adam and AdamW")] = (0.9, 0.999)
    eps: Annotated[float, about("epsilon of Adam and AdamW", least=0)] = 1e-8
    label_smoothing: Annotated[
        float, about("share of the target that is spread over all classes", least=0, below=1)
    ] = 0.0
    clip_norm: Annotated[float, about("largest global norm of the gradients; 0: not clipped", least=0)] = 0.0
    frozen: Annotated[str, about("layers that are not trained, separated by commas; a name includes all below it")] = ""
    recompute: Annotated[bool, about("keep few activations and compute the others again; needs memory shared")] = False
    dropout_seed: Annotated[int, about("seed of dropout", least=0)] = 0
    check_finite: Annotated[bool, about("a loss that is NaN or infinite fails its block and stops the run")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        Granularity.parse(self.granularity)
        self.fusions  # noqa: B018  raises on a name that is none
        self.by_shape  # noqa: B018  likewise
        if len(self.betas) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"betas must be two numbers in [0, 1), got {self.betas!r}")
        if self.recompute and self.memory != "shared":
            raise UsageError(
                f"recompute saves memory with memory 'shared' only, got {self.memory!r}; use it, or do not recompute"
            )

    @property
    def fusions(self) -> frozenset[str]:
        """The set of what is joined."""
        if self.fusion in ("all", "none"):
            return frozenset(FUSIONS if self.fusion == "all" else ())
        names = [name.strip() for name in self.fusion.split(",")]
        for name in names:
            if name not in FUSIONS:
                raise UsageError(f"fusion must be all, none or some of {', '.join(FUSIONS)}; got {self.fusion!r}")
        return frozenset(names)

    @property
    def by_shape(self) -> dict[str, str]:
        """The algorithms of single convolutions; see `kernels.convolution.algorithms.shape_text`."""
        return read_algorithms(self.algorithms)

    @property
    def cut(self) -> Granularity:
        """How finely loops are cut into blocks."""
        return Granularity.parse(self.granularity)

    @property
    def frozen_layers(self) -> tuple[str, ...]:
        """The names in `frozen`."""
        return tuple(name.strip() for name in self.frozen.split(",") if name.strip())

    @property
    def training(self) -> bool:
        """Whether the step goes backward and updates parameters."""
        return self.phase == "train"

    @property
    def chain(self) -> bool:
        """Whether weight gradients are lowered as chains of loops, which other forms are made from."""
        return self.weight_gradients != "partial"


def plan_options(values: Mapping[str, Any]) -> PlanOptions:
    """Return the options that a row of results stands for; fields that it does not name have their defaults, other
    keys, such as "network", are left out. Raise `UsageError` for a value that a field refuses."""
    return PlanOptions(**fields_of(PlanOptions, values))


def describe(options: PlanOptions, leave_out: tuple[str, ...] = ()) -> str:
    """Return what differs from the defaults, such as "conv winograd, weight_gradients chain", without fields that the
    reader knows already; empty for the defaults."""
    return ", ".join(
        f"{name} {format_value(value)}" for name, value in options.differences().items() if name not in leave_out
    )


def format_value(value: Any) -> str:
    """Return a value of a field as it is written on a command line; see `Field.parse`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(format_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
