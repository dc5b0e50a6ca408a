"""`forktask evaluate`, also a function."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...cython_src.lowering.options import PlanOptions
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import named_network
from ...cython_src.records import fields_of, takes
from ..results.folder import dated_folder
from ..training.config import TrainingConfig
from ..training.evaluate import DEFAULTS, EvaluationSettings
from .arguments import add_device, add_fields, add_json, add_out, several
from .functions import Result, call_function

DESCRIPTION = (
    "Evaluate given weights on a data set, in the requested forms of convolutions: accuracy, and the time of "
    "each kind of layer. The forms are interleaved; `forktask compare --phase evaluate` has intervals of ratios."
)
FIELDS = (
    *("network", "data", "image_size", "load", "broken", "decoder", "cache", "tokenizer", "model", "threads", "places"),
    *("bind", "check", "batch", "sequence", "layout", "fusion", "granularity"),
)


def add_arguments(parser: ArgumentParser) -> None:
    add_fields(parser, EvaluationSettings)
    add_fields(parser, TrainingConfig, only=FIELDS, **DEFAULTS)
    add_fields(parser, PlanOptions, only=("conv",), axes=True)
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than CPUs")
    add_device(parser)
    add_out(parser, "evaluations")
    add_json(parser, "rows")


@takes(TrainingConfig, EvaluationSettings)
def evaluate(
    weights: str | os.PathLike[str],
    network: str | Network = "cifar10_cnn",
    data: str | None = None,
    *,
    conv: str | Sequence[str] = TrainingConfig().conv,
    device: Literal["cpu", "gpu"] | None = None,
    out: str | os.PathLike[str] | None = None,
    oversubscribe: bool = False,
    progress: Callable[[str], Any] | None = None,
    **settings: Any,
) -> Result:
    """Evaluate given weights on a data set as `forktask evaluate` does; a row for each form of convolutions: accuracy,
    median seconds of a pass, and of each kind of layer in blocks, summed over threads.

    Parameters
    ----------
    weights : path
        File of parameters: safetensors, or .pt and .pth of PyTorch.
    network, data
        As for `train`.
    conv : str or several
        Forms of convolutions, which take turns.
    device : {"cpu", "gpu"}, optional
        Device of the model; default: as its name says.
    out : path, optional
        New or empty folder; default: evaluations/<date and time>.
    oversubscribe : bool
        Allow more threads than CPUs.
    progress : callable, optional
        Takes lines on the way.
    **settings
        What is evaluated and how often (`split`, `images`, `passes`), and options of the plan (`batch`, ...), of data
        and model (`threads`, `model`, ...).

    Raises
    ------
    UsageError
        An unknown name or value, weights that are not the network's, data that it cannot read, or a folder that holds
        something else.
    """
    import pandas as pd

    from ..training.evaluate import configure_evaluation, evaluation_table, evaluation_text
    from ..training.evaluate import evaluate as run_evaluation

    folder, forms = Path(out or dated_folder("evaluations")), several(conv)
    requested = {"network": named_network(network, folder.parent), **fields_of(TrainingConfig, settings)}
    requested |= {"out": str(folder), **({} if data is None else {"data": data})}
    config = configure_evaluation(requested, forms, device, oversubscribe)
    measuring = EvaluationSettings(weights=str(weights), **fields_of(EvaluationSettings, settings))
    rows = run_evaluation(config, forms, measuring, progress or (lambda _: None))
    table, plain = pd.DataFrame(evaluation_table(rows, config)), msgspec.json.decode(msgspec.json.encode(rows))
    return Result(f"evaluation in {folder}", table, evaluation_text(rows, config), folder, data=plain)


def call(arguments: Namespace) -> int:
    """Evaluate, and print accuracy and times."""
    call_function(evaluate, arguments, weights=getattr(arguments, "weights", ""))
    return 0
