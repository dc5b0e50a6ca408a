"""`forktask loading`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from .arguments import add_fields, add_json, add_models, given, models, show

HELP = "rate and memory of the ways to load image files"
DESCRIPTION = (
    "Measure images a second and memory of loading image files with one thread, joblib and PyTorch's DataLoader, and "
    "of training steps that load their own images, beside training alone."
)
# What has no effect on a rate: two epochs are trained, and nothing is kept.
UNUSED = ("phase", "model", "epochs", "schedule", "warmup", "start", "export", "seed", "seeds", "out")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    from ..training.config import TrainingConfig

    add_fields(
        parser,
        TrainingConfig,
        leave_out=UNUSED,
        network="starpu_cnn",
        data="thumbnails:200",
        load="files",
        batch=16,
        learning_rate=1e-3,
    )
    add_models(parser, ("forkjoin", "taskiter:unroll=2:slots=2"))
    add_json(parser)


def call(arguments: Namespace) -> int:
    """Measure, and print a table. Exit code 1: a way failed."""
    from ..training.config import TrainingConfig
    from ..training.loading import as_text, compare_loading

    config = TrainingConfig(**given(arguments, TrainingConfig))
    result = compare_loading(config, models(arguments), lambda way: print(way, file=sys.stderr, flush=True))
    show(arguments, result, as_text)
    return 1 if any("failure" in row for row in result["rows"]) else 0
