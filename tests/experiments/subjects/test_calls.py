"""Functions and programs as contestants: their names, what they return, and what is refused."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import forktask as ft
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.experiments.commands.main import main
from forktask.experiments.peers.calls_executor import FunctionExecutor, ProgramExecutor
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import FailureRow, SampleRow
from forktask.experiments.subjects.calls import DIGEST, VALUES, call_specs, calls, keep_result, label
from forktask.experiments.subjects.models import parse_model, read_model
from forktask.experiments.subjects.subject import result_hashes

MODULE = """
import os
import numpy as np

def add(n=2000, offset=0.0):
    return np.arange(float(n)) + offset

def add_late(n=2000, threads=1):
    return add(n, 1e-9 * n * threads)

def setup(n=2000):
    data = np.ones(n)
    return lambda: float(data.sum())

def count(made=[]):
    made.append(1)
    return len(made)

def by_threads(threads):
    return float(threads)

def environment(threads=0):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
    assert [int(os.environ[name]) for name in names] == [threads] * 4
    return len(os.sched_getaffinity(0)) == threads

def fails():
    raise ArithmeticError("no convergence")

def needs(n):
    return n

def makes_object():
    return object()

def generator():
    yield 1
"""
PROGRAM = """
import os, sys, time
start = time.perf_counter()
sum(range(20000))
if "fail" in sys.argv:
    sys.exit("no input")
if "abort" in sys.argv:
    os.abort()
for _ in range(int(sys.argv[1])):
    print("threads", os.environ.get("OMP_NUM_THREADS"), os.environ.get("MY_THREADS"), sys.argv[2:], file=sys.stderr)
    print("time:", time.perf_counter() - start)
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "solver.py").write_text(MODULE)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("solver", None)  # others have a module of this name


def program(arguments: str) -> str:
    return f"{sys.executable} program.py {arguments}"


def compared(**arguments):
    """Compare briefly; return the rows and the comparison, if anything could be reported on."""
    try:
        result = ft.compare(out="out", quick=True, threads=arguments.pop("threads", [1]), **arguments)
    except RuntimeError:
        result = None
    rows = read_results("out").rows
    return {kind: [row for row in rows if isinstance(row, kind)] for kind in (SampleRow, FailureRow)}, result


def test_a_call_is_a_model_whose_text_can_be_read_back():
    """Check that names, colons and patterns survive in rows, and that the reference is the first."""
    specs = call_specs({"a": "m:f(s='x::y:z', n=2)"}, ["./p 1:2"], "./p 1:2", time_pattern=r"t=:(\S+):")
    assert [label(spec) for spec in specs] == ["./p 1:2", "a"]
    assert specs[0].options.time_pattern == r"t=:(\S+):"
    named = call_specs(["f=m:f(n=1)", "m:f(n=1)"], ["p=./p n=1", "python p n=1"])
    assert [label(spec) for spec in named] == ["f", "m:f(n=1)", "p", "python p n=1"]
    for spec in (*specs, *named):
        for read in (parse_model, read_model):
            assert read(str(spec)) == spec and read(str(spec)).options == spec.options


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (1.5, np.float64(1.5), True),
        (0.0, -0.0, True),
        (None, None, True),
        (None, 0.0, False),
        ([1.0, np.zeros(3)], (1.0, np.zeros(3)), True),
        ([1.0, 2.0], [[1.0], 2.0], False),
        (np.zeros((2, 3)), np.zeros((3, 2)), False),
        ({"a": 1}, {"b": 1}, False),
        (np.ones(2, np.float32), np.ones(2), False),
        (float("nan"), float("nan"), True),
        (np.arange(1000.0), np.where(np.arange(1000) == 501, 0, np.arange(1000.0)), False),
        (1 + 2j, 1 - 2j, False),
    ],
)
def test_results_are_equal_by_value_shape_and_type(first, second, same):
    """Check which results have the same digest."""
    bound, hashes = bind(calls()), []
    for result in (first, second):
        keep_result(bound, result)
        hashes.append((bound.arrays[DIGEST].tobytes(), result_hashes(bound)["weights_hash"]))
    assert (hashes[0] == hashes[1]) == same


