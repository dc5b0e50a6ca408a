"""`forktask generate`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from .arguments import add_fields, number_from

HELP = "continue a text with a network of tokens that was trained"
DESCRIPTION = (
    "Continue a text, byte by byte, with the parameters that `forktask train --network gpt2_tiny` left. The same seed "
    "gives the same text under every model and number of threads."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    from ...cython_src.lowering.options import PlanOptions
    from ...cython_src.records import fields

    parser.add_argument("--checkpoint", required=True, metavar="FILE", help="safetensors file with parameters")
    parser.add_argument("--prompt", default="\n", metavar="TEXT", help="what the text begins with; default: a new line")
    parser.add_argument("--tokens", type=number_from(1), default=300, metavar="N", help="to add; default: %(default)s")
    parser.add_argument(
        "--temperature",
        type=number_from(0, float),
        default=0.8,
        help="divides the logits; 0 takes the most probable byte; default: %(default)s",
    )
    others = tuple(field.name for field in fields(PlanOptions) if field.name != "sequence")
    add_fields(parser, PlanOptions, leave_out=others)
    parser.add_argument("--seed", type=number_from(0), default=0, help="default: %(default)s")
    parser.add_argument("--model", default="serial", help="execution model; default: %(default)s")
    parser.add_argument("--threads", type=number_from(1), default=1, help="default: %(default)s")


def call(arguments: Namespace) -> int:
    """Print the text."""
    from ..sampling.models import check_threads, parse_model
    from ..training.generate import as_text, generate, read_network

    network, parameters = read_network(Path(arguments.checkpoint))
    prompt = arguments.prompt.encode()
    added = generate(
        network,
        parameters,
        prompt,
        arguments.tokens,
        sequence=getattr(arguments, "sequence", network.input_shape[0]),
        temperature=arguments.temperature,
        seed=arguments.seed,
        model=str(parse_model(arguments.model)),
        threads=check_threads(arguments.threads),
        source=arguments.checkpoint,
    )
    print(as_text(prompt + bytes(added)))
    return 0
