"""Networks and graphs of users, named by what makes them: `package.module:function` or `folder/file.py:function`, with
arguments as in a call: `heat.py:heat(grain=16)`.

A process that measures makes its network again, so a network needs a name from which that can be done. One that exists
as an object only is written as a program of its own, whose name holds a hash of its content.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import math
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from ..arguments import checked_call
from ..errors import UsageError, did_you_mean
from .layers import Network

FUNCTION = "network"  # of the programs that `write_network` makes
LEVELS = 3  # above a results folder: --out a/b/c
_above: list[Path] = []
_CALL = re.compile(r"(?P<function>.*?:[^\W\d]\w*)(?P<arguments>\(.*)?", re.DOTALL)


def look_above(folder: str | os.PathLike) -> None:
    """Find users' files and modules also from the folders above a results folder: its command ran in one of them."""
    _above[:] = Path(folder).resolve().parents[:LEVELS]


def is_own(network: Any) -> bool:
    """Return whether a network is given by the name of a function, not by one of the registry or as an object."""
    return isinstance(network, str) and ":" in network


def name_call(function: str, arguments: Mapping[str, Any]) -> str:
    """Return the name of what a function makes of some arguments, such as `heat.py:heat(grain=16)`. Raises
    `UsageError`: the function's name holds arguments already, or one is no scalar."""
    if split_call(function)[1]:
        raise UsageError(f"arguments are named once, got {function!r} and {dict(arguments)!r}; leave out one of them")
    for name, value in arguments.items():
        if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
            raise UsageError(
                f"argument {name!r} of {function} must be a number, a text, true or false, got {value!r}; let the "
                f"function make larger things of such"
            )
    return f"{function}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def split_call(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a function without its arguments, and these; other names come back as they are. Raises
    `UsageError`: arguments that are not written as NAME=VALUE with numbers, texts, True or False."""
    result = _CALL.fullmatch(name)
    if result is None or not result["arguments"]:
        return name, {}
    try:
        call: Any = ast.parse(f"f{result['arguments']}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not all(word.arg for word in call.keywords):
            raise ValueError
        arguments = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        name_call(result["function"], arguments)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"arguments of a function are written as in file.py:function(grain=16, kind='fine'), got {name!r}"
        ) from None
    return result["function"], arguments


def own_network(name: str) -> Network:
    """Return the network that a function of the user's makes. Raises `UsageError`: as in `make_own`; or it returns
    something else."""
    result = make_own(name)
    if not isinstance(result, Network):
        raise UsageError(
            f"{name} must return a Network, a UserGraph or a Plan, got {type(result).__name__}; return one of these"
        )
    return result


@cache
def make_own(name: str) -> Any:
    """Return what a function of the user's makes. Raises `UsageError`: no such file, module or function; or one that
    fails."""
    result, arguments = own_function(name)
    called = split_call(name)[0]
    if arguments and not callable(result):
        raise UsageError(f"{called} takes arguments as a function only, got {type(result).__name__}; leave them out")
    try:
        made = checked_call(result, called)(**arguments) if callable(result) else result
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error
    if hasattr(made, "named_parameters"):
        raise UsageError(
            f"{name} must make a network, got the PyTorch module {type(made).__name__}; return "
            f"forktask.from_torch(module, example_input)"
        )
    return made


def own_function(name: str) -> tuple[Any, dict[str, Any]]:
    """Return what a name stands for, mostly a function, and the arguments that it names. Raises `UsageError`: no such
    file, module or function; or one that fails."""
    called, arguments = split_call(name)
    place, _, function = called.rpartition(":")
    is_file = place.endswith(".py")
    if not function.isidentifier() or not (is_file or all(part.isidentifier() for part in place.split("."))):
        raise UsageError(f"code of your own is named as module:function or file.py:function, got {name!r}; write it so")
    try:
        module = _run_file(Path(place)) if is_file else _import(place)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # a program may end itself where it is imported
        raise _failed(name, error) from error
    result = getattr(module, function, None)
    if result is None:
        known = [n for n, value in vars(module).items() if callable(value) or isinstance(value, Network)]
        remedy = did_you_mean(function, known) or "; define it there, or name another"
        raise UsageError(f"{place} must have a function {function!r}, found none{remedy}")
    return result, arguments


def check_arguments(function: Any, arguments: Mapping[str, Any]) -> None:
    """Raise `UsageError` for arguments that do not fit a function's signature."""
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"all arguments that function {getattr(function, '__name__', function)} needs must be given, as in "
            f"(n=1000), and no others, got {', '.join(arguments) or 'none'}: {error}"
        ) from None


def _failed(name: str, error: BaseException) -> UsageError:
    return UsageError(
        f"{name!r} must be made without an error, got {type(error).__name__}: {error}{_line_of(error)}; mend that place"
    )


def _import(name: str) -> ModuleType:
    """Import a module, also from the folder where the user is; folders of PYTHONPATH come first."""
    folders = ["", *map(str, _above)]
    first = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    place = max((number for number, folder in enumerate(sys.path, 1) if folder and folder in first), default=0)
    sys.path[place:place] = folders
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"module {name!r} must be importable from here, got: {error}; or name its file: folder/file.py:function"
        ) from None
    finally:
        for folder in folders:
            sys.path.remove(folder)


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module of its own, whose neighbours it can import."""
    named, path = path, next((result for folder in (Path(), *_above) if (result := folder / path).is_file()), path)
    if not path.is_file():
        above = f" here or above {str(_above[0])!r}" if _above else ""
        remedy = "give the command in the folder from which it was named" if _above else "name it as file.py:function"
        raise UsageError(f"a file of your own must be there, found no file {str(named)!r}{above}; {remedy}")
    spec = spec_from_file_location(f"forktask_network_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"a file of your own must be a Python program, got {str(path)!r}")
    module = module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def _line_of(error: BaseException) -> str:
    """Say where in the user's program an exception was raised."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != __file__ and not file.startswith("<frozen"):
            place = f" (line {trace.tb_lineno} of {file})"
        trace = trace.tb_next
    return place


def write_network(network: Network, folder: Path) -> str:
    """Write a network as a program into a folder, and return the name by which other processes make it. Raises
    `UsageError`: a layer that no program can make again, or a folder that cannot be written."""
    values = [network.name, network.input_shape, network.layers, network.tokens, *[True] * network.unchecked]
    text = (
        '"""A network, as forktask.compare() was given it."""\n\n'
        "from forktask.cython_src.networks.layers import *  # noqa: F403\n"
        f"from forktask.cython_src.networks.layers import Network\n\n\ndef {FUNCTION}():\n"
        f"    return Network({', '.join(map(_source, values))})\n"
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    word = "".join(c if c.isalnum() else "_" for c in network.name)
    path = folder / f"{word}-{digest}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another folder") from None
    name = f"{path}:{FUNCTION}"
    if own_network(name) != network:
        path.unlink()
        raise UsageError(
            f"network {network.name!r} has a layer that cannot be written down; put it into a function, and name that "
            f"as file.py:function"
        )
    return name


def short_name(name: str) -> str:
    """Return what its maker called a network that `write_network` has written; other names come back as they are."""
    result = re.fullmatch(rf"(?:.*/)?(?P<called>\w+)-[0-9a-f]{{8}}\.py:{FUNCTION}", name)
    return result["called"] if result else name


def _source(value: Any) -> str:
    """Return an expression that makes a value again."""
    if isinstance(value, tuple):
        return f"({''.join(f'{_source(v)}, ' for v in value)})"
    return repr(value)
