"""The command `forktask`: each subcommand is a module here, which declares its arguments and calls one room."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module

from ...cython_src.errors import UnsoundPlan, UsageError, did_you_mean
from ...cython_src.typed_text import LONGEST_TEXT, is_text
from ..machine.build_info import BUILD

# Modules here, in the order of the help page, which has these texts. Each has DESCRIPTION, `add_arguments(parser)` and
# `call(arguments)`.
COMMANDS = {
    "info": "this machine, its measured limits, and whether it is fit for measuring",
    "compare": "train one network under several execution models and compare them",
    "run": "run a sweep or a study of trainings described in a TOML file, on this machine or, a sweep, on a cluster",
    "survey": "measure a whole machine within a time: limits, hand-overs, networks, tasks, PyTorch, a GPU",
    "status": "what a results folder holds, what is missing, and where the jobs of a cluster are",
    "merge": "join results folders of one configuration, or surveys of several machines",
    "report": "what a results folder holds: tables, figures and page, one figure, exports, a comparison with "
    "another folder",
    "simulate": "predict the speedup on more threads, or on another machine",
    "diagnose": "say what costs time, what to try, and what that would gain",
    "train": "train a network and draw its accuracy over time",
    "evaluate": "accuracy of given weights on a data set, and the time of each kind of layer",
    "trace": "log what every thread does at every moment of a run",
    "metg": "what a runtime costs per task: METG(50 %%) on Task Bench graphs",
    "plan": "the networks; or a network's plan: loops, FLOPs, bytes by purpose, and a picture of its task graph",
    "check_model": "whether a model, such as a runtime of your own, runs every plan as it must",
    "kernels": "times of a step's kernels on a GPU",
    "gate": "compare the speed of this commit with another one, both built here",
}
USAGE_EXIT = 2
UNSOUND_EXIT = 4  # 3: `gate --strict`
FAULT_EXIT = 70  # an error of forktask: 1 means "slower" or "failed" to whoever runs it in a job


class Parser(argparse.ArgumentParser):
    """Parser whose arguments are declared when it is first used, and whose errors are one sentence."""

    declare: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(self, args=None, namespace=None):
        declare, self.declare = self.declare, None
        if declare is not None:
            declare(self)
        result, rest = super().parse_known_args(args, namespace)
        if rest:  # refused here and not by the parser above, which does not know the options
            word = rest[0].partition("=")[0]
            meant = did_you_mean(word, self._option_string_actions)
            if not word.startswith("-"):
                meant += "; several values of an option have commas between them, as in --batch 4,16"
            self.error(f"no such argument: {' '.join(rest)}{meant}")
        return result, rest

    def error(self, message: str):
        text = re.sub(r"^argument (--[\w-]+): (?=must |takes )", r"\1 ", message)
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", text)
        if choice:
            text += did_you_mean(choice[1], re.findall(r"'([^']*)'", choice[2]))
        raise UsageError(f"{text}; see {self.prog} --help")


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser with one subcommand, or with all."""
    parser = Parser(
        prog="forktask",
        description="Fork-join against task-based execution of deep-learning training.",
        epilog="Start with `forktask info`, then `forktask compare`. `forktask COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"forktask {BUILD['version']}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS if command is None else [command]:
        subparsers.add_parser(name.replace("_", "-"), help=COMMANDS[name]).declare = partial(_declare, name)
    return parser


def _declare(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a command, whose module is loaded here."""
    module = import_module(f".{name}", __package__)
    parser.description = module.DESCRIPTION
    parser.set_defaults(run=module.call)
    module.add_arguments(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns
    -------
    int
        0: done; 2: bad input, or an environment in which it cannot be done, in one sentence; 4: a plan of one's
        own failed its check; 70: an error of forktask; 130: interrupted; 141: nobody reads the output any more. What
        else a command returns it says itself.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    os.environ["MPLBACKEND"] = "agg"  # figures go to files, whatever the environment asks for
    for stream in (sys.stdout, sys.stderr):  # of any encoding: characters that it lacks are written as escapes
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()
    except UnsoundPlan as error:
        return _say(f"error: {error}", UNSOUND_EXIT)
    except UsageError as error:
        return _say(f"error: {error}")
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:
        _drop_output()
        place = f"{error.filename}: " if error.filename is not None else ""
        return _say(f"error: {place}{error.strerror or error}; mend that and give the same command again")
    except MemoryError as error:
        result = str(error) or "memory must suffice, and the system gave no more; ask for less, or raise the limit"
        return _say(f"error: {result}")
    except Exception as error:
        if _was_interrupted(error):
            return _say("interrupted", 130)
        with suppress(OSError):
            traceback.print_exc()
        text = "this is an error of forktask, not of yours; please report it to whoever gave you this copy"
        return _say(f"error: {text}, with the lines above", FAULT_EXIT)


def _run(words: Sequence[str]) -> int:
    for word in words:
        if empty := re.fullmatch(r"(--[\w-]+)=(--)?", word):
            raise UsageError(f"{empty[1]} must have a value, got {word!r}; give one, or leave it out")
        if not word:
            raise UsageError(f"an argument must not be empty, got {' '.join(map(repr, words))}; leave it out")
        if not is_text(word):
            raise UsageError(
                f"an argument must be text without control characters, of {LONGEST_TEXT} at most, got {word[:40]!r}"
            )
    first = words[0].replace("-", "_") if words else ""
    parser = make_parser(first if first in COMMANDS else None)
    if not words:
        parser.print_help(sys.stderr)
        return USAGE_EXIT
    arguments = parser.parse_args(words)
    return arguments.run(arguments) or 0


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an exception came of Ctrl-C: a library whose import is interrupted may raise another one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _say(message: str, code: int = USAGE_EXIT) -> int:
    """Return the code, even if the message can no longer be written."""
    with suppress(OSError):
        print(f"forktask: {message}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Write to nowhere from now on: what is left in a buffer would fail again, at the end of the process."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
