"""A net under users: the plans of networks and graphs that are not shipped are checked before their first measurement.

Shipped networks are covered by the tests. What a user wrote is checked once, on a small batch: some blocks of every
loop touch what they declare, and every model that was asked for leaves the bits of `serial`. What passed is kept by
the plan's content in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from ...cython_src.errors import UnsoundPlan
from ...cython_src.kernels import kernel_table
from ...cython_src.kernels.simd import instruction_sets
from ...cython_src.lowering.lower import NCHW16_LAYOUT, choose_layout, lower, own_plan
from ...cython_src.lowering.options import LANES, describe, plan_options
from ...cython_src.networks.layers import Network
from ...cython_src.networks.own import is_own, make_own, split_call, write_network
from ...cython_src.networks.registry import get_network, network_names
from ...cython_src.plan.model import Plan
from ..machine.build_info import BUILD
from ..machine.proc import read_text
from ..machine.topology import available_cpus
from ..results.files import keep_cached, read_cached
from ..sampling.child import measure_in_process, sample_environment
from ..subjects.calls import is_calls
from ..subjects.models import ModelSpec, process_environment
from ..tables.progress import say

COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.plan_check.worker")
CACHE = "checked"  # folder below the user's cache folder
FEW = 4  # samples; images in the lanes of vectors: one whole vector and the rest of another
LIMIT_S = 4.0  # for accesses, and for bits, of all plans of a call together
LEAST_LIMIT_S = 0.5  # of each plan
GRACE_S = 10.0  # after which the process ends whatever it does: one operation of the user's may take any time
# What a row says of the check of its plan.
OUTCOMES = SHIPPED, PASSED, PARTLY, IMPOSSIBLE, LEFT_OUT, UNREAD = (
    *("shipped", "passed", "in part", "impossible", "left out"),
    "not compared with PyTorch",
)

Contestants = Sequence[tuple[ModelSpec, int]]


class Found(msgspec.Struct):
    """What a plan has passed: its accesses, the bits of models on numbers of threads, and whether the time sufficed."""

    accesses: bool = False
    models: list[tuple[str, int]] = []
    whole: bool = True


_found: dict[str, Found] = {}  # by this process, by key: an unwritable cache is no error


def check_plans(requested: Iterable[tuple[Mapping[str, Any], Contestants]], wanted: bool = True) -> list[str]:
    """Check plans of networks and graphs that are not shipped, unless that was done before.

    Parameters
    ----------
    requested : iterable of (mapping, sequence of (model, threads))
        Options of a plan with the network, by name or as an object, and the models that shall run it.
    wanted : bool
        False: nothing is checked.

    Returns
    -------
    list of str
        Of each plan, for its rows: "shipped", "passed", "in part" (the time did not suffice for all), "impossible" (it
        cannot be made again in another process), "left out", or of a network from PyTorch with `check=False`, whatever
        was found of its plan, "not compared with PyTorch".

    Raises
    ------
    UnsoundPlan
        A block touches what it does not declare, or a model leaves other bits than `serial`.
    """
    requested = list(requested)
    limit_s = max(LEAST_LIMIT_S, LIMIT_S / max(1, len(requested)))
    reported: set[str] = set()
    outcomes = [_check(plan, contestants, wanted, limit_s, reported) for plan, contestants in requested]
    return [UNREAD if _is_unread(p["network"]) else found for (p, _), found in zip(requested, outcomes, strict=True)]


def check_together(plans: Iterable[Mapping[str, Any]], contestants: Contestants, wanted: bool = True) -> str:
    """Check the plans of one measurement, as `check_plans` does, and return the worst outcome."""
    return max(check_plans([(plan, contestants) for plan in plans], wanted), key=OUTCOMES.index)


def _is_unread(network: Any) -> bool:
    made = make_own(network) if isinstance(network, str) and is_own(network) else network
    return getattr(made, "unchecked", False)


def _is_shipped(network: str | Network) -> bool:
    if isinstance(network, Network):
        return network.name in network_names() and get_network(network.name) == network
    return is_calls(network) or not is_own(network)


def _check(plan: Mapping[str, Any], contestants: Contestants, wanted: bool, limit_s: float, reported: set[str]) -> str:
    network = plan["network"]
    if _is_shipped(network):
        return SHIPPED
    if not wanted:
        return LEFT_OUT
    is_graph = own_plan(network) is not None
    small = dict(plan) if is_graph else _small(plan)
    lowered = lower(**small)
    key = plan_key(lowered, _sources(network, lowered) if is_graph else ())
    kept = _read(key)
    # Those that must leave the bits of `serial`, those on most threads first.
    on_cpu = (one for one in contestants if one[0].model.reproducible and not (one[0].is_gpu or one[0].is_serial))
    missing = [one for one in sorted(on_cpu, key=lambda one: -one[1]) if one not in kept.models]
    if kept.accesses and not missing:
        return PASSED if kept.whole else PARTLY
    name = network if isinstance(network, str) else network.name
    if name not in reported:
        reported.add(name)
        runs = ": its tasks are tried in a process of their own" if is_graph else ""
        say(f"checking {name} before its first run{runs}; --no-check (check=False) leaves that out")
    for result in _results(small, missing, not kept.accesses, limit_s):
        if "fault" in result:
            raise UnsoundPlan(_sentence(name, small, result["fault"], is_graph))
        if "impossible" in result:
            say(f"{name} could not be checked: {result['impossible']}")
            return IMPOSSIBLE
        kept.whole &= result["whole"]
    _keep(key, Found(True, [*kept.models, *((str(model), threads) for model, threads in missing)], kept.whole))
    return PASSED if kept.whole else PARTLY


def _small(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a plan of few samples that has blocks of the same form: whole and incomplete vectors of
    images as with the batch asked for, in the layout chosen for that."""
    network, options = plan["network"], plan_options(plan)
    spec = get_network(network) if isinstance(network, str) else network
    layout = options.layout if spec.tokens or options.layout != "auto" else choose_layout(spec, options).name
    few = FEW + options.batch % 2
    if layout == NCHW16_LAYOUT.name:
        few = LANES + (options.batch % LANES or LANES)
    batch = min(options.batch, max(few, 2 * options.cut.images))
    return {"network": network, **options.with_changes(layout=layout, batch=batch).as_dict()}


