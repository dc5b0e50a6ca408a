"""A generation: interleaved contestants, each in a fresh process of its own.

All processes of a group live at the same time; one runs, the others are stopped. A round gives each a turn of some
ten milliseconds, in an order tossed anew: what disturbs a machine for seconds meets all alike, and pairing within
the round takes it out. Where a process's memory happens to lie stays as long as the process, so several generations are
needed.

`measure_generation` knows neither results folder nor progress: its argument and its result are values, so that a
generation can be measured wherever the installation is the same.
"""

from __future__ import annotations

import math
import os
import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from operator import sub
from statistics import median
from typing import Any, NamedTuple

from ...cython_src.affinity import kept_affinity, may_pin
from ...cython_src.kernels.bench.bench import TASK_BENCH_KERNELS, time_work
from ...cython_src.kernels.linear.linear import choose_instruction_set
from ...cython_src.kernels.simd.instruction_sets import ENVIRONMENT_VARIABLE
from ..machine.core_latency import measure_latency
from ..machine.disturbance import Disturbance, read_memory
from ..machine.machine_peaks import measure_additions
from ..machine.numa import INTERLEAVE, memory_nodes
from ..machine.topology import available_cpus, cpu_order
from ..results.turns import MeasuredGroup, Rounds, judge_rounds, typical_step
from ..subjects.models import ModelSpec, process_environment
from .child import SAMPLE_COMMAND, MeasuringProcess, ProcessFailure, clean_environment, sample_environment
from .hogs import hogs_running

TURN_S = 0.01  # duration of the timed runs of a turn, for steps that are shorter: many short turns outlive bursts
LEAST_ROUNDS = 3
MOST_TIMES = 5  # the planned rounds, where long runs take no longer than short ones
SPIN_S = 1e-3  # duration of the calibration kernel before each turn, all CPUs together
HANDOVERS, HANDOVER_WINDOWS = 500, 4  # some 0.1 ms each; other programs disturb some windows
ADDITIONS_S = 4e-5  # duration of the additions that tell a half core, beside the start of two threads; each CPU
SPUN_CPUS = 4  # of a contestant, at most
ROOM = 0.8  # part of the free memory that the processes of a group may plan for together
SPARE = 1.3  # times the planned bytes that a process may take
LIBRARIES_BYTES = 150 << 20  # Python, NumPy and the package's libraries in a process, generously


class Contestant(NamedTuple):
    """A process to be interleaved with others."""

    name: str  # unique within the generation
    job: Mapping[str, Any]  # as for the measuring process, without `turn_s`
    # environment variables of the process, beside those of this one that leave libraries alone
    variables: Mapping[str, str]
    planned_bytes: int  # memory of its plan
    limit_s: float  # longest time that the process may run
    command: Sequence[str] = SAMPLE_COMMAND  # the measuring process
    far_behind: bool = False  # so far that one round of long steps is enough


def contestant_of(
    name: str,
    model: ModelSpec,
    threads: int,
    *,
    limit_s: float,
    planned_bytes: int = 0,
    hogs: int = 0,
    wait_policy: str = "auto",
    variables: Mapping[str, str] | None = None,
    command: Sequence[str] = SAMPLE_COMMAND,
    **job: Any,
) -> Contestant:
    """Return the process that measures a model on a number of threads, with the environment that each of them gets.

    Parameters
    ----------
    hogs : int
        Processes that spin meanwhile.
    wait_policy : {"auto", "active", "passive"}
    variables : mapping, optional
        Further environment variables, which come first.
    **job
        The rest of the process's job: what it needs besides, and what differs from a sample with the seed 1 on the
        first CPUs in their order.
    """
    own = {"kind": "sample", "model": model, "threads": threads, "seed": 1, "memory_policy": INTERLEAVE}
    own["memory_nodes"] = memory_nodes()
    if "cpus" not in job:
        own["cpus"] = cpu_order(threads)
    own |= job
    available = available_cpus()
    num_cpus = len({*(own["cpus"] or available)})
    if own["cpus"] is not None and model.is_gpu:
        # A thread that only launches stays on no CPU: all contestants would share it. Beside threads it has one more.
        rest = [cpu for cpu in cpu_order(len(available), available) if cpu not in own["cpus"]]
        own["cpus"] = None if model.model.max_threads == 1 else [*own["cpus"], *rest[:1]]
    settings = sample_environment(threads, hogs, num_cpus, wait_policy, model.model.is_call)
    if command == SAMPLE_COMMAND:  # another installation may not know this one's instruction sets
        settings[ENVIRONMENT_VARIABLE] = choose_instruction_set()  # one tile for all contestants
    settings |= process_environment(model) | dict(variables or {})
    return Contestant(name, own, settings, planned_bytes, limit_s, command, model.is_far_behind(threads))


