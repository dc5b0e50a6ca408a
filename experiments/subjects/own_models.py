"""Models of the user's own: a shared library, an object of a module, or an entry point of an installed package."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from ...cython_src.binding.execution_model import ExecutionModel, load_library
from ...cython_src.errors import UsageError
from ...cython_src.networks.own import make_own
from ...cython_src.records import Record, about
from ...forkjoin.models import TASKWAIT

LIBRARY = "lib"
GROUP = "forktask.models"  # entry points
# Takes of a library: where the model waits.
BARRIERS = {"loops": "loop", "tasks": "none", "graph": "iteration", "closed graph": "none"}


def split_spec(text: str) -> tuple[str, list[str]]:
    """Return the name of a model of the user's own and its options, each with a "="; other names come back whole."""
    name, *parts = text.split(":")
    if parts and (name == LIBRARY or "=" not in parts[0]):
        name = f"{name}:{parts.pop(0)}"
    return name, parts


def own_model(name: str) -> ExecutionModel | None:
    """Return the model of a name that is not one of forktask's; None: there is none. Raises `UsageError`: a file,
    module or object that is not there, or is no model."""
    place, colon, rest = name.partition(":")
    if place == LIBRARY and colon:
        return _library_model(name, rest)
    if colon:
        return _from_object(name, make_own(name), _file_of(place), "")
    installed = entry_points(group=GROUP, name=name)
    if len(installed) > 1 or (installed and "." not in name):
        packages = " and ".join(sorted(entry.dist.name for entry in installed if entry.dist))
        raise UsageError(
            f"an entry point of {GROUP} must have a name with a dot that no other has, got {name!r} of {packages}; "
            f"rename it, as to package.{name.rpartition('.')[2]}"
        )
    for entry in installed:
        try:
            model = entry.load()
        except Exception as error:  # a package of somebody else
            raise UsageError(f"model {name!r} must be importable, got {type(error).__name__}: {error}") from error
        return _from_object(name, model, _file_of(entry.module), entry.dist.version if entry.dist else "")
    return None


def _file_of(module: str) -> Path:
    spec = None if module.endswith(".py") else find_spec(module)
    return Path(module if spec is None or spec.origin is None else spec.origin)


def _from_object(name: str, model: Any, file: Path, version: str) -> ExecutionModel:
    if not isinstance(model, ExecutionModel):
        raise UsageError(f"{name} must be an ExecutionModel of forktask.runtimes, got {type(model).__name__}")
    return replace(model, name=name, origin=_origin(file, version))


def _origin(file: Path, version: str) -> dict[str, str]:
    path = file.resolve()
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return {"file": str(path), "sha256": digest, "version": version}


def _library_model(name: str, given: str) -> ExecutionModel:
    """Return the model that a shared library makes, which says of itself whether it takes loops, tasks or a graph."""
    from ...forkjoin.outside_runs import describe_library

    path = Path(given).resolve()
    if not path.is_file():
        raise UsageError(f"{name} must name the file of a shared library, found no file {str(path)!r}; build it first")
    origin = _origin(path, "")  # of the file that is loaded
    library = load_library(str(path))
    if isinstance(library, OSError):
        raise UsageError(f"{name} must be a shared library that can be loaded, got: {library}; build it by cc -shared")
    model = ExecutionModel(name, ".forkjoin.outside_executors:LibraryExecutor", library=str(path))
    try:
        described = describe_library(model.library_address())
    except ValueError as error:
        has_none = "undefined symbol" in str(error)
        raise UsageError(
            f"{name} must have {'the symbol forktask_runtime (FORKTASK_RUNTIME = ...)' if has_none else error}"
            f"{', found none' if has_none else ''}; build it with forkjoin/outside.h below forktask.get_include()"
        ) from None
    takes = described["takes"]
    return replace(
        model,
        options=_options(name, described["options"], waits=takes == "tasks"),
        origin={**origin, "version": described["release"]},
        runs_tasks=takes != "loops",
        barrier=BARRIERS[takes],
        records="graph" in takes,
        closes=takes == "closed graph",
        is_reference=True,
    )


def _options(name: str, declared: list[tuple], waits: bool) -> type[Record]:
    """Make the record of a library's options; one that creates tasks also gets the places where it waits."""
    annotations: dict[str, Any] = {"taskwait": Annotated[str, TASKWAIT]} if waits else {}
    defaults = {"taskwait": "none"} if waits else {}
    for option, default, choices, text in declared:
        if not option.isidentifier() or option in annotations:
            raise UsageError(f"options of {name} must be different words, got {option!r}; rename it in the library")
        annotations[option] = Annotated[str, about(text, choices=choices.split("|") if choices else ())]
        defaults[option] = default
    return type(Record)(
        "Options", (Record,), {"__annotations__": annotations, "__module__": __name__, **defaults}, frozen=True
    )