def test_setup_is_not_timed_and_threads_are_passed(code):
    """Check that a function that returns a function is called once, and that `threads` arrives."""
    bound = bind(calls())
    for call, expected in (("solver:setup(n=7)", 7.0), ("solver:by_threads", 1.0)):
        with FunctionExecutor(1, call=call) as executor:
            executor.prepare(bound)
            executor.run(3)
            executor.collect()
            assert bound.arrays[VALUES][1] == expected


def test_a_comparison_of_functions_has_times_ratios_and_a_page(code):
    """Check rows, table, ratio by name and page; the environment and CPUs of the call; results within a tolerance."""
    functions = {"add": "solver:add", "late": "solver:add_late"}
    rows, comparison = compared(functions=functions, threads=[1, 2], rtol=1e-3)
    assert not rows[FailureRow] and len(rows[SampleRow]) == 2 * len({row.threads for row in rows[SampleRow]})
    assert {label(row.model) for row in rows[SampleRow]} == {"add", "late"}
    assert comparison.ratio("late", "add").value > 0
    table = comparison.table
    assert (
        set(table["reference"].dropna()) <= {"", "function:call=solver::add:name=add"} and (table["time_s"] > 0).all()
    )
    page = comparison.write_report().read_text()
    assert "<h1>Comparison of functions" in page and "runs no plan" in page and "CPUs busy" in page
    for left_out in ("What bounds the kernels", "fork-join", "roofline", "1 tasks", "execution models", "layers.csv"):
        assert left_out not in page, left_out


def test_libraries_get_as_many_threads_as_are_asked_for(code):
    """Check that OpenMP, BLAS, Numba and joblib have one number, and that the process has so many CPUs."""
    rows, _ = compared(functions=["solver:environment"], threads=[2])
    assert not rows[FailureRow] and [row.threads for row in rows[SampleRow]] == [2]


@pytest.mark.parametrize(
    ("functions", "options", "message"),
    [
        (["solver:add", "solver:add(offset=1.0)"], {}, "must return the same as solver:add on 1 thread"),
        (["solver:by_threads"], {"threads": [1, 2]}, "must return the same as solver:by_threads on 1 thread"),
        (["solver:add", "solver:add(offset=900.0)"], {"rtol": 0.01}, "more than rtol=0.01"),
        (["solver:add", "solver:count"], {}, "must return the same at each call"),
        (["solver:add", "solver:fails"], {}, "ArithmeticError: no convergence"),
        (["solver:add", "solver:makes_object"], {}, "must return arrays, numbers, texts, None"),
        (["solver:add", "solver:generator"], {}, "got a generator, which does nothing"),
    ],
)
def test_what_a_function_does_wrong_is_a_row_with_its_reason(code, functions, options, message):
    """Check that other results, changing state, exceptions and other objects are failures, and nothing else is lost."""
    rows, _ = compared(functions=functions, **options)
    assert len(rows[FailureRow]) == 1 and message in rows[FailureRow][0].message
    assert label(rows[FailureRow][0].model) == functions[-1] and rows[SampleRow]


def test_results_are_not_compared_where_that_is_asked_for(code):
    """Check that functions of other results and of no comparable result are timed."""
    names = ["solver:add", "solver:add(offset=1.0)", "solver:count", "solver:makes_object"]
    rows, _ = compared(functions=names, compare_results=False)
    assert not rows[FailureRow] and len(rows[SampleRow]) == 4


def test_programs_take_part_by_wall_time_or_by_what_they_print(code):
    """Check both; how long either takes is the machine's."""
    rows, _ = compared(programs={"wall": program("1")})
    (wall,) = rows[SampleRow]
    assert wall.step_time_s > 0
    with ProgramExecutor(1, command="echo time: 0.25", time_pattern=r"time: (\S+)") as executor:
        executor.prepare(bind(calls()))
        executor.run(2)
        assert executor.clock() == 0.5


