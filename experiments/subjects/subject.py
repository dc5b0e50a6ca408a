"""Subjects of measurements: a network, or a function that makes the user's own graph.

Every measurement runs in a fresh process, so a subject must be something that another process can make again: the
arguments of `lower`, or a function of a module's top level with JSON arguments.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...cython_src.binding.bind import BoundPlan, bind
from ...cython_src.errors import UsageError
from ...cython_src.graphs.user_graph import TaskRecorder
from ...cython_src.kernels.loss.loss import IGNORED
from ...cython_src.lowering.lower import default_batch, initialise, lower
from ...cython_src.networks.layers import Network
from ...cython_src.networks.own import check_arguments, is_own, make_own
from ...cython_src.networks.registry import get_network
from ...cython_src.plan.model import Plan
from ...cython_src.records import LARGEST
from ..machine.numa import FIRST_TOUCH
from ..subjects.models import SERIAL
from .calls import VALUES
from .memory import check_fits, check_least, memory_bounds, what_fits_gpu
from .models import ModelSpec, bind_for, options_for, storage_for

DATASET_BATCHES = 8  # different batches in turn, with at most DATASET_IMAGES images in all
DATASET_IMAGES = 4096
LEARNING_RATE = 1e-3
ANSWERED_ROWS = 4  # probabilities that peers compare: those of the first samples or tokens
ANSWERED_CLASSES = 64
MASKED = 0.15  # share of a sample's tokens whose places are masked, which a network learns

_own: dict[str, Any] = {}  # names of the user's networks that this process has made -> the network
_kept: list[Any] = []  # keeps graphs alive: a bound plan only points to their kernels


def describe(subject: str | Callable, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `plan` entry of a job for `build`.

    Parameters
    ----------
    subject : str or callable
        Name of a network; or a function of a module's top level that returns a `UserGraph`, a `Plan` or a
        `BoundPlan`, made anew at each call.
    arguments : mapping
        Arguments of `lower` or of the function; JSON values.

    Raises
    ------
    UsageError
        Another kind of subject, a function that another process cannot find, or arguments that are no JSON or not its
        own.
    """
    try:
        json.dumps(arguments)
    except (TypeError, ValueError):
        raise UsageError(
            f"arguments of a scaling test must be JSON values, got {dict(arguments)!r}: another process makes the "
            f"graph again; pass numbers and strings"
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
    check_arguments(subject, arguments)
    # Its code object may be a decorator's, and names the source of a module that is compiled only.
    file = getattr(sys.modules.get(subject.__module__), "__file__", None) or inspect.getfile(subject)
    return {
        "function": subject.__name__,
        "module": subject.__module__,
        "file": str(Path(file).resolve()),
        "path": list(sys.path),
        "arguments": dict(arguments),
    }


def name_of(plan: Mapping[str, Any]) -> str:
    """Return the name of a subject in messages, baselines and reports, such as `cifar10_cnn(batch=16)`."""
    arguments = plan.get("arguments", {k: v for k, v in plan.items() if k != "network"})
    return f"{plan.get('function') or plan['network']}({', '.join(f'{k}={v}' for k, v in arguments.items())})"


def make_bound(plan: Mapping[str, Any]):
    """Call the function that a `plan` entry names, in this process, and bind what it returns. Raises `UsageError`: the
    function is not found, or returns something else than a graph."""
    return _bind_made(_load(plan)(**plan["arguments"]), f"{plan['function']}()")


def _bind_made(made: Any, name: str) -> BoundPlan:
    """Bind the graph that a function made; raise `UsageError` for anything else."""
    _kept.append(made)
    if isinstance(made, TaskRecorder):
        return made.bind()
    if isinstance(made, Plan):
        return bind(made)
    if isinstance(made, BoundPlan):
        return made
    raise UsageError(
        f"{name} must return a UserGraph, a Plan or a BoundPlan, got {type(made).__name__}; return the graph"
    )


def _load(plan: Mapping[str, Any]) -> Callable:
    """Import the function from its module or, if that cannot be imported here, from its file, as pytest does."""
    sys.path[:] = plan["path"]
    try:
        result = find_spec(plan["module"])
    except (ImportError, ValueError):
        result = None
    if result is not None and result.origin is not None and Path(result.origin).resolve() == Path(plan["file"]):
        module = import_module(plan["module"])
    else:
        file = Path(plan["file"])
        packages = plan["module"].split(".")[:-1]
        folders = [*file.parents][file.stem == "__init__" :][: len(packages)][::-1]
        for count, folder in enumerate(folders, 1):
            _execute(".".join(packages[:count]), folder / "__init__.py")
        module = _execute(plan["module"], file)
    function = getattr(module, plan["function"], None)
    if function is None:
        raise UsageError(f"{plan['file']} must have a function {plan['function']!r}, found none; was the file changed?")
    return function


def _execute(name: str, file: Path) -> ModuleType:
    """Import a module or package under a name that import does not find; without a file it is a folder's package."""
    if file.exists():
        spec = spec_from_file_location(name, file)
    else:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(file.parent)]
    sys.modules[name] = module = module_from_spec(spec)
    if spec.loader is not None:
        spec.loader.exec_module(module)
    return module


def homes_of(job: Mapping[str, Any]) -> list[int]:
    """Return the CPUs of the workers that touch the memory of a job's plan first; none: where it is bound."""
    several = job.get("memory_policy") == FIRST_TOUCH and len(job["memory_nodes"]) > 1
    return (job["cpus"] or []) if several else []


