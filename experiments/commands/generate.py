"""`forktask generate`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from .arguments import add_fields, number_from, thread_count

HELP = "continue a text with a network of tokens that was trained"
DESCRIPTION = (
    "Continue a text with the parameters that `forktask train --network gpt2_tiny` left, byte by byte, or with a model "
    "file of llm.c and its tokenizer. The same seed gives the same text under every model and number of threads."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    from ...cython_src.lowering.options import PlanOptions
    from ...cython_src.records import fields

    parser.add_argument(
        "--checkpoint", required=True, metavar="FILE", help="safetensors file with parameters, or llm.c's (.bin)"
    )
    parser.add_argument("--network", default="", metavar="NAME", help="network of a file that does not tell its own")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--prompt", metavar="TEXT", help="what the text begins with; default of bytes: a new line")
    begin.add_argument(
        "--prompt-tokens", metavar="N,N,...", help="tokens to begin with; default with --tokenizer: the end of a text"
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FILES",
        help="for networks of other tokens than bytes: tokenizer.json, vocab.json,merges.txt (byte-pair encoding), "
        "vocab.txt (WordPiece), or llm.c's file (.bin)",
    )
    parser.add_argument(
        "--tokens", type=number_from(1, most=10_000_000), default=300, metavar="N", help="to add; default: %(default)s"
    )
    parser.add_argument(
        "--temperature",
        type=number_from(0, float, 1e6),
        default=0.8,
        help="divides the logits; 0 takes the most probable byte; default: %(default)s",
    )
    others = tuple(field.name for field in fields(PlanOptions) if field.name != "sequence")
    add_fields(parser, PlanOptions, leave_out=others)
    parser.add_argument("--seed", type=number_from(0), default=0, help="default: %(default)s")
    parser.add_argument(
        "--no-cache", action="store_true", help="keep no keys and values: compute all tokens anew for each"
    )
    parser.add_argument("--model", default="serial", help="execution model; default: %(default)s")
    parser.add_argument("--threads", type=thread_count, default=1, help="default: %(default)s")


def call(arguments: Namespace) -> int:
    """Print the text."""
    from ..sampling.models import check_counts, check_threads, parse_model
    from ..training.generate import as_text, generate, prompt_of, read_network
    from ..training.tokenizer import tokenizer_of

    spec = parse_model(arguments.model)
    check_counts([spec], [arguments.threads])
    network, parameters = read_network(Path(arguments.checkpoint), arguments.network)
    tokenizer = tokenizer_of(arguments.tokenizer, network) if arguments.tokenizer else None
    prompt = prompt_of(network, tokenizer, arguments.prompt, arguments.prompt_tokens)
    added = generate(
        network,
        parameters,
        prompt,
        arguments.tokens,
        sequence=getattr(arguments, "sequence", network.input_shape[0]),
        temperature=arguments.temperature,
        seed=arguments.seed,
        model=str(spec),
        threads=check_threads(arguments.threads),
        source=arguments.checkpoint,
        cache=not arguments.no_cache,
    )
    tokens = [*prompt, *added]
    print(as_text(tokenizer.decode(tokens) if tokenizer else bytes(tokens)))
    return 0