def test_a_program_gets_its_number_of_threads(code):
    """Check the variable and the place in the command."""
    command = program("1 {threads}") + " x"
    (spec,) = call_specs(
        programs=[command], threads_variable="MY_THREADS", time_pattern=r"threads \w+ (\d) \['\d', 'x'"
    )
    with ProgramExecutor(3, **spec.options.as_dict()) as executor:
        executor.prepare(bind(calls()))
        executor.run(1)
        assert executor.clock() == 3.0


@pytest.mark.parametrize(
    ("arguments", "reason", "message"),
    [
        ("1 fail", "crash", "with exit code 1: no input"),
        ("1 abort", "crash", "by signal 6"),
        ("x" * 3, "crash", "ValueError"),
    ],
)
def test_a_program_that_fails_is_a_row_with_its_reason(code, arguments, reason, message):
    """Check that exit codes and signals stand in a row, and that the other program is measured."""
    rows, _ = compared(programs=[program("1"), program(arguments)])
    (failure,) = rows[FailureRow]
    assert failure.reason == reason and message in failure.message and rows[SampleRow]


def test_a_program_that_takes_too_long_is_a_row(code):
    """Check that the time limit ends a program."""
    rows, _ = compared(programs=["sleep 60"], time_limit_s=1.0)
    assert [row.reason for row in rows[FailureRow]] == ["timeout"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"functions": ["solver:nothing"]}, "must have a function 'nothing'"),
        ({"functions": ["nowhere:f"]}, "must be importable"),
        ({"functions": ["solver"]}, "named as module:function or file.py:function"),
        ({"functions": ["solver:needs"]}, "missing a required argument: 'n'"),
        ({"functions": ["solver:add(m=1)"]}, "unexpected keyword argument 'm'"),
        ({"functions": ["solver:add", "solver:add"]}, "must have names of their own"),
        ({"functions": ["solver:add"], "reference": "other"}, "the reference must be one of solver:add"),
        ({"functions": ["solver:add"], "models": "serial"}, "run no plan and no execution model, got --models too"),
        ({"functions": ["solver:add"], "conv": "direct"}, "got --conv too; leave it out"),
        ({"functions": ["solver:add"], "time_pattern": "x"}, "is of programs"),
        ({"reference": "a"}, "a reference is one of the functions and programs"),
        ({"rtol": 0.1}, "rtol and compare_results are of functions"),
        ({"models": "function"}, "must name what is called"),
        ({"models": ["serial", "function:call=solver::add"]}, "compared with each other"),
        ({"programs": ["./none"]}, "must be a file here or on PATH"),
        ({"programs": ["a 'b"]}, "mend its quotes"),
        ({"programs": [program("1")], "time_pattern": "(x"}, "must be a regular expression"),
        ({"programs": [program("1")], "time_pattern": "x"}, "must have one group"),
        ({"programs": [program("1")], "time_pattern": r"zeit: (\S+)"}, "got 0 places"),
        ({"programs": [program("1")], "time_pattern": r"(threads)"}, "got 'threads'"),
    ],
)
def test_bad_input_gets_one_sentence_before_anything_is_measured(code, arguments, message):
    """Check rule, value and remedy, and that no folder is left with samples."""
    with pytest.raises(UsageError, match="^(?!.*\n)") as caught:
        ft.compare(out="out", quick=True, threads=[1], **arguments)
    assert message in str(caught.value)


