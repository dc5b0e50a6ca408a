"""Networks of users, named by what makes them: `package.module:function` or `folder/file.py:function`.

A process that measures makes its network again, so a network needs a name from which that can be done. One that exists
as an object only is written as a program of its own, whose name holds a hash of its content.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UsageError, did_you_mean
from .layers import Network

FUNCTION = "network"  # of the programs that `write_network` makes


def is_own(name: str) -> bool:
    """Return whether a name is that of a function and not of the registry."""
    return ":" in name


def own_network(name: str) -> Network:
    """Return the network that a function of the user's makes.

    Raises
    ------
    UsageError
        As in `make_own`; or it returns something else.
    """
    found = make_own(name)
    if not isinstance(found, Network):
        raise UsageError(f"{name} must return a Network, got {type(found).__name__}; return forktask.Network(...)")
    return found


@cache
def make_own(name: str) -> Any:
    """Return what a function of the user's makes.

    Raises
    ------
    UsageError
        No such file, module or function; or one that fails.
    """
    place, _, function = name.rpartition(":")
    is_file = place.endswith(".py")
    if not function.isidentifier() or not (is_file or all(part.isidentifier() for part in place.split("."))):
        raise UsageError(
            f"a network of your own is named as module:function or file.py:function, got {name!r}; write it so"
        )
    try:
        module = _run_file(Path(place)) if is_file else _import(place)
        made = getattr(module, function, None)
        found = made() if callable(made) else made
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"network {name!r} must be made without an error, got {type(error).__name__}: {error}"
            f"{_line_of(error)}; mend that place"
        ) from error
    if made is None:
        known = [n for n, value in vars(module).items() if callable(value) or isinstance(value, Network)]
        raise UsageError(f"{place} must have a function {function!r}, found none{did_you_mean(function, known)}")
    return found


def _import(name: str) -> ModuleType:
    """Import a module, also from the folder where the user is."""
    sys.path.insert(0, "")
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"module {name!r} must be importable from here, got: {error}; or name its file: folder/file.py:function"
        ) from None
    finally:
        sys.path.remove("")


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module of its own, whose neighbours it can import."""
    if not path.is_file():
        raise UsageError(f"a network's file must be there, found no file {str(path)!r}; name it as file.py:function")
    spec = spec_from_file_location(f"forktask_network_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"a network's file must be a Python program, got {str(path)!r}")
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
    """Write a network as a program into a folder, and return the name by which other processes make it.

    Raises
    ------
    UsageError
        A layer that no program can make again, or a folder that cannot be written.
    """
    values = [network.name, network.input_shape, network.layers, network.tokens]
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
        path.write_text(text)
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


def _source(value: Any) -> str:
    """Return an expression that makes a value again."""
    if isinstance(value, tuple):
        return f"({''.join(f'{_source(v)}, ' for v in value)})"
    return repr(value)
