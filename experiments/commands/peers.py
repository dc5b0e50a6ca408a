"""`forktask peers`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from .arguments import (
    add_device,
    add_fields,
    add_json,
    add_models,
    add_out,
    add_plan_options,
    add_threads,
    duration,
    folder_of,
    given,
    models,
    plan_options,
    show,
    texts,
    threads,
)

HELP = "PyTorch's best CPU mode, or llm.c's GPT-2, beside our models, interleaved in one run"
DESCRIPTION = (
    "Time PyTorch (each mode in processes of its own), llm.c's program where --llmc names one, and our execution "
    "models on the same network, data and threads, in turn, and print the quotients of their times. PyTorch is the "
    "extra `peers`."
)
MODELS = ("serial", "forkjoin", "forkjoin:region=persistent", "taskgraph", "taskiter")


def add_arguments(parser: ArgumentParser) -> None:
    from ..peers.peers import MODES_OF_IMAGES, MODES_OF_TOKENS, PeersSettings

    add_plan_options(parser)
    add_device(parser)
    add_models(parser, MODELS)
    parser.add_argument(
        "--modes",
        type=modes_or_none,
        metavar="M[,M...]",
        help=f"of PyTorch; default: {','.join(MODES_OF_IMAGES)}, of tokens {','.join(MODES_OF_TOKENS)}; , for none",
    )
    add_threads(parser)
    add_fields(parser, PeersSettings)
    parser.add_argument(
        "--budget",
        type=duration,
        metavar="TIME",
        help="such as 90s or 3min: no repetition begins that would end later; default: none, and 5 min a process",
    )
    add_out(parser, "peers", "new folder for peers.json, peers.csv, peers.txt and the figure of ratios")
    add_json(parser, "raw samples and table")


def modes_or_none(text: str) -> tuple[str, ...]:
    """Split a text at commas; a comma alone leaves PyTorch out. A type for argparse."""
    return () if text == "," else texts(text)


def call(arguments: Namespace) -> int:
    """Measure, and print the table, after Ctrl-C too. Exit code 1: nothing could be measured."""
    from ..peers.files import check_new_folder, write_files
    from ..peers.peers import INTERRUPTED, PeersSettings, as_text, compare_with_torch

    folder = folder_of(arguments)
    # First of all: minutes of measurements must not end at a folder that cannot be written.
    check_new_folder(folder)
    result = compare_with_torch(
        arguments.network,
        plan_options(arguments),
        PeersSettings(**given(arguments, PeersSettings)),
        models=models(arguments),
        modes=arguments.modes,
        threads=threads(arguments),
        budget_s=arguments.budget,
        device=arguments.device or "cpu",
    )
    write_files(folder, result)
    from ..peers.figure import draw_both  # heavy, and nothing that measuring needs

    draw_both(result, Path(folder))
    show(arguments, result, as_text)
    if result["stopped"] == INTERRUPTED:
        raise KeyboardInterrupt
    return 0 if result["rows"] else 1
