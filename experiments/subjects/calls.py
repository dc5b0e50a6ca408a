"""Functions and programs of the user's: how they are named and checked, and the plan that stands for one call.

A call is a model with an option, not a plan: ratios are taken between the models of one plan, and all calls of a
comparison are alternatives for one piece of work. Their plan holds what a call returned, so that results are compared
as those of all models are.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ...cython_src.arguments import checked_call
from ...cython_src.errors import UsageError, check_choice
from ...cython_src.graphs.user_graph import TaskRecorder
from ...cython_src.networks.own import check_arguments, name_call, own_function, split_call
from ...cython_src.plan.model import Plan
from ...cython_src.typed_text import parse_real
from .models import ModelSpec
from .peer_models import FUNCTION, PROGRAM, ProgramOptions

CALLS = f"{__name__}:calls"  # network of a comparison of calls
ARGUMENTS = "arguments"  # attribute of the plan
DIGEST, VALUES = "call_digest", "call_values"  # arrays of the plan: of all that a call returned, of some numbers in it
OF_PROGRAMS = ("threads_variable", "time_pattern")  # options of all programs of a comparison
TARGET = "{target}"  # in a program's command: the folder in which the gate installed a commit
TARGET_VARIABLE = "FORKTASK_TARGET"  # by which a process knows that folder
MOST_VALUES = 64
COMPARABLE = "biufcSUMm"  # kinds of NumPy's types
NOT_PLANNED = "A function or program runs no plan: there are no blocks, profiles, bounds and simulations of it."
REGION = "FORKTASK_REGION"  # of region.h: the descriptor to which a program writes its marks
SHOWN = 300  # characters of what a failed program printed


def calls(**arguments: Any) -> Plan:
    """Return the plan behind functions and programs: a task for the call, which executors make in its place, and arrays
    for what it returned; `arguments`: of all functions, which a sweep has as axes."""
    graph = TaskRecorder("calls")
    digest = graph.array(DIGEST, np.zeros(hashlib.sha256().digest_size, np.uint8))
    values = graph.array(VALUES, np.zeros(MOST_VALUES))
    graph.task(_call, updates=[digest, values])
    plan = graph.plan()
    return replace(plan, attributes=MappingProxyType({**plan.attributes, ARGUMENTS: arguments}))


def is_calls(network: Any) -> bool:
    """Return whether a network is that of a comparison of calls."""
    return isinstance(network, str) and split_call(network)[0] == CALLS


def _call(digest: np.ndarray, values: np.ndarray) -> None:
    """Stand for the call in the graph."""


def calls_text(network: str) -> str:
    """Return the network of a comparison of calls without its module; other names come back as they are."""
    return network.removeprefix(f"{__name__}:")


def call_specs(
    functions: Iterable[str] | Mapping[str, str] = (),
    programs: Iterable[str] | Mapping[str, str] = (),
    reference: str = "",
    **options: Any,
) -> tuple[ModelSpec, ...]:
    """Return the models of functions and programs, the reference first.

    Parameters
    ----------
    functions, programs : texts, or mapping of name to text
        A text may begin with its name: `NAME=solver:step(n=1000)`.
    reference : str
        One of them, by its name, or by its text where it has none; "": the first.
    **options
        Of all programs: `threads_variable`, `time_pattern`.

    Raises
    ------
    UsageError
        One name for two, or a reference that is none of them.
    """
    if options and not programs:
        raise UsageError(f"{' and '.join(options)} is of programs, got functions alone; leave it out")
    specs = [ModelSpec(FUNCTION, FUNCTION.options(call=c, name=n), FUNCTION.binding()) for n, c in _named(functions)]
    specs += [
        ModelSpec(PROGRAM, PROGRAM.options(command=c, name=n, **options), PROGRAM.binding())
        for n, c in _named(programs)
    ]
    by_name: dict[str, ModelSpec] = {}
    for spec in specs:
        if by_name.setdefault(label(spec), spec) is not spec:
            raise UsageError(
                f"functions and programs must have names of their own, got {label(spec)!r} twice; name one"
            )
    if reference and not specs:
        raise UsageError(f"a reference is one of the functions and programs, got {reference!r} and none; leave it out")
    if reference:
        check_choice("the reference", reference, by_name)
        specs.sort(key=lambda spec: spec is not by_name[reference])
    return tuple(specs)


def _named(texts: Iterable[str] | Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of calls."""
    if isinstance(texts, Mapping):
        yield from texts.items()
        return
    for text in (texts,) if isinstance(texts, str) else texts:
        match = re.fullmatch(r"([\w.-]+)=(.*)", text, re.DOTALL)
        yield (match[1], match[2]) if match else ("", text)


