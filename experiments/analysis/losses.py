"""Losses that add up: where threads x wall time of a logged run went, by cause, phase and layer.

Each event of a log falls into one class, so the classes sum to threads x wall time exactly. The part of the blocks is
divided once more: useful work at the speed of the serial run, and time inflation, by which blocks ran longer (or, where
negative, shorter) than there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...cython_src.errors import UsageError
from ..events import event_states as states
from ..events.events import EventLog
from ..results.disturbance import DISTURBED_SHARE
from ..tables import USABLE, number_column, text_column, text_table, time_column
from .windows import layer_of_loops


@dataclass(frozen=True)
class Loss:
    """A class of the time of threads.

    A new one is an entry of `LOSSES`, with a condition in `classes_of` where events show it, and a field of the rows
    in which results folders keep losses.
    """

    label: str  # in tables and figures
    meaning: str  # what the threads did
    color: str
    factor: str = ""  # factor of the efficiency that it is a part of
    finding: str = ""  # how a sentence about it begins, which goes on with its time
    attempt: str = ""  # what to try against it, where the model gives no better advice
    # whether threads wait, in any state, so that what others do meanwhile matters, and not what they did before
    waits: bool = False


_FINER = "finer blocks (--granularity)"
LOSSES = {
    "useful": Loss("useful", "useful work at serial speed", "#b8c7d6"),
    "inflation": Loss(
        "inflation",
        "blocks run longer than in the serial run",
        "#cc78bc",
        "computation_scalability",
        "Blocks run longer than in the serial run by",
        "blocks whose data stay in a core's cache: smaller ones (--granularity), or placement=partitioned",
    ),
    "runtime": Loss(
        "runtime",
        "scheduling, creating tasks, fork and join",
        "#737373",
        "scheduling_efficiency",
        "The runtime's own steps, between blocks, take",
        "coarser blocks (--granularity)",
    ),
    "imbalance": Loss(
        "imbalance",
        "waits while another thread holds a ready task",
        "#de8f05",
        "load_balance",
        "Threads wait, while another thread holds a ready block, for",
        _FINER,
        waits=True,
    ),
    "barrier": Loss(
        "behind a barrier",
        "waits while the data of some task are ready",
        "#d55e00",
        "serialization_efficiency",
        "Threads wait behind barriers for",
        "taskiter, which has no barrier between iterations",
        waits=True,
    ),
    "dependence": Loss(
        "dependence",
        "waits while no task is ready",
        "#ece133",
        "serialization_efficiency",
        "Threads wait, while no block is ready, for",
        _FINER,
        waits=True,
    ),
    "preemption": Loss(
        "lost CPU",
        "the CPU was lost, or given up inside a block",
        "#0d0d0d",
        "cpu_availability",
        "Threads have lost their CPU for",
        "a quiet machine",
    ),
}
# The multiplicative form peels classes off threads x wall time in this order; each factor is the part that is left.
# Names of POP where POP has one.
_PEELED = (
    *("cpu_availability", "scheduling_efficiency", "serialization_efficiency", "load_balance"),
    "computation_scalability",
)
FACTORS = {factor: tuple(name for name, loss in LOSSES.items() if loss.factor == factor) for factor in _PEELED}


@dataclass(frozen=True, eq=False)
class Losses:
    """Where a run's time went."""

    log: EventLog
    # phase, layer and, in ns over the whole run and all threads, a column for each of `LOSSES`; int64
    table: pd.DataFrame
    against_serial: bool  # False: there is no serial log of this plan; all running time counts as useful

    @property
    def total_ns(self) -> dict[str, int]:
        """Sum over phases and layers; the values sum to threads x wall time."""
        return {name: int(self.table[name].sum()) for name in LOSSES}

    def per_iteration_s(self) -> dict[str, float]:
        """Seconds of wall time per iteration: the totals over threads and iterations. They sum to the step time."""
        parts = self.log.threads * self.log.about["iterations"] * 1e9
        return {name: value / parts for name, value in self.total_ns.items()}

    def factors(self) -> dict[str, float]:
        """The same as a product: each of `FACTORS`, and `global_efficiency`, their product."""
        total = self.total_ns
        left = sum(total.values())
        result = {}
        for factor, classes in FACTORS.items():
            rest = left - sum(total[name] for name in classes)
            result[factor] = rest / left if left else float("nan")
            left = rest
        return {**result, "global_efficiency": total["useful"] / sum(total.values())}


def classes_of(events: np.ndarray) -> np.ndarray:
    """Return the class of each event: a number in the order of `LOSSES`; running time counts as useful."""
    state, cause = events["state"], events["cause"]
    names = list(LOSSES)
    lost = (state == states.PREEMPTED) | ((state == states.ASLEEP) & (cause == states.IN_BLOCK))
    conditions = {
        "useful": state == states.RUNNING,
        "preemption": lost,
        "runtime": np.isin(state, (states.SCHEDULING, states.CREATING)) | (cause == states.CREATION),
        "imbalance": cause == states.READY,
        "barrier": cause == states.BEHIND_BARRIER,
    }
    numbers = [names.index(name) for name in conditions]
    return np.select(list(conditions.values()), numbers, names.index("dependence"))


