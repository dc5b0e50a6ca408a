"""Configuration of a training run: its options, those of its plan among them, and the learning rate of each step."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import BATCH_OF_TOKENS
from ...cython_src.lowering.options import LARGEST_BATCH, PlanOptions, plan_options
from ...cython_src.records import about
from ...cython_src.typed_text import MOST_THREADS
from ..images.decoding import DECODERS
from ..images.source import parse
from ..machine.numa import INTERLEAVE
from ..machine.placement import Bind, MemoryPolicy, Places, check_placement
from ..machine.topology import available_cpus, cpu_order
from ..subjects.memory import parse_bytes
from ..subjects.models import ModelSpec, runnable

LOADS = ("memory", "cache", "files")
BROKEN = ("refuse", "skip")
SCHEDULES = ("constant", "cosine", "step")
# What differs for networks of tokens where the user does not say.
DEFAULTS_OF_TOKENS: dict[str, Any] = {
    "batch": BATCH_OF_TOKENS,
    "data": "text",
    "optimizer": "adamw",
    "learning_rate": 0.002,
    "weight_decay": 0.1,
    "decay": "matrices",
    "clip_norm": 1.0,
    "schedule": "cosine",
    "warmup": 0.1,
    "epochs": 4,
}


class TrainingConfig(PlanOptions, frozen=True):
    """Options of a training run, as on the command line: those of its plan, and these. Raises `UsageError`: a value out
    of its range; names of networks, data and models are checked later."""

    batch: Annotated[int, about("images or other samples of a step", least=1, below=LARGEST_BATCH)] = 32
    weight_decay: Annotated[float, about("weight decay of the optimizer, in PyTorch's convention", least=0)] = 5e-4
    network: Annotated[str, about("network to train: a name, module:function or file.py:function")] = "cifar10_cnn"
    data: Annotated[
        str,
        about(
            "digits, cifar10:FOLDER, cifar100:FOLDER, idx:FOLDER, folder:DIR (a sub-folder of images for each class), "
            "csv:FILE (columns file, label, split), thumbnails:N[:HxW] (generated photographs) or synthetic:N; of "
            "tokens text, text:FILE or synthetic:N"
        ),
    ] = "digits"
    image_size: Annotated[
        str, about("HEIGHTxWIDTH to which image files are cropped in the middle and scaled; empty: the network's")
    ] = ""
    load: Annotated[
        str,
        about(
            "where a step takes image files from: memory (all are loaded before the run), cache (read from the packed "
            "cache in each step), files (decoded in each step)",
            choices=LOADS,
        ),
    ] = "memory"
    broken: Annotated[
        str,
        about("what to do with an image file that cannot be decoded: refuse the data, or leave it out", choices=BROKEN),
    ] = "refuse"
    decoder: Annotated[
        str,
        about(
            "library that decodes image files; simplejpeg: JPEG files with libjpeg-turbo itself, in less time; needs "
            "the extra jpeg",
            choices=DECODERS,
        ),
    ] = "pillow"
    cache: Annotated[str, about("folder of the packed cache of image files; empty: below the user's cache folder")] = ""
    augment: Annotated[
        str,
        about(
            "random changes of training images, none or some of flip (left and right) and crop (moved by up to an "
            "eighth of their size), with commas between"
        ),
    ] = "none"
    tokenizer: Annotated[str, about("tokenizer.json that encodes data text; default: a token for each byte")] = ""
    model: Annotated[str, about("execution model with its options, e.g. forkjoin:schedule=dynamic")] = "taskiter"
    threads: Annotated[int, about("number of threads", least=1, below=MOST_THREADS + 1)] = min(2, len(available_cpus()))
    places: Places = "cores"
    bind: Bind = "none"
    memory_policy: MemoryPolicy = INTERLEAVE
    epochs: Annotated[int, about("passes over the training samples", least=1, below=1_000_001)] = 8
    learning_rate: Annotated[float, about("learning rate of the optimizer, such as 0.01", above=0)] = 0.01
    schedule: Annotated[
        str,
        about(
            "how the learning rate changes; cosine: down to 0 at the last iteration; step: a tenth after 60 %, again "
            "after 85 % of the epochs",
            choices=SCHEDULES,
        ),
    ] = "constant"
    warmup: Annotated[
        float, about("epochs over which the learning rate first rises from near 0, times the schedule", least=0)
    ] = 0.0
    start: Annotated[
        str,
        about(
            "safetensors file of parameters to begin with; a last layer that is missing or of another size begins at "
            "random: fine-tuning; for GPT-2 and MobileBERT also safetensors of Hugging Face"
        ),
    ] = ""
    export: Annotated[
        str,
        about(
            "further file of the final parameters: Hugging Face's form of a GPT-2 or MobileBERT",
            choices=("none", "huggingface"),
        ),
    ] = "none"
    memory_limit: Annotated[str, about("such as 1.5GiB: refuse what needs more, and say what would fit")] = ""
    check: Annotated[bool, about("check the plans of a network of one's own, once, before it is trained")] = True
    seed: Annotated[int, about("first seed of parameters and order", least=0, below=2**31)] = 0
    seeds: Annotated[int, about("train with so many consecutive seeds", least=1, below=1001)] = 1
    out: Annotated[str, about("folder for curves, figure and checkpoints")] = "training"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_placement(self.places, self.bind)
        self.augmentations  # noqa: B018  raises on a word that is none
        if self.memory_limit:
            parse_bytes(self.memory_limit)  # raises on no number of bytes, before any image is decoded
        if self.warmup > self.epochs:
            raise UsageError(f"warmup must be in [0, {self.epochs}], the number of epochs; got {self.warmup:g}")

    @property
    def augmentations(self) -> frozenset[str]:
        """The words in `augment`."""
        return parse(self.augment)

    @property
    def spec(self) -> ModelSpec:
        """The execution model; `UsageError` if it is unknown."""
        return runnable(self.model)

    @property
    def cpus(self) -> list[int] | None:
        """The CPU of each thread; None: not pinned. A thread that launches what a GPU computes stays on none."""
        if self.bind == "none" or self.spec.is_gpu:
            return None
        return cpu_order(self.threads, places=self.places, bind=self.bind, oversubscribe=True)

    @property
    def plan(self) -> PlanOptions:
        """Options of the training plan."""
        return plan_options(self.as_dict())

    def evaluation(self, batch: int) -> PlanOptions:
        """Options of a plan that evaluates batches of another size on the same parameters."""
        return PlanOptions(
            batch=batch,
            sequence=self.sequence,
            phase="evaluate",
            memory="shared" if self.memory_limit else "full",
            conv=self.conv,
            algorithms=self.algorithms,
            layout=self.layout,
            fusion=self.fusion,
        )


def learning_rate_table(config: TrainingConfig, epoch: int, num_batches: int) -> np.ndarray:
    """Return the learning rates of one epoch's iterations: float64, shape (num_batches,)."""
    rates = np.full(num_batches, config.learning_rate)
    done = epoch * num_batches + np.arange(num_batches)
    if config.schedule == "step":
        rates *= 0.1 ** ((epoch >= 0.6 * config.epochs) + (epoch >= 0.85 * config.epochs))
    elif config.schedule == "cosine":
        rates *= 0.5 * (1 + np.cos(np.pi * done / (config.epochs * num_batches)))
    if config.warmup:
        rates *= np.minimum(1.0, (done + 1) / (config.warmup * num_batches))
    return rates