def _text(spec: ModelSpec) -> str:
    return spec.option("call") or spec.option("command", "")


def label(spec: ModelSpec) -> str:
    """Return what tables and figures call a function or program; of other models their text."""
    return (spec.option("name") or _text(spec)) if spec.model.is_call else str(spec)


def check_call(spec: ModelSpec, network: str = CALLS) -> None:
    """Raise `UsageError` for a function that cannot be imported or called so, a program that is not here, or a pattern
    without one group."""
    if spec.model is FUNCTION:
        made_function(spec.options.call, 1, tuple(split_call(network)[1].items()))
        return
    program_words(spec.options, 1)
    _pattern(spec.options)


@cache
def made_function(
    call: str, threads: int, shared: tuple[tuple[str, Any], ...] = ()
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Import a function of the user's; return it with the arguments that its call names, those that all functions
    share, and `threads` if it takes them. Raises `UsageError`: no such function, or other arguments than it takes."""
    function, arguments = own_function(call)
    if not callable(function):
        raise UsageError(f"{call} must be a function, got {type(function).__name__}; name one that can be called")
    return function, all_arguments(function, {**dict(shared), **arguments}, threads)


def all_arguments(function: Callable[..., Any], arguments: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Return the arguments of a function, with `threads` if it takes them. Raises `UsageError`: it takes others."""
    try:
        parameter = inspect.signature(function).parameters.get("threads")
    except (TypeError, ValueError):  # compiled, without a signature
        return {**arguments}
    if parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
        arguments = {"threads": threads, **arguments}
    check_arguments(function, arguments)
    return {**arguments}


def spec_of(function: Any, arguments: Mapping[str, Any]) -> tuple[ModelSpec, str]:
    """Return the model of a function that is given as an object, and the folders where a fresh process finds it. Raises
    `UsageError`: one that no other process can import, or arguments that it does not take."""
    name, module = getattr(function, "__name__", ""), sys.modules.get(getattr(function, "__module__", None) or "")
    if not callable(function) or module is None or getattr(module, name, None) is not function:
        raise UsageError(
            f"a function must stand at the top level of a module, so that a fresh process can import it, got "
            f"{function!r:.80}; move it there (no lambda, no function inside a function, no method)"
        )
    all_arguments(function, arguments, 1)
    file = Path(getattr(module, "__file__", None) or ".").resolve()
    levels = module.__name__.count(".") + (file.stem == "__init__")
    place = str(file) if file.suffix == ".py" and not levels else module.__name__  # a test's file needs no name
    call = name_call(f"{place}:{name}", arguments) if arguments else f"{place}:{name}"
    short = call.removeprefix(f"{place}:")
    spec = ModelSpec(FUNCTION, FUNCTION.options(call=call, name=short), FUNCTION.binding())
    return spec, os.pathsep.join([str(file.parents[levels]), *filter(None, sys.path)])


def prepared_call(call: str, threads: int, plan: Plan) -> Callable[[], Any]:
    """Return what is timed: the function, or what it returns if that can be called: then the function was setup."""
    function, arguments = made_function(call, threads, tuple(plan.attributes[ARGUMENTS].items()))
    made = checked_call(function, call)(**arguments) if inspect.isfunction(function) else function(**arguments)
    if inspect.isgenerator(made) or inspect.iscoroutine(made):
        raise UsageError(
            f"{call} must compute when it is called, got a {type(made).__name__}, which does nothing until it is "
            f"asked; return a function that does the work"
        )
    return made if callable(made) else partial(function, **arguments)


def keep_result(bound: Any, result: Any) -> None:
    """Write the digest of what a call returned, and some of its numbers, into the arrays of its plan. Raises
    `UsageError`: something that cannot be compared."""
    digest, numbers = hashlib.sha256(), []
    for part in _parts(result):
        array = np.asarray(part)
        if array.dtype.kind not in COMPARABLE:
            raise UsageError(
                f"functions must return arrays, numbers, texts, None or lists of these, got {type(part).__name__}; "
                f"return one of these, or do not compare what they return"
            )
        if array.dtype.kind in "fc":
            array = array + 0.0  # one zero
        digest.update(f"{array.shape} {array.dtype.str};".encode() + np.ascontiguousarray(array).tobytes())
        if array.dtype.kind in "biufc":
            numbers.append(array.ravel().view(array.real.dtype if array.dtype.kind == "c" else array.dtype))
    bound.arrays[DIGEST][...] = np.frombuffer(digest.digest(), np.uint8)
    flat = np.concatenate(numbers, dtype=np.float64, casting="unsafe") if numbers else np.zeros(0)
    kept = bound.arrays[VALUES]
    kept[...] = 0.0
    if flat.size:
        with np.errstate(all="ignore"):
            kept[:3] = flat.size, flat.mean(), math.sqrt(float(np.mean(flat * flat)))
        places = np.linspace(0, flat.size - 1, min(flat.size, MOST_VALUES - 3)).round().astype(int)
        kept[3 : 3 + len(places)] = flat[places]


def _parts(result: Any) -> Iterator[Any]:
    """Yield the arrays, numbers and texts of what a call returned, in their order, each list behind its length."""
    if isinstance(result, Mapping):
        yield str([*result])
        result = [*result.values()]
    if result is None:
        yield "None"
    elif isinstance(result, list | tuple):
        yield f"{len(result)} parts"
        for part in result:
            yield from _parts(part)
    else:
        yield result


# --- programs


def program_words(options: ProgramOptions, threads: int) -> list[str]:
    """Return a program and its arguments. Raises `UsageError`: quotes that do not match, or no such program."""
    try:
        target = os.environ.get(TARGET_VARIABLE, TARGET)
        words = [w.replace("{threads}", str(threads)).replace(TARGET, target) for w in shlex.split(options.command)]
    except ValueError as error:
        raise UsageError(
            f"a program must be named as in a shell, got {options.command!r} ({error}); mend its quotes"
        ) from None
    if not words or shutil.which(words[0]) is None:
        raise UsageError(
            f"a program must be a file here or on PATH that can be run, got {options.command!r}; build it, or name it "
            f"as in ./a.out"
        )
    return words


def _pattern(options: ProgramOptions) -> re.Pattern[str] | None:
    try:
        pattern = re.compile(options.time_pattern) if options.time_pattern else None
    except re.error as error:
        raise UsageError(
            f"time_pattern must be a regular expression, got {options.time_pattern!r} ({error}); mend it"
        ) from None
    if pattern and pattern.groups != 1:
        raise UsageError(
            f"time_pattern must have one group, for the number, got {options.time_pattern!r}; write it as in "
            rf"'time: (\S+)'"
        )
    return pattern


def run_program(options: ProgramOptions, threads: int, limit_s: float | None = None) -> float:
    """Run a program to its end, and return how long that took, or its marked regions, or the seconds that it
    printed.

    Raises
    ------
    UsageError
        No such program, or output in which the pattern finds no number, or several.
    RuntimeError
        It failed.
    subprocess.TimeoutExpired
        It took longer than the limit.
    """
    words, pattern = program_words(options, threads), _pattern(options)
    with tempfile.TemporaryFile() as marks:
        start = time.perf_counter()
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, options.threads_variable: str(threads), REGION: str(marks.fileno())},
            pass_fds=[marks.fileno()],
            timeout=limit_s,
            check=False,
        )
        elapsed = time.perf_counter() - start
        marks.seek(0)
        marked = marks.read().decode(errors="replace")
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        end = f"by signal {-done.returncode}" if done.returncode < 0 else f"with exit code {done.returncode}"
        raise RuntimeError(f"{options.command!r} ended {end}: {text.strip()[-SHOWN:] or 'it printed nothing'}")
    if pattern is None:
        return marked_s(marked, options.command) if marked else elapsed
    found = pattern.findall(text)
    try:
        (number,) = map(parse_real, found)
    except ValueError:
        seen = f"{len(found)} places" if len(found) != 1 else repr(found[0])
        raise UsageError(
            f"time_pattern {options.time_pattern!r} must find one number in what {options.command!r} prints, got "
            f"{seen} in {text.strip()[-SHOWN:]!r}; change the pattern, or leave it out"
        ) from None
    return number


def marked_s(text: str, command: str) -> float:
    """Return the seconds between a program's marks, of `region.h`. Raises `UsageError`: they are no pairs."""
    marks = [line.split() for line in text.splitlines()]
    try:
        if [name for name, _ in marks] != ["begin", "end"] * (len(marks) // 2):
            raise ValueError
        return sum(float(end) - float(begin) for (_, begin), (_, end) in zip(marks[::2], marks[1::2], strict=True))
    except ValueError:
        raise UsageError(
            f"marks of a region must be begin and end in turn, by one thread, got {text.strip()[-SHOWN:]!r} of "
            f"{command!r}; end each before the next"
        ) from None


def try_programs(specs: Sequence[ModelSpec], threads: int, limit_s: float) -> None:
    """Run each program whose time is printed once, so that a pattern that finds none is refused before anything is
    measured; programs that fail have rows that say so."""
    for spec in specs:
        if spec.model is PROGRAM and spec.options.time_pattern:
            try:
                run_program(spec.options, threads, limit_s)
            except (RuntimeError, OSError, subprocess.TimeoutExpired):
                continue
