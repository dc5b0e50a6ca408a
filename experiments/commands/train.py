"""`forktask train`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from .arguments import add_device, add_fields, add_json, given, progress_printer

HELP = "train a network and draw its accuracy over time"
DESCRIPTION = (
    "Train a network and leave, for each epoch, losses, error rate and time, a figure of accuracy over time, "
    "checkpoints, and the final parameters as safetensors."
)


def add_arguments(parser: ArgumentParser) -> None:
    from ...cython_src.lowering.options import format_value
    from ..training.config import DEFAULTS_OF_TOKENS, TrainingConfig

    others = ", ".join(f"{name.replace('_', '-')} {format_value(value)}" for name, value in DEFAULTS_OF_TOKENS.items())
    parser.epilog = f"Networks of tokens have other defaults: {others}."
    add_fields(parser, TrainingConfig, leave_out=("phase",))
    add_device(parser)
    parser.add_argument("--resume", action="store_true", help="continue after the last checkpoint in --out")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than CPUs")
    add_json(parser, "the summary")


def call(arguments: Namespace) -> int:
    """Train, and print what came out."""
    import msgspec

    from ...cython_src.errors import UsageError
    from ...cython_src.lowering.options import check_images
    from ..results.files import NoRoom
    from ..results.folder import SAMPLES
    from ..subjects.models import describe_gpu_convolutions
    from ..training.config import TrainingConfig
    from ..training.train import configure, summary_text, train

    config = configure(given(arguments, TrainingConfig), arguments.resume, arguments.device, arguments.oversubscribe)
    if not arguments.resume:
        check_images(config.granularity, config.batch)
    report = progress_printer(arguments)
    if config.spec.is_gpu:
        report(describe_gpu_convolutions(config.conv))
    try:
        summary = train(config, arguments.resume, report)
    except KeyboardInterrupt:
        begun = (Path(config.out) / SAMPLES).exists()
        kept = f"the last whole epoch is kept, go on with: forktask train --resume --out {config.out}"
        print(f"\nstopped; {kept if begun else 'the training had not begun'}", file=sys.stderr)
        raise
    except NoRoom as error:
        if any(Path(config.out).glob("checkpoint-seed-*.safetensors")):  # the same command would begin anew
            raise UsageError(
                f"{error.fact}; whole epochs are kept, so make room and go on with: forktask train --resume --out "
                f"{config.out}"
            ) from None
        raise
    as_json = msgspec.json.format(msgspec.json.encode(summary), indent=1).decode()
    print(as_json if arguments.json else summary_text(summary))
    return 0
