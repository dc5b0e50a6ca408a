"""Arguments that several commands share; those of a record derive from its fields."""

from __future__ import annotations

import json
import re
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...cython_src.errors import UsageError
from ...cython_src.lowering.lower import BATCH_OF_TOKENS, default_batch
from ...cython_src.lowering.options import PlanOptions, check_images, format_value
from ...cython_src.networks.registry import get_network
from ...cython_src.records import fields, fields_of
from ...cython_src.typed_text import MOST_SECONDS, MOST_THREADS, parse_real, parse_whole
from ..results.folder import dated_folder

MOST = 2**31 - 1
NETWORK = "cifar10_cnn"  # by default
NETWORKS = (
    "name of `forktask plan`, module:function or file.py:function, which may have arguments: file.py:function(depth=2)"
)


def add_plan_options(
    parser: ArgumentParser, *, network: bool = True, axes: bool = False, batch: int = PlanOptions().batch
) -> None:
    """Add a flag for each field of `PlanOptions`; `plan_options` reads them where each has one value. `network`: add
    `--network` too, which has a default; `axes`: each flag takes several values; `batch`: default for images."""
    if network:
        form = {"default": (NETWORK,), "type": texts, "metavar": "N[,N...]"} if axes else {"default": NETWORK}
        parser.add_argument("--network", help=f"{NETWORKS}; default: {NETWORK}", **{"metavar": "N", **form})
    # The default of the batch depends on the network, so arguments hold a batch only where one was given.
    defaults_text = {"batch": f"{format_value(batch)}, of tokens {BATCH_OF_TOKENS}"}
    add_fields(parser, PlanOptions, axes=axes, said=defaults_text)
    parser.set_defaults(batch_of_images=batch)


def duration(text: str, least_s: float = 0.0) -> float:
    """Return the seconds of a time such as 90, 90s, 3min or 1h, above 0 and at least some; for argparse."""
    match = re.fullmatch(r"([0-9]{1,7}(?:\.[0-9]{1,9})?) ?(s|min|h)?", text)
    seconds = float(match[1]) * {"h": 3600, "min": 60}.get(match[2], 1) if match else 0.0
    if not 0 < seconds < MOST_SECONDS:
        raise ArgumentTypeError(f"must be a time such as 90s, 3min or 1h, got {text!r}")
    if seconds < least_s:
        raise ArgumentTypeError(f"must be at least {least_s:g} s, got {text!r}")
    return seconds


def add_fields(
    parser: ArgumentParser,
    record: type,
    *,
    leave_out: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    axes: bool = False,
    said: Mapping[str, str] | None = None,
    before: str = "",
    **defaults: Any,
) -> None:
    """Add a flag for each field of a record: its name without the unit, its type, choices, text and default.

    Only flags that were given, or whose default differs from the field's, appear in the parsed arguments; `fields_of`
    collects them. A list or text that may hold commas is repeated to give several values. `said`: field -> what the
    help calls its default; `before`: words before each text.
    """
    for field in fields(record):
        if field.name in leave_out or (only and field.name not in only):
            continue
        flag = field.name.removesuffix("_s").replace("_", "-")
        shown = defaults.get(field.name, field.default)
        default = shown if field.name in defaults else SUPPRESS
        default_text = (said or {}).get(field.name) or format_value(shown) or "none"
        about = f"{before}{field.text}; default: {default_text}".replace("%", "%%")
        if field.kind is bool and not axes:
            action, prefix = ("store_false", "no-") if field.default else ("store_true", "")
            text = before + ("switch off: " if prefix else "") + field.text.replace("%", "%%")
            parser.add_argument(f"--{prefix}{flag}", dest=field.name, action=action, default=default, help=text)
            continue
        unit = "SECONDS" if field.name.endswith("_s") else "DIR" if flag == "out" else flag.upper().replace("-", "_")
        value = "{" + ",".join(map(str, field.choices)) + "}" if field.choices else unit
        options: dict[str, Any] = {"dest": field.name, "default": default, "help": about, "metavar": value}
        if not axes:
            options["type"] = _checked(field, field.parse)
        elif field.kind is tuple or (field.kind is str and not field.choices):
            options |= {"type": _checked(field, field.parse), "action": "append"}
            options["help"] += "; may be repeated"
        else:
            options["type"] = _checked(field, lambda text, field=field: tuple(map(field.parse, text.split(","))))
            options["metavar"] = f"{value}[,...]"
            if field.kind is bool:
                options |= {"nargs": "?", "const": (True,)}
        parser.add_argument(f"--{flag}", **options)