def time_by_loop(log: EventLog, serial: EventLog | None = None) -> np.ndarray:
    """Return the time of all threads in a run by loop and class of `LOSSES`, ns: int64, shape (loops, classes).

    What a worker does between two blocks counts for the loop of the block that its event names. Parameters and errors
    are those of `losses_of`.
    """
    if serial is not None and (
        not serial.model.is_serial or serial.loops != log.loops or serial.about.get("plan") != log.about.get("plan")
    ):
        raise UsageError(
            f"useful work needs a log of model serial and plan {log.about['plan_name']!r}, got model "
            f"'{serial.model}' and plan {serial.about['plan_name']!r}; trace both in one command"
        )
    events = log.events
    num_loops = len(log.loops["name"])
    sums = np.zeros((num_loops, len(LOSSES)), np.int64)
    place = (log.task_loop[np.maximum(events["task"], 0)], classes_of(events))
    np.add.at(sums, place, events["stop_ns"] - events["start_ns"])
    if serial is not None:
        passes = log.about["iterations"] // log.about["stride"]
        useful = np.rint(np.bincount(log.task_loop, serial.running_ns * passes, num_loops)).astype(np.int64)
        names = list(LOSSES)
        sums[:, names.index("inflation")] = sums[:, names.index("useful")] - useful
        sums[:, names.index("useful")] = useful
    return sums


def losses_of(log: EventLog, serial: EventLog | None = None) -> Losses:
    """Return where a run's time went. `serial`: of the same plan under the model `serial`. Raises `UsageError`: the
    serial log is of another plan or another model."""
    groups = list(dict.fromkeys(zip(log.loops["phase"], layer_of_loops(log), strict=True)))
    number = {group: i for i, group in enumerate(groups)}
    group_of_loop = np.array([number[g] for g in zip(log.loops["phase"], layer_of_loops(log), strict=True)])
    sums = np.zeros((len(groups), len(LOSSES)), np.int64)
    np.add.at(sums, group_of_loop, time_by_loop(log, serial))
    table = pd.DataFrame(sums, columns=list(LOSSES))
    table.insert(0, "phase", [phase for phase, _ in groups])
    table.insert(1, "layer", [layer for _, layer in groups])
    return Losses(log, table, serial is not None)


def all_losses(logs: Sequence[EventLog]) -> list[Losses]:
    """Return the losses of each log, useful work by the serial one among them."""
    serial = next((log for log in logs if log.model.is_serial), None)
    return [losses_of(log, serial) for log in logs]


def as_rows(result: Sequence[Losses]) -> list[dict]:
    """Return a row for each model: wall time per iteration by class in seconds, the factors, and whether the run is
    usable."""
    rows = [
        {
            "model": losses.log.model,
            "threads": losses.log.threads,
            "step_time_s": losses.log.step_s,
            **{f"{name}_s": seconds for name, seconds in losses.per_iteration_s().items()},
            **losses.factors(),
            "against_serial": losses.against_serial,
        }
        for losses in result
    ]
    return [{**row, "usable": is_undisturbed(row)} for row in rows]


def is_undisturbed(row: Mapping[str, Any]) -> bool:
    """Return whether the threads of a logged run had a CPU for nearly all of the time."""
    return row["preemption_s"] <= DISTURBED_SHARE * row["step_time_s"]


def had_cpus(log: EventLog) -> bool:
    """Return whether the threads of a logged run had their CPUs, by the rule of `is_undisturbed`."""
    events, lost = log.events, list(LOSSES).index("preemption")
    taken_ns = (events["stop_ns"] - events["start_ns"])[classes_of(events) == lost].sum()
    return bool(taken_ns <= DISTURBED_SHARE * log.threads * log.wall_ns)


def remarks(result: Sequence[Losses]) -> list[str]:
    """Return a sentence for each number that would otherwise surprise."""
    sentences = []
    if not all(losses.against_serial for losses in result):
        sentences.append("Without a serial log all running time counts as useful: trace the model serial too.")
    quick = [losses for losses in result if losses.against_serial and losses.total_ns["inflation"] < 0]
    for losses in quick:
        part = -losses.total_ns["inflation"] / losses.total_ns["useful"]
        sentences.append(
            f"{losses.log.title}: blocks took {part:.1%} less time than in the serial run, so inflation is negative: "
            f"data stayed in caches, or the serial run was disturbed."
        )
    return sentences


def as_table(result: Sequence[Losses]) -> pd.DataFrame:
    """Return all classes by model, phase and layer, in seconds of all threads per iteration, and whether the run is
    usable."""
    parts = []
    for losses, row in zip(result, as_rows(result), strict=True):
        part = losses.table.copy()
        part[list(LOSSES)] = part[list(LOSSES)] / (1e9 * losses.log.about["iterations"])
        part.insert(0, "threads", losses.log.threads)
        part.insert(0, "model", str(losses.log.model))
        part["usable"] = row["usable"]
        parts.append(part)
    return pd.concat(parts).rename(columns={name: f"{name}_s" for name in LOSSES})


def as_text(result: Sequence[Losses]) -> str:
    """Return a table of wall time per iteration by class, and the efficiency as a product."""
    rows = [{"log": losses.log.title, **row} for losses, row in zip(result, as_rows(result), strict=True)]
    title, product = text_column("log", "model"), number_column("global_efficiency", "product", 3)
    times = [time_column(f"{name}_s", loss.label) for name, loss in LOSSES.items()]
    factors = [number_column(name, digits=3) for name in FACTORS]
    lines = [
        "Wall time per iteration, by what the threads did:",
        *text_table((title, time_column("step_time_s", "step"), *times, USABLE), rows),
        "",
        "As a product (peeled off threads x time in this order):",
        *text_table((title, *factors, product), rows),
    ]
    return "\n".join([*lines, *remarks(result)])