def _results(plan: Mapping[str, Any], models: list, accesses: bool, limit_s: float) -> Iterator[dict[str, Any]]:
    """Check a plan in processes of their own, one for each OpenMP runtime that its models need."""
    groups: dict[tuple, list] = {}
    for model, threads in models:
        groups.setdefault(tuple(process_environment(model).items()), []).append((model, threads))
    with TemporaryDirectory() as folder:
        if isinstance(plan["network"], Network):
            plan = {**plan, "network": write_network(plan["network"], Path(folder))}
        job = {"plan": dict(plan), "path": list(sys.path), "cpus": None, "limit_s": limit_s}
        for number, (variables, group) in enumerate(groups.items() or [((), [])]):
            most = max((threads for _, threads in group), default=1)
            settings = sample_environment(most, 0, len(available_cpus()), "passive")
            part = {**job, "models": group, "accesses": accesses and not number}
            row = measure_in_process(part, {**settings, **dict(variables)}, 2 * limit_s + GRACE_S, COMMAND)
            if row.get("failure") == "crash":
                row = {"fault": {"what": f"its kernels end the process: {row['message'].splitlines()[0]}"}}
            elif row.get("failure") == "timeout":
                row = {"whole": False}
            yield {"impossible": row["message"]} if "failure" in row else row


def _sentence(name: str, plan: Mapping[str, Any], fault: Mapping[str, str], is_graph: bool) -> str:
    where = ""
    if "loop" in fault:
        layer = f" of layer {fault['layer']!r}" if fault["layer"] else ""
        where = f"loop {fault['loop']!r}{layer}, kernel {fault['kernel']!r}, buffer {fault['buffer']!r}: "
    remedy = "mend what the tasks declare, or their kernels"
    if not is_graph:
        remedy = (
            f"this is an error of forktask, not of yours; please report it to whoever gave you this copy, with the "
            f"network and these options: {describe(plan_options(plan))}"
        )
    return (
        f"a plan must compute the same in every legal order of its blocks, that of {name} does not: {where}"
        f"{fault['what']}; {remedy}; --no-check (check=False) runs it all the same"
    )


# --- what was found before ----------------------------------------------------------------------------------------


def plan_key(plan: Plan, sources: Iterable[Path] = ()) -> str:
    """Return a hash of all that decides what a plan's blocks touch: its content, this version and instruction set, and
    the files that hold the user's kernels."""
    parts: list[Any] = [BUILD, instruction_sets.choose()]
    parts += [(b.name, b.shape, b.dtype, b.role) for b in plan.buffers.values()]
    parts += [(o.name, o.kernel, [*o.operands.items()], [*o.attributes.items()]) for o in plan.loops]
    parts += [(plan.iteration_stride, sorted(plan.arena_of.items()))]
    digest = hashlib.sha256(repr(parts).encode())
    for loop in plan.loops:
        digest.update(loop.bounds.tobytes())
    for array in vars(plan.accesses).values():
        digest.update(array.tobytes() if hasattr(array, "tobytes") else str(array).encode())
    for path in sources:
        with suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _sources(network: str, plan: Plan) -> list[Path]:
    """Return the files that hold the kernels of a user's graph: modules beside its program, and compiled libraries."""
    place = split_call(network)[0].rpartition(":")[0]
    program = Path(place if place.endswith(".py") else sys.modules[place].__file__ or "").resolve()
    files = {Path(file).resolve() for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None))}
    beside = {file for file in files if program.parent in file.parents and Path(sys.prefix) not in file.parents}
    specs = (kernel_table.get(loop.kernel, plan.attributes.get("kernels")) for loop in plan.loops)
    return sorted({program} | beside | _libraries({spec.address for spec in specs if spec.address}))


def _libraries(addresses: set[int]) -> set[Path]:
    """Return the files that are mapped at some addresses."""
    result = set()
    for line in (read_text(Path("/proc/self/maps")) or "").splitlines():
        span, *_, file = line.split(maxsplit=5)
        first, _, stop = span.partition("-")
        if file.startswith("/") and any(int(first, 16) <= address < int(stop, 16) for address in addresses):
            result.add(Path(file))
    return result


def _read(key: str) -> Found:
    """Return what passed the check before."""
    return _found.get(key) or read_cached(CACHE, key, Found, Found())


def _keep(key: str, result: Found) -> None:
    _found[key] = result
    keep_cached(CACHE, key, result)
