"""`forktask evaluate`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from .arguments import add_device, add_fields, add_json, add_out, folder_of, given, progress_printer

HELP = "accuracy of given weights on a data set, and the time of each kind of layer"
DESCRIPTION = (
    "Evaluate given weights on a data set, in the requested forms of convolutions: accuracy, and the time of "
    "each kind of layer. The forms are interleaved; `forktask compare --phase evaluate` has intervals of ratios."
)
FIELDS = (
    *("network", "data", "image_size", "load", "broken", "decoder", "cache", "tokenizer", "model", "threads", "places"),
    *("bind", "check", "batch", "sequence", "layout", "fusion", "granularity"),
)


def add_arguments(parser: ArgumentParser) -> None:
    from ...cython_src.lowering.options import PlanOptions
    from ..training.config import TrainingConfig
    from ..training.evaluate import DEFAULTS, EvaluationSettings

    add_fields(parser, EvaluationSettings)
    add_fields(parser, TrainingConfig, only=FIELDS, **DEFAULTS)
    add_fields(parser, PlanOptions, only=("conv",), axes=True)
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than CPUs")
    add_device(parser)
    add_out(parser, "evaluations")
    add_json(parser, "rows")


def call(arguments: Namespace) -> int:
    """Evaluate, and print accuracy and times."""
    import msgspec

    from ..training.config import TrainingConfig
    from ..training.evaluate import EvaluationSettings, configure_evaluation, evaluate, evaluation_text

    forms = getattr(arguments, "conv", (TrainingConfig().conv,))
    requested = {**given(arguments, TrainingConfig), "out": folder_of(arguments)}
    config = configure_evaluation(requested, forms, arguments.device, arguments.oversubscribe)
    settings = EvaluationSettings(**given(arguments, EvaluationSettings))
    rows = evaluate(config, forms, settings, progress_printer(arguments))
    as_json = msgspec.json.format(msgspec.json.encode(rows), indent=1).decode()
    print(as_json if arguments.json else evaluation_text(rows, config))
    return 0