def _checked(field: Any, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type for argparse that keeps the messages of `UsageError`; argparse names the flag."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error).removeprefix(f"{field.name} ")) from None

    return convert


def given_options(arguments: Namespace) -> dict[str, Any]:
    """Return the fields of `PlanOptions` that the arguments name, and the batch, whose default depends on the
    network."""
    options = fields_of(PlanOptions, vars(arguments))
    check_effects(options, (arguments.network,))
    return {"batch": default_batch(arguments.network, images=arguments.batch_of_images), **options}


def check_effects(options: Mapping[str, Any], networks: Sequence[str]) -> None:
    """Raise `UsageError` for an option that changes none of the requested plans."""
    optimizers = several(options.get("optimizer", PlanOptions().optimizer))
    for option, tokens in (("sequence", True), ("conv", False), ("algorithms", False)):
        if option in options and not any(bool(get_network(name).tokens) == tokens for name in networks):
            kind = "tokens" if tokens else "images"
            raise UsageError(f"--{option} is for networks of {kind}, got {', '.join(networks)}; leave it out")
    for option, own in (("momentum", {"sgd"}), ("betas", {"adam", "adamw"}), ("eps", {"adam", "adamw"})):
        if option in options and own.isdisjoint(optimizers):
            raise UsageError(
                f"--{option} is for optimizer {' or '.join(sorted(own))}, got {', '.join(optimizers)}; leave it out"
            )


def plan_options(arguments: Namespace) -> PlanOptions:
    """Return the `PlanOptions` that were asked for."""
    options = PlanOptions(**given_options(arguments))
    check_images(options.granularity, options.batch)
    return options


def texts(text: str) -> tuple[str, ...]:
    """Split a text at commas outside of parentheses; each part counts once. A type for argparse."""
    parts = tuple(dict.fromkeys(part for part in re.split(r",(?![^()]*\))", text) if part))
    if not parts:
        raise ArgumentTypeError(f"must name at least one, got {text!r}")
    return parts


def number_from(least: float, kind: type = int, most: float = MOST) -> Callable[[str], Any]:
    """Return a type for argparse: a number in [least, most]."""

    def convert(text: str) -> Any:
        try:
            value = parse_whole(text) if kind is int else parse_real(text)
        except ValueError:
            raise ArgumentTypeError(f"must be a {'whole number' if kind is int else 'number'}, got {text!r}") from None
        if not least <= value <= most:  # NaN is in no range
            low = f"must be at least {least:g}" if value < least else f"must be in [{least:g}, {most:g}]"
            raise ArgumentTypeError(f"{low}, got {text}")
        return value

    return convert


thread_count = number_from(1, most=MOST_THREADS)


def several_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return a type for argparse: values of a type between commas, each once."""
    return lambda text: tuple(dict.fromkeys(map(kind, text.split(","))))


def add_device(parser: ArgumentParser) -> None:
    """Add `--device`."""
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        help="gpu: models are those of a GPU (taskiter means gpu_taskiter), on one thread; the first GPU that "
        "CUDA shows, which CUDA_VISIBLE_DEVICES chooses; cpu: those of the models that run on the processor; default: "
        "each model where its name says",
    )


def add_models(parser: ArgumentParser, default: tuple[str, ...]) -> None:
    """Add `--models`."""
    parser.add_argument(
        "--models",
        type=texts,
        default=default,
        metavar="M[,M...]",
        help=f"name[:option=value...], all of which `forktask compare --help` lists; default: {','.join(default)}",
    )
    parser.set_defaults(default_models=default)


def add_threads(parser: ArgumentParser) -> None:
    """Add `--threads`: several numbers."""
    parser.add_argument(
        "--threads",
        type=lambda text: text if text == "cores" else several_of(thread_count)(text),
        default="cores",
        metavar="N[,N...]",
        help="numbers of threads; default: 1,2,4,... up to the physical cores of this process",
    )


def several(value: Any) -> tuple[Any, ...]:
    """Return one value or several as a tuple."""
    result = (value,) if isinstance(value, str | int) else tuple(value)
    if not result:
        raise UsageError(f"what has several values must have one at least, got {value!r}; leave it out for the default")
    return result


def add_out(parser: ArgumentParser, kind: str, text: str = "results folder") -> None:
    """Add `--out`; `folder_of` reads it."""
    parser.add_argument("--out", metavar="DIR", help=f"{text}; default: {kind}/<date and time>")
    parser.set_defaults(kind_of_folder=kind)


def folder_of(arguments: Namespace) -> str:
    """Return the results folder that was asked for."""
    return arguments.out or dated_folder(arguments.kind_of_folder)


def add_json(parser: ArgumentParser, what: str = "") -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help=f"print {what + ' as ' if what else ''}JSON")


def progress_printer(arguments: Namespace) -> Callable[[str], Any]:
    """Return what prints lines on the way: to standard error where the result is JSON."""
    return partial(print, file=sys.stderr if arguments.json else sys.stdout, flush=True)


def show(arguments: Namespace, result: Any, as_text: Callable[[Any], str]) -> None:
    """Print a result as JSON or for people, as asked for."""
    print(json.dumps(result, indent=1, default=str) if arguments.json else as_text(result))