class Generation(NamedTuple):
    """What is interleaved."""

    contestants: Sequence[Contestant]
    reference: str  # name of the contestant that takes part in each group, where not all fit into memory at once
    target_s: float  # duration of a contestant's timed runs together
    least_rounds: int = LEAST_ROUNDS  # rounds that each takes part in, however long its steps are, unless far behind
    seed: str = ""  # of the order of turns
    # hogs, cpus: processes that spin meanwhile, and where
    hogs: int = 0
    cpus: Sequence[int] = ()
    ends: float = math.inf  # time of the machine's clock after which no round begins but the first one


class Machine:
    """This machine: its clock, memory and processes; tests have another one, which takes no time."""

    now, sleep = staticmethod(time.perf_counter), staticmethod(time.sleep)

    def __init__(self) -> None:
        self._disturbance = Disturbance()
        self._work = 0

    def start(self, contestant: Contestant, turn_s: float) -> MeasuringProcess:
        """Start the process of a contestant."""
        environment = clean_environment(os.environ, contestant.variables)
        job = {**contestant.job, "turn_s": turn_s}
        return MeasuringProcess(job, environment, contestant.limit_s, contestant.command)

    def free_bytes(self) -> int | None:
        """Memory that is free."""
        return read_memory()["available_bytes"]

    def spin(self, cpus: Sequence[int] | None) -> float:
        """Run the calibration kernel on CPUs, one after the other; return the mean duration of the same work."""
        kernel, taken = TASK_BENCH_KERNELS.index("compute"), []
        if not self._work:
            self._work = max(1, round(4000 * SPIN_S / SPUN_CPUS / min(time_work(kernel, 4000, 1) for _ in range(5))))
        with kept_affinity():
            for cpu in _spun(cpus):
                if may_pin():
                    os.sched_setaffinity(0, {cpu})
                taken.append(time_work(kernel, self._work, 1))
        return sum(taken) / len(taken)

    def handover(self, cpus: Sequence[int] | None) -> float | None:
        """Return the least seconds of a hand-over through a cache line between the first two of some CPUs.

        Virtual CPUs move: where the host has taken two apart, a line takes three times as long, and models suffer from
        that by very different factors.
        """
        if cpus is None or len(set(cpus)) < 2:
            return None
        return measure_latency(cpus[0], cpus[1], rounds=HANDOVERS, windows=HANDOVER_WINDOWS)

    def additions(self, cpus: Sequence[int] | None) -> dict[str, float]:
        """Return the integer additions per cycle of the CPUs of `spin`, where these tell whole cores from half ones."""
        asked = _spun(cpus) if platform.machine() == "x86_64" else ()
        return {str(cpu): measure_additions(ADDITIONS_S, cpu) for cpu in asked}

    def disturbance(self) -> tuple[int, int]:
        """Return steal in ticks and pressure in microseconds so far; 0 where the machine hides one."""
        seen = self._disturbance.read()
        return seen["steal_ticks"] or 0, seen["pressure_some_us"] or 0


def _spun(cpus: Sequence[int] | None) -> list[int]:
    return list(dict.fromkeys(available_cpus() if cpus is None else cpus))[:SPUN_CPUS]