def test_the_command_compares_a_function_and_a_program(code):
    """Check the command line: names, reference, exit codes."""
    command = [sys.executable, "-m", "forktask", "compare", "--quick", "--threads", "1", "--out", "out"]
    calls = ["--function", "f=solver:add(n=10)", "--program", program("1"), "--reference", "f"]
    done = subprocess.run([*command, *calls], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "against f" in done.stdout and "runs no plan" in done.stderr
    for command_of_plans in ("diagnose", "simulate"):
        done = subprocess.run([*command[:3], command_of_plans, "out"], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "runs no plan" in done.stderr
    for option in (["--network", "lenet5"], ["--conv", "direct"], ["--trace"], ["--no-profile"], ["--device", "cpu"]):
        done = subprocess.run([*command, *calls, *option], capture_output=True, text=True, check=False)
        assert done.returncode == 2 and f"got {option[0].replace('no-', '')} too" in done.stderr, option


SWEEP = """
title = "Arguments"
[grid]
network = "forktask.experiments.subjects.calls:calls"
models = ["function:call=solver::add:name=add", "function:call=solver::needs:name=needs"]
threads = 1
[grid.arguments]
n = [10, 1000]
[measure]
repeats = 1
target_s = 0.01
compare_results = false
"""


def test_arguments_of_all_functions_are_an_axis(code, capsys):
    """Check that functions get the arguments of their plan, that a dry run and status name calls without profiles, and
    that figure `calls` has a point for each number."""
    (code / "sweep.toml").write_text(SWEEP)
    assert main(["run", "sweep.toml", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "\ncalls(n=10)\n" in said and "  add on 1 thread" in re.sub(" [0-9a-f]{12} ", "", said)
    assert "4 configurations x 1 repeats: 4 measurements" in said
    assert main(["run", "sweep.toml", "--out", "out"]) == 0
    assert not [row for row in read_results("out").rows if isinstance(row, FailureRow)]
    capsys.readouterr()
    assert main(["status", "out"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^add  .* calls\(n=1000\)", said, re.MULTILINE) and "function:call" not in said
    assert main(["report", "out", "--figure", "calls", "--file", "calls.svg"]) == 0
    assert (code / "calls.svg").exists() and "Time of a call over n." in (code / "calls.txt").read_text()
    (code / "wrong.toml").write_text(SWEEP.replace("n = [", "m = ["))
    assert main(["run", "wrong.toml", "--out", "wrong"]) == 2
    assert "all arguments that function add needs must be given" in capsys.readouterr().err


@pytest.mark.numba
def test_the_guide_runs(tmp_path, monkeypatch):
    """Check that the files of the guide, compared by its commands and tested by its tests, are measured."""
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[3] / "docs/guide/own_code.md").read_text()
    for name, content in re.findall(r"```\w+\n(?:#|/\*) (\S+\.\w+)(?: \*/)?\n(.*?)```", text, re.DOTALL):
        (tmp_path / name).write_text(content.replace("1000", "60").replace("=600", "=60"))
    commands = [line.strip() for line in text.splitlines() if line.startswith(("    gcc", "    forktask"))]
    assert len(commands) == 4
    for number, command in enumerate(commands):
        words = shlex.split(command)
        if words[0] == "forktask":
            words = [sys.executable, "-m", *words, "--quick", "--out", f"out{number}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    tests = ["-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_speed.py", "--scaling-budget=0"]
    done = subprocess.run([sys.executable, *tests], capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout


REGION = """
#include "experiments/subjects/region.h"
#include <unistd.h>

int main(int argc, char **argv)
{
    usleep(20000);
    for (int i = 0; i < 2; i++) {
        forktask_region_begin();
        usleep(1000);
        if (argc < 2)
            forktask_region_end();
    }
    return 0;
}
"""


def test_the_time_of_marked_regions_counts(code):
    """Check that a C program's regions are added up, that its other time counts for nothing, that marks without an end
    are a row with the reason, and that the program runs without forktask too."""
    (code / "marked.c").write_text(REGION)
    subprocess.run(["cc", "-O2", f"-I{ft.get_include()}", "marked.c", "-o", "marked"], check=True, cwd=code)
    assert subprocess.run([code / "marked"], capture_output=True, check=True).stdout == b""
    rows, _ = compared(programs={"whole": "sleep 0.005", "marked": "./marked"})
    (row,) = (row for row in rows[SampleRow] if label(row.model) == "marked")
    assert min(*row.short_times_s, *row.long_times_s) >= 0.002 and row.step_time_s < 0.022 and not rows[FailureRow]
    shutil.rmtree("out")
    rows, _ = compared(programs={"open": "./marked open"})
    assert "marks of a region must be begin and end in turn" in rows[FailureRow][0].message
