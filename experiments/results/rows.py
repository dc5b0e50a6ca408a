"""Rows of results folders: records of what was measured, made where it is measured and read back by the same class.

Every field is written in every row, null where there is nothing; docs/reference/samples.md is made from these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta, field

from ...cython_src.binding.execution_model import Conduct
from ...cython_src.errors import UsageError
from ...cython_src.lowering.options import PlanOptions, plan_options
from ...cython_src.reading import Amount, Count, Digits, Name, Number, Positive, Real, Text, checked, decode_json
from ...cython_src.records import fields
from ..bounds.bounds import GraphBounds
from ..machine.numa import POLICIES
from ..machine.topology import BINDS
from ..subjects.models import ModelSpec, model_in_file
from .nodes import NODES, NOWHERE, Node, Part, Row, says
from .training_rows import EpochRow, EvaluatedRow, StudyRow, TrainedRow

Times = dict[str, Amount]
ByThreads = dict[Digits, Positive]
Holds = Literal["samples", "metg", "training", "study", "evaluation"]
# The command that shows what a folder holds.
SHOWN_BY = {
    **dict.fromkeys(("samples", "study"), "forktask report {folder}"),
    "training": "forktask train --resume --out {folder}",
    **dict.fromkeys(("metg", "evaluation"), "{command}"),
}
Additions = Annotated[
    dict[Digits, list[Amount]],
    says(
        "integer additions in a clock cycle before each round, by CPU: with 3.3 and less it is half a core, whose "
        "sibling works for another; empty: not known, as on other processors than x86-64"
    ),
]
Origin = Annotated[
    dict[str, Text],
    says("of a model of the user's own: `file`, its `sha256`, and `version`; empty: the model is part of forktask"),
]
PAGES = "policy, bytes on each NUMA node, and why the kernel refused it, if it did; null: one node"
OF_NODE = "where: `host`, `scheduler` (the scheduler's name of the node, or empty) and `boot_id`"
# Keys of a sweep's configuration that tables and figures read; the sweep itself reads all of it by its own records.
AskedFor = msgspec.defstruct(
    "AskedFor",
    [
        *((field.name, list[field.kind], []) for field in fields(PlanOptions)),
        *((name, Text, "") for name in ("title", "data")),
        *((name, list[Name], []) for name in ("network", "models", "inject")),
        ("threads", list[Number], []),
        ("interference", list[Count], []),
        ("repeats", Number, 1),
        ("budget_s", Amount, 0.0),
        ("simulate", Annotated[int, Meta(ge=0, le=1024)], 0),
        ("places", Name, "cores"),
        ("bind", Literal[BINDS], "close"),
        ("memory_policy", Literal[POLICIES], POLICIES[0]),
        ("nodes", Literal[NODES], "one"),
        ("rtol", Amount, 0.0),
        ("compare_results", bool, True),
    ],
)


class _Processor(msgspec.Struct, frozen=True):
    model: Text | None = None


class _Cpu(msgspec.Struct, frozen=True):
    cpu: Count
    core: Count
    socket: Count = 0
    node: Count = 0
    kind: Count = 0
    llc: Count | None = None


class _Topology(msgspec.Struct, frozen=True):
    cpus: list[_Cpu] = []


class _CoreKind(msgspec.Struct):
    text: Text
    cpus: list[Count]


class Place(msgspec.Struct):
    """Keys of an environment that are read."""

    cpu: _Processor = _Processor()
    topology: _Topology = _Topology()
    affinity: list[Count] = []
    core_kinds: list[_CoreKind] = []
    gpus: list[Any] = []
    forktask: Text = ""
    node: Node = NOWHERE


class RunRow(Row, frozen=True, kw_only=True, tag="run"):
    """First row, and one more where a run was continued and more was measured."""

    holds: Annotated[Holds, says("what the folder holds")]
    run_id: Annotated[Name, says("random name")]
    created: Annotated[Text, says("time, UTC")]
    command: Annotated[Text, says("the user's command")]
    config: Annotated[dict[str, Any], says("the whole configuration")]
    how_to_read: Annotated[Text, says("comment at the head of the sweep's file")]
    environment: Annotated[dict[str, Any], says("hardware, limits, settings, software, build")]
    environment_id: Annotated[Name, says("short hash of its stable part")]

    def __post_init__(self) -> None:
        for name, kind in (("config", AskedFor if self.holds == "samples" else dict), ("environment", Place)):
            try:
                checked(getattr(self, name), kind)
            except ValueError as error:
                raise ValueError(str(error).replace("`$", f"`$.{name}")) from None

    @property
    def node(self) -> Node:
        """Where it was begun."""
        return checked(self.environment, Place).node

    def check_holds(self, wanted: str, folder: object) -> None:
        """Raise `UsageError` unless the folder holds what is wanted."""
        if self.holds != wanted:
            shown = SHOWN_BY[self.holds].format(folder=folder, command=self.command)
            raise UsageError(
                f"{str(folder)!r} holds {self.holds}, not {wanted}; choose another folder, or see this one by `{shown}`"
            )


class SessionRow(Row, frozen=True, kw_only=True, tag="session"):
    """End of a session, which is whole: what is measured into the folder later begins another one."""

    node: Annotated[Node, says(OF_NODE)]
    generations: Annotated[Number, says("of the folder so far; the next session counts on from here")]


class MachineRow(Row, frozen=True, kw_only=True, tag="machine"):
    """Limits of a node, measured before its first sample ([how](measuring.md#what-bounds-a-speedup))."""

    node: Annotated[Node, says(OF_NODE)]
    instruction_set: Annotated[Text, says("generic, avx2, avx512 or avx512_narrow")]
    peak_flops_per_s_1thread: Annotated[Positive | None, says("best window; null: not measured")]
    median_flops_per_s_1thread: Annotated[Positive | None, says("median window")]
    frequency_hz: Annotated[Amount | None, says("clock under load")]
    flops_per_cycle: Annotated[Amount | None, says("peak over clock")]
    additions_per_cycle: Annotated[
        dict[Digits, Amount],
        says("integer additions in a clock cycle, by CPU: half of a core's where its sibling works for another guest"),
    ] = field(default_factory=dict)
    bandwidth_bytes_per_s: Annotated[ByThreads, says("by number of threads")]
    cache_bandwidth_bytes_per_s: Annotated[ByThreads, says("of one thread, by level")]
    between_nodes: Annotated[
        dict[Digits, dict[Digits, Amount]],
        says("bandwidth of one thread, bytes/s, by the NUMA node of its CPU, then by that of its memory"),
    ] = field(default_factory=dict)
    capacity: Annotated[ByThreads, says("arithmetic of that many threads together, in multiples of one thread's")]
    capacity_beside: Annotated[
        dict[Digits, dict[Digits, Amount]],
        says("part of the CPUs left by competing processes: by threads, then by their number"),
    ]
    disturbance: Annotated[dict[str, Real | None], says("as in a sample, during this measurement")]
    elapsed_s: Annotated[Amount, says("duration of this measurement")]


NOT_MEASURED = MachineRow(
    node=NOWHERE,
    instruction_set="",
    **dict.fromkeys(("peak_flops_per_s_1thread", "median_flops_per_s_1thread", "frequency_hz", "flops_per_cycle")),
    **{name: {} for name in ("bandwidth_bytes_per_s", "cache_bandwidth_bytes_per_s", "capacity", "capacity_beside")},
    disturbance={},
    elapsed_s=0.0,
)


class OfShard(Row, frozen=True, kw_only=True):
    """What all rows of a shard have: one generation of one plan, on one node."""

    plan_id: Annotated[Name, says("which plan")]
    interference: Annotated[Count, says("number of competing processes")]
    repetition: Annotated[Count, says("which generation")]
    node: Annotated[Node, says(OF_NODE)]


class CapacityRow(OfShard, frozen=True, kw_only=True, tag="capacity"):
    """The capacity again, at the beginning of each generation: its spread is part of the intervals of bounds."""

    plan_id: Annotated[Text, says("whose generation; empty: that of all plans")] = ""
    interference: Annotated[Count, says("number of competing processes in it")] = 0
    capacity: Annotated[ByThreads, says("by number of threads")]


class Loop(Part, frozen=True, kw_only=True):
    """A loop of a plan."""

    name: Name
    layer: Text | None
    phase: Text
    kernel: Text
    num_blocks: Number
    flops: Amount
    bytes: Amount
    least_bytes: Amount


class PlanRow(Row, frozen=True, kw_only=True, tag="plan"):
    """A plan: its options, its loops with their costs, and the size of its closed graph."""

    plan_id: Annotated[Name, says("short hash of `options`")]
    options: Annotated[dict[str, Any], says("the arguments of `lower`: `network` and [the options](plan_options.md)")]
    loops: Annotated[
        list[Loop],
        Meta(min_length=1),
        says(
            "of each: name, layer, phase, kernel, number of blocks, flops, bytes of its blocks, and `least_bytes`, "
            "where a region counts once"
        ),
    ]
    flops: Annotated[Amount, says("of an iteration")]
    bytes: Annotated[Amount, says("of all blocks")]
    num_tasks: Annotated[Number, says("blocks of a pass")]
    num_edges: Annotated[Count, says("dependences of the closed graph")]
    num_joins: Annotated[Count, says("its nodes that are no tasks")]
    memory_bytes: Annotated[dict[str, Count], says("by purpose")]
    iteration_stride: Annotated[Number, says("iterations of one pass")]
    deterministic: Annotated[bool, says("whether results are compared bit by bit")]
    num_parameters: Annotated[Count, says("number of parameter arrays")]
    interference: Annotated[Count, says("0; tables give samples with competing processes a plan of their own")] = 0
    layers_id: Annotated[
        Text, says("short hash of the network's layers; empty: a graph, or measured before there was one")
    ] = ""

    def __post_init__(self) -> None:
        known = {"network", *(field.name for field in fields(PlanOptions))}
        if self.options.keys() != known or not isinstance(self.network, str):
            others = ", ".join(sorted(known ^ self.options.keys())) or "network"
            raise ValueError(f"options must have the keys of this version of forktask, they differ in {others}")
        plan_options(self.options)

    @property
    def network(self) -> str:
        """Name or call of what is computed."""
        return self.options["network"]

    @property
    def batch(self) -> int:
        """Samples of an iteration."""
        return self.options["batch"]

    @property
    def granularity(self) -> str:
        """How loops are cut into blocks."""
        return self.options["granularity"]


class Measured(OfShard, frozen=True, kw_only=True):
    """What all rows of a measurement have: the conditions under which it was made."""

    config_id: Annotated[Name, says("short hash of model, threads, plan and competing processes")]
    model: Annotated[ModelSpec, says("with its options")]
    threads: Annotated[Number, says("that execute blocks")]
    check: Annotated[
        Text,
        says(
            "what [the check](../guide/own_network.md#your-network-in-the-commands) of the plan has found: `shipped` "
            "(none is made), `passed`, `in part` (time was up before all was checked), `impossible` (the plan could "
            "not be run in another process), `left out` (`--no-check`), `not compared with PyTorch` (a network by "
            "`from_torch(..., check=False)`)"
        ),
    ]
    position: Annotated[Count, says("in the shuffled order")]
    environment_id: Annotated[Name, says("that of the run")]
    origin: Origin = field(default_factory=dict)
    cpus: Annotated[list[Count] | None, says("CPU of each thread, then of `gpu_both` one more; null: not pinned")]
    variables: Annotated[dict[str, Text], says("environment variables of the process")]


class Process(Measured, frozen=True, kw_only=True):
    """What all measuring processes say of themselves."""

    instruction_set: Annotated[Text, says("kernels used")]
    pid: Annotated[Count, says("process")]
    started: Annotated[Amount, says("Unix time")]


class Energy(Part, frozen=True, kw_only=True):
    """Energy that the machine took in a sample's turns, or why none was measured."""

    joules: Amount | None
    joules_per_step: Amount | None
    source: Text
    error: Text | None


class Counters(Part, frozen=True, kw_only=True):
    """Hardware counters of all threads, or why there are none."""

    cycles: Amount | None
    instructions: Amount | None
    llc_misses: Amount | None
    error: Text | None


class Pages(Part, frozen=True, kw_only=True):
    """Where a process's memory came to lie: bytes of its arrays on each NUMA node, the share of the bytes that blocks
    access which is on another node than the CPU that a static schedule gives them, and why the kernel refused the
    policy, if it did."""

    policy: Literal[POLICIES]
    bytes_by_node: dict[Digits, Count]
    remote_share: Amount | None = None
    error: Text


class Gpu(Part, frozen=True, kw_only=True):
    """A GPU, what it cost once, what was copied so far: [number, bytes] each way, and its clock at the end of turns, as
    far as its management library says."""

    name: Text
    architecture: Text
    peak_flops_per_s: Amount | None
    peak_bytes_per_s: Amount | None = None
    costs_s: dict[str, Amount]
    copies: dict[Literal["to_host", "to_device"], list[Amount]]
    clock_hz: Amount | None = None


class SampleRow(Process, frozen=True, kw_only=True, tag="sample"):
    """A process that was timed."""

    ALIKE = (("rounds", "short_times_s", "long_times_s"), ("warmup_lengths", "warmup_times_s"))

    group: Annotated[Count, says("which group of its generation; ratios are taken within one")]
    step_time_s: Annotated[
        Real, says("median over its turns of the slope of run time over run length; disturbed rounds are left out")
    ]
    fill_time_s: Annotated[Real | None, says("its intercept; null where `short_steps` is 0")]
    short_steps: Annotated[
        Count, says("length of the short timed runs, in iterations; 0 of passes of 50 ms and more: they have long runs")
    ]
    long_steps: Annotated[Number, says("length of the long ones")]
    rounds: Annotated[list[Count], Meta(min_length=1), says("numbers of the rounds in which it had a turn")]
    short_times_s: Annotated[list[Amount], Meta(min_length=1), says("how long the short runs took, one per turn")]
    long_times_s: Annotated[list[Amount], Meta(min_length=1), says("how long the long ones took")]
    num_steps: Annotated[Count, says("of all turns, also untimed ones; disturbance, counters and energy are of these")]
    warmup_lengths: Annotated[list[Count], says("of the warm-up runs before")]
    warmup_times_s: Annotated[list[Amount], says("how long they took")]
    stationary: Annotated[bool, says("false: time was up before the trend of the warm-up ended")]
    prepare_s: Annotated[Amount, says("preparing the executor, once")]
    record_s: Annotated[Amount | None, says("recording the graph, once; null where the model does not record")]
    close_s: Annotated[Amount | None, says("closing it, once; null where the model does not close")]
    first_replay_s: Annotated[Amount, says("the first pass")]
    check_iterations: Annotated[Count, says("iterations after which hashes and answer were taken")]
    weights_hash: Annotated[Name, says("of all parameters")]
    losses_hash: Annotated[Name, says("of the losses so far")]
    answer: Annotated[list[Real], says("losses, or probabilities, for peers and other devices")]
    deterministic: Annotated[bool, says("whether the hashes must agree")]
    conduct: Annotated[
        Conduct | None, says("[what the executor does besides running blocks](what_differs.md); null on a GPU")
    ]
    pages: Annotated[Pages | None, says(PAGES)] = None
    disturbance: Annotated[
        dict[str, Real | None],
        says(
            "during its turns: `pressure_some_us`, `others_us` (CPU time of all other processes, in the kernel's "
            "ticks), `steal_ticks`, `nonvoluntary_switches`, `throttled_us`, `thermal_throttles` (times that heat or "
            "low voltage slowed a CPU); null where the machine hides one"
        ),
    ]
    counters: Annotated[
        Counters,
        says(
            "hardware counters during the turns, all threads: `cycles`, `instructions`, `llc_misses`; null where "
            "the machine has none, and the reason in `error`"
        ),
    ]
    temperature_c: Annotated[
        Real | None, says("the processor's hottest sensor, after the turns; null where the machine hides it")
    ]
    energy: Annotated[
        Energy,
        says(
            "of the whole machine in its turns: `joules`, `joules_per_step`, `source`; null, and the reason in "
            "`error`, where nothing measures it ([what is read](measuring.md#energy-heat-and-kinds-of-cores))"
        ),
    ]
    timed_wall_s: Annotated[Positive, says("of its turns")]
    timed_cpu_s: Annotated[Amount, says("of its turns, all threads")]
    page_faults: Annotated[Count, says("of its turns")]
    max_resident_bytes: Annotated[
        Count,
        says(
            "most memory that was resident in the process; the page of the report splits it into the next two, the "
            "plan's buffers by kind, and the rest"
        ),
    ]
    libraries_bytes: Annotated[Count, says("what was resident before the plan was made: Python and libraries")]
    graph_bytes: Annotated[Count, says("memory of plan and task graph, roughly")]
    frequency_hz: Annotated[Amount | None, says("clock after the turns")]
    core_clocks_hz: Annotated[
        dict[Digits, Amount],
        says("clock of each of its CPUs at the end of its turns, median; without those whose clock is hidden"),
    ] = field(default_factory=dict)
    libraries: Annotated[list[dict[str, Any]], says("BLAS and OpenMP libraries loaded")]
    gpu: Annotated[Gpu | None, says("device, one-off costs and copies; null on the CPU")]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.long_steps <= self.short_steps:
            raise ValueError(f"long_steps must be above short_steps, got {self.long_steps} and {self.short_steps}")


class RoundsRow(OfShard, frozen=True, kw_only=True, tag="rounds"):
    """The rounds of a generation: interleaved configurations, and what the machine did meanwhile. Written before the
    samples of its contestants."""

    ALIKE = (("order", "spin_s", "handover_s", "wall_s", "steal_ticks", "pressure_us"),)

    group: Annotated[Count, says("which part of it: 0, unless memory did not hold all contestants at once")]
    contestants: Annotated[list[Name], Meta(min_length=1), says("their `config_id`")]
    order: Annotated[list[list[Count]], says("of turns in each round, as indices into `contestants`")]
    spin_s: Annotated[
        list[list[Amount]],
        says("time of a fixed calibration kernel right before each turn, on the CPUs of the contestant, in that order"),
    ]
    handover_s: Annotated[
        list[Amount | None],
        says(
            "least time of a hand-over through a cache line between two CPUs, in each round: virtual CPUs move, and "
            "[models suffer from that by different factors](../notes/near_and_far_cpus.md); null with one CPU"
        ),
    ]
    wall_s: Annotated[list[Positive], says("duration of each round")]
    steal_ticks: Annotated[list[Count], says("clock ticks that the hypervisor gave to others in each round, all CPUs")]
    pressure_us: Annotated[list[Count], says("time in which some runnable thread waited for a CPU in each round")]
    additions_per_cycle: Additions = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(len(rates) != len(self.order) for rates in self.additions_per_cycle.values()):
            raise ValueError(f"each CPU in additions_per_cycle must have a value for each of {len(self.order)} rounds")
        for turns, spins in zip(self.order, self.spin_s, strict=True):
            if not 0 < len(turns) == len(spins) or max(turns) >= len(self.contestants):
                raise ValueError(
                    f"each round must have turns of its {len(self.contestants)} contestants and a spin before each, "
                    f"got {turns!r:.60} and {spins!r:.60}"
                )


class Floors(Part, frozen=True, kw_only=True):
    """Floors from the mean durations of a run's own blocks, in seconds."""

    area: Positive
    forkjoin: Positive
    forkjoin_static: Positive
    taskgraph: Positive
    taskiter: Positive


class BlockCounts(Part, frozen=True, kw_only=True):
    """Events in the blocks of a step, in a run of its own, or why some are missing."""

    by_kernel: dict[Text, dict[Text, Amount | None]]
    by_thread: list[dict[Text, Amount | None]]
    error: Text


class ProfileRow(Process, frozen=True, kw_only=True, tag="profile"):
    """A run with the event log on, `profile_repeats` times for each configuration, each after a sample, in its process.
    Its times are no step times: the log costs time."""

    block_time_s: Annotated[dict[str, list[Amount]], says("by loop: seconds of each block, median over passes")]
    loop_time_s: Annotated[Times, says("by loop: busy seconds, mean over passes")]
    phase_wall_s: Annotated[
        Times | None,
        says(
            "by phase: from the end of the one before it to its own, mean over passes; null where the model has no "
            "barrier between phases"
        ),
    ]
    phase_beside_s: Annotated[
        dict[str, Times],
        says("by phase, then by another one: busy seconds of the first while a block of the other ran; mean of passes"),
    ]
    runtime_cost_s: Annotated[
        Amount | None, says("a pass through the same graph with empty kernels; null where a pass is several iterations")
    ]
    bounds: Annotated[GraphBounds, says("work, span, maximum cycle mean with these durations")]
    floors: Annotated[Floors, says("from the mean durations of this run's own blocks")]
    pass_time_s: Annotated[Positive, says("mean time of a pass")]
    barrier: Annotated[Text, says("the model's")]
    iterations: Annotated[Number, says("logged")]
    step_time_s: Annotated[Positive, says("their mean time")]
    counts: Annotated[
        BlockCounts | None,
        says("by kernel and by thread: counts of events in the blocks of a step; `error`: why an event is missing"),
    ] = None
    remote_bytes: Annotated[
        dict[Text, tuple[Amount, Amount]] | None,
        says(
            "by kernel: bytes that the blocks of a pass access, and those on another NUMA node than the CPU that ran "
            "the block; null: there is one node, or threads are not pinned"
        ),
    ] = None


class GpuProfileRow(Process, frozen=True, kw_only=True, tag="gpu_profile"):
    """The same for a model of a GPU."""

    kernels: Annotated[
        list[dict[str, Any]], says("of a step: name, time, share, calls, operations, bytes that must be moved")
    ]
    calls: Annotated[list[dict[str, Any]], says("of the driver, likewise")]
    busy_s: Annotated[Amount, says("kernels of a step, one after the other")]
    empty_kernel_s: Annotated[Amount, says("subtracted from each")] = 0.0
    loop_time_s: Annotated[Times, says("by launch: seconds of a step")]
    copies: Annotated[dict[Literal["to_host", "to_device"], list[Amount]], says("[number, bytes] of a step, each way")]
    runtime_cost_s: Annotated[Amount | None, says("a step of empty kernels; null for a model that moves data")]
    step_time_s: Annotated[Amount, says("without profiling")]
    profiled_step_s: Annotated[dict[str, Amount], says("while kernels, and calls, are timed")]
    iterations: Annotated[Number, says("logged")]
    gpu: Annotated[Gpu, says("as in a sample")]


class FailureRow(Measured, frozen=True, kw_only=True, tag="failure"):
    """A sample or profile that failed."""

    measuring: Annotated[Literal["sample", "profile"], says("which of the two")]
    reason: Annotated[
        Literal["crash", "memory", "timeout", "mismatch", "answer", "machine"],
        says(
            "why; `mismatch`: other bits; `answer`: another program's losses are not near ours; `machine`: this "
            "machine or its settings cannot run it"
        ),
    ]
    message: Annotated[Text, Meta(min_length=1), says("its message")]
    sample: Annotated[dict[str, Any] | None, says("with `mismatch`, what was measured")]


class GraphAtWork(Part, frozen=True, kw_only=True):
    """A Task Bench graph at one amount of work."""

    work: Count
    mean_work: Amount
    num_tasks: Number
    iteration_times_s: Annotated[list[Positive], Meta(min_length=1)]
    prepare_s: Amount


class OfGraph(Row, frozen=True, kw_only=True):
    """What all rows of `forktask metg` have."""

    model: Annotated[ModelSpec, says("with its options")]
    origin: Origin = field(default_factory=dict)
    threads: Annotated[Number, says("that execute blocks")]
    graph: Annotated[dict[str, Any], says("pattern, sizes and kernel, or network and options")]
    repetition: Annotated[Count, says("which generation")]
    position: Annotated[Count, says("in the shuffled order")]
    quick: Annotated[bool, says("a check that it works")]
    variables: Annotated[dict[str, Text], says("environment variables of the process")]
    cpus: Annotated[list[Count], says("CPU of each thread")]
    handover_s: Annotated[
        list[Amount] | None,
        says("least time of a hand-over through a cache line between two CPUs, before each round of turns"),
    ] = None
    additions_per_cycle: Additions = field(default_factory=dict)


class MetgRow(OfGraph, frozen=True, kw_only=True, tag="metg"):
    """A model on a Task Bench graph, at all amounts of work."""

    parallel: Annotated[Number, says("threads")]
    unit_s: Annotated[Positive, says("a unit of work without a runtime")]
    empty: Annotated[GraphAtWork, says("the graph whose tasks do nothing")]
    points: Annotated[list[GraphAtWork], Meta(min_length=1), says("with more and more work")]
    record_s: Annotated[Amount | None, says("recording the graph, once; null where the model does not record")]
    close_s: Annotated[Amount | None, says("closing it, once; null where the model does not close")]
    disturbance: Annotated[dict[str, Real | None], says("as in a sample")]
    pages: Annotated[Pages | None, says(PAGES)] = None
    wall_s: Annotated[Positive, says("duration of all of it")]


class MetgFailureRow(OfGraph, frozen=True, kw_only=True, tag="metg_failure"):
    """A model that could not be measured on a graph."""

    reason: Annotated[Name, says("crash, memory, timeout or machine")]
    message: Annotated[Text, Meta(min_length=1), says("its message")]


class DurationsRow(Row, frozen=True, kw_only=True, tag="durations"):
    """Durations of a network's blocks, measured once, so that all models get the same graph."""

    durations_s: Annotated[list[Amount], Meta(min_length=1), says("of each block, in seconds")]


class LossesOfRun(Part, frozen=True, kw_only=True):
    """Where the time of an iteration went, in seconds of wall time, and the factors of the efficiency."""

    model: ModelSpec
    threads: Number
    step_time_s: Positive
    useful_s: Amount
    inflation_s: Real
    runtime_s: Amount
    imbalance_s: Amount
    barrier_s: Amount
    dependence_s: Amount
    preemption_s: Amount
    cpu_availability: Real
    scheduling_efficiency: Real
    serialization_efficiency: Real
    load_balance: Real
    computation_scalability: Real
    global_efficiency: Real
    against_serial: bool


class TraceRow(Row, frozen=True, kw_only=True, tag="trace"):
    """What the threads did in a logged run: `trace`, `compare --trace`, `run --trace`."""

    plan_id: Annotated[Name, says("which plan")]
    model: Annotated[ModelSpec, says("with its options")]
    origin: Origin = field(default_factory=dict)
    threads: Annotated[Number, says("that execute blocks")]
    environment_id: Annotated[Name, says("that of the run")]
    check: Annotated[Text, says("as in a sample")]
    path: Annotated[Name, says("[event log](event_log.md), relative to the folder")]
    iterations: Annotated[Number, says("length of the run")]
    overhead: Annotated[Real, says("by what fraction logging made runs longer")]
    overheads: Annotated[list[Real], Meta(min_length=1), says("the same in each pair of runs")]
    lost: Annotated[Count, says("spells past the log's capacity")]
    losses: Annotated[
        LossesOfRun, says("[losses](event_log.md#losses): wall time of an iteration by class, and the factors")
    ]
    layers: Annotated[list[dict[str, Any]], says("the same by phase and layer, in ns over the run and all threads")]


_OfRuns = RunRow | SessionRow | MachineRow | CapacityRow | PlanRow | RoundsRow
_OfMeasuring = SampleRow | ProfileRow | GpuProfileRow | FailureRow | TraceRow | MetgRow | MetgFailureRow | DurationsRow
_OfTraining = EpochRow | TrainedRow | EvaluatedRow | StudyRow
AnyRow = _OfRuns | _OfMeasuring | _OfTraining
KINDS: dict[str, type[Row]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyRow)}
T = TypeVar("T")


def row_of(values: Mapping[str, Any], kind: Any = AnyRow) -> Any:
    """Return the row that values stand for; models may be texts there. Raises `ValueError`: they are none: says which
    field, and what was expected."""
    return checked(values, kind, dec_hook=model_in_file)


def values_of(row: Row | Part) -> dict[str, Any]:
    """Return a row as JSON has it; inverse of `row_of`."""
    return msgspec.to_builtins(row, enc_hook=str)


def parse_row(line: bytes) -> AnyRow:
    """Return the row that a line holds. Raises `ValueError`: it is none: says which field, and what was expected."""
    return row_of(decode_json(line))


def make_row(kind: type[T], *parts: Any) -> T:
    """Return the row of a kind that mappings make up together, as they come from a measuring process. Raises
    `ValueError` as in `parse_row`."""
    return row_of({key: value for part in parts for key, value in part.items() if key != "kind"}, kind)


def answered(kind: type[T], failure: type[Any], reply: Mapping[str, Any], requested: Mapping[str, Any]) -> T | Any:
    """Return the row of a kind in the reply of a measuring process to a request, or the row of its failure."""
    if "failure" not in reply:
        try:
            return make_row(
                kind, reply, {name: requested[name] for name in requested if name in kind.__struct_fields__}
            )
        except ValueError as error:
            tag = kind.__struct_config__.tag
            reply = {"failure": "crash", "message": f"the measuring process gave no {tag}: {error}"}
    known = {name: requested[name] for name in requested if name in failure.__struct_fields__}
    return failure(**known, reason=reply["failure"], message=reply["message"])