def build(job: Mapping[str, Any], model: ModelSpec = SERIAL):
    """Bind the job's plan to new memory where `model` runs, with data and initial parameters; or the user's graph."""
    if "function" in job["plan"]:
        return make_bound(job["plan"])
    requested = (job["plan"].get(name, "auto") for name in ("conv", "granularity"))
    options = {**job["plan"], **options_for(model, *requested)}
    if "batch" not in options:  # the gate's, which imports nothing of the commits
        options["batch"] = default_batch(options["network"])
    # The checks come first: Linux grants more memory than there is, and later kills some process.
    limit = job.get("memory_limit")
    check_least(options, *memory_bounds(limit))
    plan = _lower_with_data(**options)
    check_fits(plan, options, *memory_bounds(limit), job["threads"], _lower_with_data)
    made = make_own(job["plan"]["network"]) if is_own(job["plan"]["network"]) else None
    if isinstance(made, TaskRecorder | BoundPlan) and not model.binds_on_gpu:
        # The user's own arrays hold data; where kernels have no form for a GPU, binding them says so.
        return _bind_made(made, job["plan"]["network"])
    if isinstance(made, Network):
        _own[made.name] = made
    storage = storage_for(model, homes_of(job))
    bound = bind_for(model, plan, storage, what_fits_gpu(options, storage, _lower_with_data))
    if "parameters" in plan.attributes:
        fill_dataset(bound, job["seed"])
        initialise(bound, job["seed"])
    return bound


def network_of(bound: Any, model: str) -> Network:
    """Return the network of a plan that was built in this process. Raises `UsageError`: `model` trains networks, and
    this plan is another graph."""
    name = bound.plan.attributes.get("network")
    if name is None:
        raise UsageError(f"model {model!r} trains networks, got the graph {bound.plan.name!r}; leave it out")
    return _own.get(name) or get_network(name)


def _lower_with_data(*, batch: int, **options: Any) -> Plan:
    """Lower a plan with as many batches of data as samples are measured with."""
    batches = max(1, min(DATASET_BATCHES, DATASET_IMAGES // batch))
    return lower(batch=batch, **options, num_images=batches * batch, num_batches=batches)


def kept_names(plan: Plan) -> list[str]:
    """Return the names of parameters and running statistics, which inference needs."""
    statistics = [name for name, buffer in plan.buffers.items() if buffer.role == "statistic"]
    return [*plan.attributes["parameters"], *statistics]


def fill_dataset(bound, seed: int) -> None:
    """Fill the data set with seeded random images and labels, or tokens, in batches that take turns."""
    generator = np.random.default_rng(seed)
    arrays = bound.arrays
    order = arrays["batch_order"]
    if "dataset.tokens" in arrays:
        tokens = arrays["dataset.tokens"]
        tokens[...] = generator.integers(0, bound.plan.attributes["vocabulary"], tokens.shape)
        if "dataset.labels" in arrays:
            labels = arrays["dataset.labels"]
            labels[...] = generator.integers(0, bound.plan.attributes["num_classes"], labels.shape)
            if labels.shape == tokens.shape:  # of masked tokens
                labels[generator.random(labels.shape) >= MASKED] = IGNORED
    else:
        images, labels = arrays["dataset.images"], arrays["dataset.labels"]
        generator.standard_normal(dtype=np.float32, out=images)
        labels[...] = generator.integers(0, min(10, bound.plan.attributes["num_classes"]), labels.shape)
    order[...] = np.arange(order.size).reshape(order.shape)
    if "learning_rates" in arrays:
        arrays["learning_rates"][...] = LEARNING_RATE


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of arrays in the order of their names; shapes and dtypes count."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.shape} {array.dtype.str};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def result_hashes(bound) -> dict[str, Any]:
    """Hash all parameters and the losses (forward: probabilities or logits), and say whether all are finite.

    A graph of the user's has no parameters: all its arrays are hashed, and any values count as finite.
    """
    names = bound.plan.attributes.get("parameters")
    if names is None:
        return {"weights_hash": hash_arrays(bound.arrays), "losses_hash": hash_arrays({}), "finite": True}
    parameters = {name: bound.view(name) for name in names}
    answers = {name: bound.arrays[name] for name in ("losses", "probabilities", "logits") if name in bound.arrays}
    finite = all(bool(np.isfinite(array).all()) for array in (*parameters.values(), *answers.values()))
    return {"weights_hash": hash_arrays(parameters), "losses_hash": hash_arrays(answers), "finite": finite}


def answer(bound, num_iterations: int) -> list[float]:
    """Return the numbers that a peer must reproduce within rounding: losses of the first steps, probabilities, or what
    a function returned; none where some are not finite."""
    if VALUES in bound.arrays:
        values = bound.arrays[VALUES]
        return [float(value) for value in values] if np.abs(values).max() < LARGEST else []
    if "parameters" not in bound.plan.attributes:
        return []
    if "losses" in bound.arrays:
        return [float(loss) for loss in bound.arrays["losses"][:num_iterations]]
    if "probabilities" in bound.arrays:
        return [float(p) for p in bound.arrays["probabilities"][:ANSWERED_ROWS, :ANSWERED_CLASSES].ravel()]
    if "logits" in bound.plan.attributes.get("aliases", ()):
        logits = np.asarray(bound.view("logits"), np.float64)
        logits = logits.reshape(-1, logits.shape[-1])[:ANSWERED_ROWS]
        numbers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return [float(p) for p in (numbers / numbers.sum(axis=-1, keepdims=True))[:, :ANSWERED_CLASSES].ravel()]
    return []
