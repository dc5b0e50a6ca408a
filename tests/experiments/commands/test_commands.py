"""The command line: options of plans are the same flags in every command, and words mean the same everywhere."""

import argparse
import os
import sys
from types import SimpleNamespace

import pytest
from experiments.synthetic_results import plan_row, typed
from msgspec import structs

from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.lowering.options import PlanOptions, format_value
from forktask.cython_src.reading import read_toml
from forktask.cython_src.records import fields
from forktask.cython_src.typed_text import rounded
from forktask.experiments.commands.main import COMMANDS, main, make_parser
from forktask.experiments.report import files
from forktask.experiments.results.grids import kind_of, shipped
from forktask.experiments.studies import report as study_report
from forktask.experiments.studies import running, tables
from forktask.experiments.subjects.memory import format_bytes
from forktask.experiments.sweep import comparison, expected
from forktask.experiments.sweep.configuration import parse_configuration, read_configuration
from forktask.experiments.tables.numbers import digits_of

FIELDS = {field.name: field for field in fields(PlanOptions)}
# Commands that lower a plan, and the options that they set themselves.
LOWERING = {
    "compare": set(),
    "train": {"phase"},
    "evaluate": {*FIELDS} - {"batch", "sequence", "conv", "layout", "fusion", "granularity"},
    "metg": set(),
    "trace": set(),
    "plan": set(),
    "kernels": set(),
    "gate": set(),
}


(PLAN_ROW,) = typed([{**plan_row(), "memory_bytes": {"parameter": 1 << 20}}])


def parser_of(command):
    """The parser of a command, with its arguments."""
    (choices,) = (a.choices for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    parser = choices[command]
    parser.declare(parser)
    return parser


def plan_flags(command):
    """The arguments of a command whose flag or name is that of an option of plans, by the option's name."""
    result = {}
    for action in parser_of(command)._actions:
        words = {action.dest, *(o.lstrip("-").removeprefix("no-").replace("-", "_") for o in action.option_strings)}
        for name in words & set(FIELDS):
            assert name not in result, f"{command} declares {name} twice"
            result[name] = action
    return result


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
        several = command in ("compare", "plan") or (command, name) == ("evaluate", "conv")
        for value in field.choices or (field.default,):
            parsed = action.type(format_value(value))
            assert parsed in ((value,), value) if several else parsed == value
        if field.kind in (int, float):
            with pytest.raises(argparse.ArgumentTypeError):
                action.type("-1")


@pytest.mark.parametrize("command", [name.replace("_", "-") for name in COMMANDS])
def test_out_is_a_folder_and_file_is_a_file_in_every_command(command):
    """Check that --out means one thing: what it takes is a folder, and one file is --file."""
    result = {name: action.metavar for action in parser_of(command)._actions for name in action.option_strings}
    assert result.get("--out") in (None, "DIR") and result.get("--file") in (None, "FILE")


def test_serial_is_the_base_of_a_sweep_over_threads():
    """Check that beside other models serial takes part once, on one thread, whatever the numbers."""
    configuration = parse_configuration({"grid": {"models": ["serial", "taskiter"], "threads": [2]}})
    assert [(p.model, p.threads) for p in configuration.points()] == [("serial", 1), ("taskiter", 2)]


@pytest.mark.parametrize("path", [*shipped("sweep"), *shipped("study")], ids=lambda p: p.stem)
def test_a_dry_run_of_every_shipped_file_needs_nothing(path, monkeypatch, capsys):
    """Check that it explains its curve where there is no GPU and one core, and says what is missing."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(gpu_device, "shows_gpu", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(expected, "plan_row", lambda plan_id, plan: structs.replace(PLAN_ROW, options=plan))
    assert main(["run", path.stem, "--dry-run", "--quick"]) == 0
    text = capsys.readouterr().out
    assert " ".join(read_toml(path, "sweep")[1].split()) in " ".join(text.split())
    needs_gpu = path.stem == "cpu_gpu_batch" or (kind_of(path) == "sweep" and read_configuration(path).uses_gpu)
    assert ("cannot run: this machine has no GPU" in text) == needs_gpu


def test_numbers_have_no_exponent():
    """Check three digits at every size, and that zeros go where asked."""
    assert [rounded(x) for x in (93000, 0.01234, 1.5, 999.6, 0, -4.5e-6)] == [
        "93000", "0.0123", "1.50", "1000", "0", "-0.00000450"
    ]  # fmt: skip
    assert digits_of(0.0123) == 3 and digits_of(12.3) == 2, "two significant digits at least"
    assert rounded(1.5, zeros=False) == "1.5" and rounded(32, zeros=False) == "32"
    assert format_bytes(4e15) == "3730000 GiB"


@pytest.mark.parametrize("file", ["demonstration", "lenet5"])
def test_no_report_prints_and_draws_nothing(file, monkeypatch, tmp_path, capsys):
    """Check that a sweep and a study that are only measured say where their samples are, and what draws them."""
    done = SimpleNamespace(usable=True, complete=True, failed=list, done=lambda: [1])

    def draw(*arguments):
        raise AssertionError("drawn")

    monkeypatch.setattr(comparison, "measure_comparison", lambda *arguments, **options: done)
    monkeypatch.setattr(running, "run_study", lambda *arguments: done)
    monkeypatch.setattr(tables, "agreement", lambda results: ([], []))
    for module, name in ((files, "report_folder"), (study_report, "write_study_report")):
        monkeypatch.setattr(module, name, draw)
    out = str(tmp_path / "out")
    assert main(["run", file, "--no-report", "--out", out]) == 0
    assert capsys.readouterr().out == f"{out}: samples.jsonl; to print and draw it: forktask report {out}\n"
    assert main(["run", file, "--no-report", "--json"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err
