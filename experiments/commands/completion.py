"""`forktask completion`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

HELP = "print a program with which a shell completes commands and options"
DESCRIPTION = (
    "Print a program with which a shell completes commands, options and their choices; for bash: forktask completion "
    "bash > ~/.local/share/bash-completion/completions/forktask. Needs the extra `completion` (shtab)."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell")


def call(arguments: Namespace) -> int:
    """Print the program."""
    try:
        import shtab
    except ModuleNotFoundError:
        from ...cython_src.errors import UsageError

        raise UsageError(
            "completion needs the package shtab, which is not installed; pip install 'forktask[completion]'"
        ) from None
    parser = arguments.make_parser()
    for command in parser.commands.choices.values():
        command.declare(command)
    print(shtab.complete(parser, arguments.shell))
    return 0