def measure_generation(generation: Generation, machine: Machine | None = None) -> list[MeasuredGroup]:
    """Measure contestants, interleaved, in one group unless memory does not hold all contestants."""
    machine = machine or Machine()
    free = machine.free_bytes()
    sizes = [round(SPARE * c.planned_bytes) + LIBRARIES_BYTES for c in generation.contestants]
    names = [c.name for c in generation.contestants]
    reference = names.index(generation.reference) if generation.reference in names else None
    groups = make_groups(sizes, ROOM * free if free else float("inf"), reference)
    with hogs_running(generation.hogs, generation.cpus):
        return [
            _measure_group(
                generation, [generation.contestants[k] for k in chosen], f"{generation.seed}/{group}", machine
            )
            for group, chosen in enumerate(groups)
        ]


def measure_open_ended(contestants: Sequence[Contestant], seed: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure interleaved contestants that say after each turn whether they have more to measure.

    Each lives in a process of its own; one runs, the others are stopped. The order is tossed anew in each round.

    Returns
    -------
    answers : dict
        By name: the row that the process leaves, or {"failure", "message"}.
    seen : dict
        As in rows, before each round: handover_s, between the first two CPUs of the first contestant, none on one CPU;
        additions_per_cycle.
    """
    machine, generator = Machine(), random.Random(seed)
    handovers: list[float | None] = []
    additions: dict[str, list[float]] = {}
    with ExitStack() as stack:
        members = [_Member(c, stack.enter_context(machine.start(c, TURN_S))) for c in contestants]
        for member in members:
            member.turns = {}
            if member.attempt(member.process.answer) is not None:
                member.process.stop()
        going = [member for member in members if member.alive]
        while going:
            handovers.append(machine.handover(members[0].cpus))
            _append(additions, machine.additions(members[0].cpus))
            generator.shuffle(going)
            going = [member for member in going if member.has_more()]
        for member in members:
            member.finish()
    seen = {"handover_s": [seconds for seconds in handovers if seconds], "additions_per_cycle": additions}
    return {member.name: member.outcome for member in members}, seen


def make_groups(sizes: Sequence[int], room: float, reference: int | None) -> list[list[int]]:
    """Divide contestants into groups that fit into memory, each with the reference where it fits beside another one.
    `sizes`: bytes of each contestant; `room`: bytes that a group may take."""
    if sum(sizes) <= room:
        return [list(range(len(sizes)))]
    shared = [] if reference is None else [reference]
    groups: list[list[int]] = []
    for k in range(len(sizes)):
        if k == reference:
            continue
        if groups and sum(sizes[j] for j in (*groups[-1], k)) <= room:
            groups[-1].append(k)
        else:
            groups.append([*shared, k] if sum(sizes[j] for j in (*shared, k)) <= room else [k])
    if reference is not None and not any(reference in group for group in groups):
        groups.append([reference])
    return groups


class _Member:
    """A contestant in a group: its process while that lives, its turns, and its row or failure in the end."""

    def __init__(self, contestant: Contestant, process: Any):
        self.name, self.process, self.alive = contestant.name, process, True
        self.cpus, self.profiled = contestant.job.get("cpus"), contestant.job.get("profile", False)
        self.far_behind, self.wanted = contestant.far_behind, 0  # rounds
        self.turns: dict[str, Any] = {"rounds": [], "short_times_s": [], "long_times_s": []}
        self.outcome: dict[str, Any] = {}

    def attempt(self, call: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any] | None:
        """Return the reply of the process; where it fails, take it out, with the reason as its outcome."""
        if not self.alive:
            return None
        try:
            return call(*arguments)
        except ProcessFailure as failure:
            self.process.close()
            self.alive, self.outcome = False, failure.row
        return None

    def make_ready(self, generation: Generation) -> None:
        """Let the process do all that comes before its turns."""
        ready = self.attempt(self.process.ask, {})
        if ready is not None:
            self.process.stop()
            least_rounds = 1 if self.far_behind else generation.least_rounds
            self.wanted = max(least_rounds, round(generation.target_s / ready.pop("turn_s")))
            self.turns |= ready

    def wants(self, number: int) -> bool:
        """Return whether the process takes part in a round: more than planned while noise hides its step."""
        if number < self.wanted:
            return self.alive
        slopes = map(sub, self.turns["long_times_s"], self.turns["short_times_s"])
        return self.alive and number < MOST_TIMES * self.wanted and median(slopes) <= 0

    def take_turn(self, number: int, long_first: bool) -> None:
        """Let the process go on for one turn."""
        self.process.resume()
        result = self.attempt(self.process.ask, {"long_first": long_first})
        if result is not None:
            self.process.stop()
            times = {"rounds": number, "short_times_s": result["short_s"], "long_times_s": result["long_s"]}
            for name, value in times.items():
                self.turns[name].append(value)

    def has_more(self) -> bool:
        """Let the process go on for one turn, and return whether it has more to measure."""
        self.process.resume()
        text = self.attempt(self.process.ask, {})
        if text is not None:
            self.process.stop()
        return text is not None and text["more"]

    def finish(self) -> None:
        """Let the process do what comes after its turns, its profile last, and end."""
        if self.alive:
            self.process.resume()
            row = self.attempt(self.process.ask, None) if self.profiled else self.attempt(self.process.end)
            if row is not None and self.profiled:
                profile = self.attempt(self.process.end)
                row["profile"] = self.outcome if profile is None else profile
            self.outcome = {**row, **self.turns} if row is not None else self.outcome


def _measure_group(
    generation: Generation, contestants: Sequence[Contestant], seed: str, machine: Machine
) -> MeasuredGroup:
    """Measure contestants that fit into memory together."""
    turn_s = min(TURN_S, generation.target_s / generation.least_rounds)
    members: list[_Member] = []
    with ExitStack() as stack:
        # Starting is not timed, so it goes on on all CPUs at once; what comes after it is timed, and so done alone.
        at_once = len(available_cpus())
        for c in contestants:
            if len(members) >= at_once:
                members[-at_once].attempt(members[-at_once].process.answer)
            members.append(_Member(c, stack.enter_context(machine.start(c, turn_s))))
        for member in members[-at_once:]:
            member.attempt(member.process.answer)
        for member in members:
            member.make_ready(generation)
        rounds = _take_rounds(members, random.Random(seed), machine, generation.ends)
        for member in members:
            member.finish()
    group = MeasuredGroup(rounds, {member.name: member.outcome for member in members})
    disturbed = judge_rounds(rounds).disturbed
    for name, turns in group.turns().items():
        step_time_s, fill_time_s = typical_step(turns, disturbed)
        group.answers[name] |= {"step_time_s": step_time_s, "fill_time_s": fill_time_s}
    return group


def _append(lists: dict[str, list[float]], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        lists.setdefault(name, []).append(value)


def _take_rounds(members: Sequence[_Member], generator: random.Random, machine: Machine, ends: float) -> Rounds:
    """Give turns until each contestant has had as many as its steps allow, or time is up."""
    kept: dict[str, list] = {
        name: [] for name in ("order", "spin_s", "handover_s", "wall_s", "steal_ticks", "pressure_us")
    }
    most = max((member.cpus or () for member in members), key=len)
    additions: dict[str, list[float]] = {}
    for number in count():
        order = [k for k, member in enumerate(members) if member.wants(number)]
        if not order or (number and machine.now() > ends):
            break
        generator.shuffle(order)
        begun, before, spins, handover_s = machine.now(), machine.disturbance(), [], machine.handover(most)
        _append(additions, machine.additions(most or None))
        for k in order:
            spins.append(machine.spin(members[k].cpus))
            members[k].take_turn(number, generator.random() < 0.5)
        steal, pressure = (now - then for now, then in zip(machine.disturbance(), before, strict=True))
        for name, value in zip(kept, (order, spins, handover_s, machine.now() - begun, steal, pressure), strict=True):
            kept[name].append(value)
    return Rounds([member.name for member in members], **kept, additions_per_cycle=additions)
