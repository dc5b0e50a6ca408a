"""What a scaling test is about: a network, or a function that makes the user's own graph; and how a process
gets it.

Every measurement runs in a fresh process, so a subject must be something that another process can make again:
the arguments of `lower`, or a function of a module's top level with JSON arguments.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError

_kept: list[Any] = []  # what was made: a graph owns kernels that its bound plan only points to


def describe(subject: str | Callable, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The `plan` entry of a job for `measure.build`.

    Parameters
    ----------
    subject : str or callable
        Name of a network; or a function of a module's top level that returns a `UserGraph`, a `Plan` or a
        `BoundPlan`, made anew at each call.
    arguments : mapping
        Of `lower` or of the function; JSON values.

    Raises
    ------
    UsageError
        Something else, a function that another process cannot find, or arguments that are no JSON.
    """
    try:
        json.dumps(arguments)
    except (TypeError, ValueError):
        raise UsageError(
            f"arguments of a scaling test must be JSON values, got {dict(arguments)!r}: another process makes the graph "
            f"again; pass numbers and strings"
        ) from None
    if isinstance(subject, str):
        if "batch" not in arguments:
            raise UsageError(f"a network needs a batch, got {subject!r} without; write scaling({subject!r}, batch=16)")
        return {"network": subject, **arguments}
    if not inspect.isfunction(subject):
        raise UsageError(
            f"a scaling test takes a network's name or a function that makes a graph, got {type(subject).__name__}; "
            f"pass the function that returns it, since each measurement makes it again in a fresh process"
        )
    if subject.__qualname__ != subject.__name__ or subject.__name__ == "<lambda>":
        raise UsageError(
            f"the function that makes a graph must stand at the top level of a module, got {subject.__qualname__!r}; "
            f"move it there, so that another process can import it"
        )
    return {
        "function": subject.__name__,
        "module": subject.__module__,
        "file": str(Path(inspect.getfile(subject)).resolve()),
        "path": list(sys.path),
        "arguments": dict(arguments),
    }


def describe_importable(text: str) -> dict[str, Any]:
    """The `plan` entry of `package.module:function`, to be imported by whichever installation measures it.

    Raises
    ------
    UsageError
        Not of this form.
    """
    module, colon, function = text.partition(":")
    if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise UsageError(f"a function is named as package.module:function, got {text!r}")
    return {"function": function, "module": module, "file": "", "path": [], "arguments": {}}


def name_of(plan: Mapping[str, Any]) -> str:
    """What messages, baselines and reports call a subject: `cifar10_cnn(batch=16)`."""
    arguments = plan.get("arguments", {k: v for k, v in plan.items() if k != "network"})
    return f"{plan.get('function') or plan['network']}({', '.join(f'{k}={v}' for k, v in arguments.items())})"


def make_bound(plan: Mapping[str, Any]):
    """Call the function that a `plan` entry names, in this process, and bind what it returns.

    Raises
    ------
    UsageError
        The function is not found, or returns something else than a graph.
    """
    from ...cython_src.binding.bind import BoundPlan, bind
    from ...cython_src.graphs.user_graph import TaskRecorder
    from ...cython_src.plan.model import Plan

    made = _load(plan)(**plan["arguments"])
    _kept.append(made)
    if isinstance(made, TaskRecorder):
        return made.bind()
    if isinstance(made, Plan):
        return bind(made)
    if isinstance(made, BoundPlan):
        return made
    raise UsageError(
        f"{plan['function']}() must return a UserGraph, a Plan or a BoundPlan, got {type(made).__name__}; return the graph"
    )


def _load(plan: Mapping[str, Any]) -> Callable:
    """The function itself: from its module if that can be imported here, else from its file, as pytest itself does."""
    if not plan["file"]:
        try:
            return getattr(import_module(plan["module"]), plan["function"])
        except (ImportError, AttributeError) as error:
            raise UsageError(f"{plan['module']}:{plan['function']} must be importable, got: {error}") from None
    sys.path[:] = plan["path"]
    try:
        found = find_spec(plan["module"])
    except (ImportError, ValueError):
        found = None
    if found is not None and found.origin is not None and Path(found.origin).resolve() == Path(plan["file"]):
        module = import_module(plan["module"])
    else:
        spec = spec_from_file_location(plan["module"], plan["file"])
        module = module_from_spec(spec)
        sys.modules[plan["module"]] = module
        spec.loader.exec_module(module)
    function = getattr(module, plan["function"], None)
    if function is None:
        raise UsageError(f"{plan['file']} must have a function {plan['function']!r}, found none; was the file changed?")
    return function
