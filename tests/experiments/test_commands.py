"""Options of plans on the command line: every command has the same flags for them, from the fields of `PlanOptions`."""

import argparse

import pytest

from forktask.cython_src.lowering.options import PlanOptions, format_value
from forktask.cython_src.records import fields
from forktask.experiments.commands.main import COMMANDS, make_parser

FIELDS = {field.name: field for field in fields(PlanOptions)}
TRAINING_ONLY = {name for name, field in FIELDS.items() if field.only_in == "train"}
# Commands that lower a plan, and the options that they set themselves.
LOWERING = {
    "loading": {"phase"},
    "compare": set(),
    "peers": set(),
    "train": {"phase"},
    "infer": {"phase", "fusion", *TRAINING_ONLY},
    "metg": set(),
    "trace": set(),
    "graph": set(),
    "memory": set(),
    "tune": {"granularity"},
    "kernels": set(),
    "profile": set(),
    "gate": set(),
    "scaling-power": set(),
    "generate": set(FIELDS) - {"sequence"},
}


def plan_flags(command):
    """The arguments of a command whose flag or name is that of an option of plans, by the option's name."""
    (choices,) = (a.choices for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    parser = choices[command]
    parser.declare(parser)
    found = {}
    for action in parser._actions:
        words = {action.dest, *(o.lstrip("-").removeprefix("no-").replace("-", "_") for o in action.option_strings)}
        for name in words & set(FIELDS):
            assert name not in found, f"{command} declares {name} twice"
            found[name] = action
    return found


@pytest.mark.parametrize("command", [name.replace("_", "-") for name in COMMANDS])
def test_commands_that_lower_have_every_option(command):
    """Check that a new field of `PlanOptions` is a flag of all commands that lower plans, and of no other."""
    expected = set(FIELDS) - LOWERING[command] if command in LOWERING else set()
    assert set(plan_flags(command)) == expected


@pytest.mark.parametrize("command", LOWERING)
def test_an_option_is_the_same_flag_everywhere(command):
    """Check name, help, choices and accepted values of each flag against the field; only its default may differ."""
    for name, action in plan_flags(command).items():
        field = FIELDS[name]
        flag = f"--{name.replace('_', '-')}"
        assert action.dest == name and action.option_strings == [flag]
        assert action.help.split("; default: ")[0] == field.text.replace("%", "%%")
        if field.choices:
            assert action.metavar.startswith("{" + ",".join(field.choices) + "}")
        if action.nargs == 0:  # a switch
            assert field.kind is bool and action.const is not field.default
            continue
        several = command in ("compare", "infer", "memory")
        for value in field.choices or (field.default,):
            parsed = action.type(format_value(value))
            assert parsed in ((value,), value) if several else parsed == value
        if field.kind in (int, float):
            with pytest.raises(argparse.ArgumentTypeError):
                action.type("-1")
