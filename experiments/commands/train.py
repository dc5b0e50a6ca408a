"""`forktask train`, also a function."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import check_images, format_value
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import named_network
from ...cython_src.records import takes
from ..results.files import NoRoom
from ..results.folder import SAMPLES, dated_folder
from ..subjects.models import describe_gpu_convolutions
from ..training.config import DEFAULTS_OF_TOKENS, TrainingConfig
from .arguments import add_device, add_fields, add_json
from .functions import Result, call_function

DESCRIPTION = (
    "Train a network and write, for each epoch, losses, error rate and time, a figure of accuracy over time, "
    "checkpoints, and the final parameters as safetensors."
)


def add_arguments(parser: ArgumentParser) -> None:
    others = ", ".join(f"{name.replace('_', '-')} {format_value(value)}" for name, value in DEFAULTS_OF_TOKENS.items())
    parser.epilog = f"Networks of tokens have other defaults: {others}."
    add_fields(parser, TrainingConfig, leave_out=("phase",))
    add_device(parser)
    parser.add_argument("--resume", action="store_true", help="continue after the last checkpoint in --out")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than CPUs")
    add_json(parser, "the summary")


@takes(TrainingConfig)
def train(
    network: str | Network | None = None,
    data: str | None = None,
    *,
    device: Literal["cpu", "gpu"] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    oversubscribe: bool = False,
    progress: Callable[[str], Any] | None = None,
    **settings: Any,
) -> Result:
    """Train a network as `forktask train` does, with checkpoints, and a figure of accuracy over time.

    Parameters
    ----------
    network : str or Network, optional
        Default: that of the run that goes on, else "cifar10_cnn".
    data : str, optional
        Such as "digits" or "cifar10:FOLDER"; default: those of the run that goes on, else "digits".
    device : {"cpu", "gpu"}, optional
        Device of the model; default: as its name says.
    out : path, optional
        New or empty folder; default: trainings/<date and time>.
    resume : bool
        Go on after the last checkpoint in `out`.
    oversubscribe : bool
        Allow more threads than CPUs.
    progress : callable, optional
        Takes a line for each epoch.
    **settings
        Options of the training and of its plan: `epochs`, `model`, `threads`, `learning_rate`, `batch`, ...

    Raises
    ------
    UsageError
        An unknown name or value, data that the network cannot learn, or a folder that holds something else.
    """
    import pandas as pd

    from ..training.curves import accuracy_chart, history_table
    from ..training.train import configure, histories_of, summary_text
    from ..training.train import train as run_training

    folder, report = Path(out or dated_folder("trainings")), progress or (lambda _: None)
    given = {"out": str(folder), **({} if data is None else {"data": data}), **settings}
    if network is not None:
        given["network"] = named_network(network, folder.parent)
    config = configure(given, resume, device, oversubscribe)
    if not resume:
        check_images(config.granularity, config.batch)
    if config.spec.is_gpu:
        report(describe_gpu_convolutions(config.conv))
    summary = run_training(config, resume, report)
    histories = histories_of(folder)
    names, rows = history_table(histories)
    charts = {"accuracy": partial(accuracy_chart, histories, summary)}
    plain = msgspec.json.decode(msgspec.json.encode(summary))
    return Result(summary.title, pd.DataFrame(rows, columns=names), summary_text(summary), folder, charts, plain)


def call(arguments: Namespace) -> int:
    """Train, and print the result; of an interrupted training say what is kept."""
    out = getattr(arguments, "out", TrainingConfig().out)
    try:
        call_function(train, arguments, out=out)
    except KeyboardInterrupt:
        kept = f"the last whole epoch is kept, go on with: forktask train --resume --out {out}"
        begun = Path(out, SAMPLES).exists()
        print(f"\nstopped; {kept if begun else 'the training had not begun'}", file=sys.stderr)
        raise
    except NoRoom as error:
        if any(Path(out).glob("checkpoint-seed-*.safetensors")):  # the same command would begin anew
            raise UsageError(
                f"{error.fact}; whole epochs are kept, so make room and go on with: forktask train --resume --out {out}"
            ) from None
        raise
    return 0
