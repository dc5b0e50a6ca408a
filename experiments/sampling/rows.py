"""Types and ranges of the fields of result rows that are read, by kind of row.

A field that older rows lack, or that only some models have, is optional; fields that nobody reads may be anything.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...cython_src.reading import Amount, Count, Digits, Name, Number, Real, Text, checked

Times = dict[str, Real]


class RunConfig(msgspec.Struct, kw_only=True):
    """The request of a sweep; `sweep.configuration` reads the rest, with the records of its options."""

    title: Text | UnsetType = UNSET
    data: Text | UnsetType = UNSET
    models: list[Name] | UnsetType = UNSET
    threads: list[Number] | UnsetType = UNSET
    interference: list[Count] | Count | UnsetType = UNSET
    network: list[Name] | UnsetType = UNSET
    batch: list[Number] | UnsetType = UNSET
    granularity: list[Name] | UnsetType = UNSET
    repeats: Number | UnsetType = UNSET


class RunRow(msgspec.Struct, kw_only=True):
    """Beginning of a run, or of its continuation."""

    schema_version: Annotated[int, Meta(ge=1, lt=2**31)]
    config: RunConfig
    environment: dict[str, Any]
    environment_id: Text
    created: Text | UnsetType = UNSET
    command: Text | UnsetType = UNSET
    how_to_read: str | UnsetType = UNSET


class Loop(msgspec.Struct, kw_only=True):
    """A loop of a plan."""

    name: Name
    layer: Text | None
    phase: Text
    kernel: Text
    num_blocks: Number
    flops: Amount
    bytes: Amount


class PlanRow(msgspec.Struct, kw_only=True):
    """A plan: options, loops and size."""

    plan_id: Name
    network: Name
    batch: Number
    phase: Name
    granularity: Name
    options: dict[str, Any]
    loops: Annotated[list[Loop], Meta(min_length=1)]
    flops: Amount
    bytes: Amount
    num_tasks: Count
    num_edges: Count | UnsetType = UNSET
    num_joins: Count | UnsetType = UNSET
    memory_bytes: dict[str, Count] | UnsetType = UNSET
    iteration_stride: Number | UnsetType = UNSET
    deterministic: bool | UnsetType = UNSET
    num_parameters: Count | UnsetType = UNSET


class MachineRow(msgspec.Struct, kw_only=True):
    """Limits of a machine."""

    peak_flops_per_s_1thread: Amount | UnsetType = UNSET
    median_flops_per_s_1thread: Amount | UnsetType = UNSET
    frequency_hz: Amount | UnsetType | None = UNSET
    bandwidth_bytes_per_s: dict[Digits, Amount] | UnsetType = UNSET
    cache_bandwidth_bytes_per_s: dict[Digits, Amount] | UnsetType = UNSET
    capacity: dict[Digits, Amount] | UnsetType = UNSET
    capacity_beside: dict[Digits, dict[Digits, Amount]] | UnsetType = UNSET


class CapacityRow(msgspec.Struct, kw_only=True):
    """Capacity of the machine, measured at the beginning of a repetition."""

    repetition: Count
    capacity: dict[Digits, Amount]


class MachineModelRow(msgspec.Struct, kw_only=True):
    """Values of a machine that a simulation needs; `simulate.machine_model` reads them."""

    model: dict[str, Any]
    started: Any = None


class Measured(msgspec.Struct, kw_only=True):
    """Fields that all rows of a measurement have."""

    config_id: Name
    model: Name
    threads: Number
    plan_id: Name
    check: Text | UnsetType = UNSET
    interference: Count | UnsetType = UNSET
    environment_id: Text | UnsetType = UNSET
    instruction_set: Text | UnsetType | None = UNSET
    cpus: list[Count] | UnsetType | None = UNSET
    variables: dict[str, Text] | UnsetType = UNSET


class Energy(msgspec.Struct, kw_only=True):
    """Energy that the machine took in the timed runs, or why none was measured."""

    joules: Amount | None
    joules_per_step: Amount | None
    source: Text
    error: Text | None


class SampleRow(Measured, kw_only=True):
    """A sample."""

    repetition: Count
    step_time_s: Real | UnsetType | None = UNSET
    fill_time_s: Real | UnsetType | None = UNSET
    run_lengths: list[Count] | UnsetType = UNSET
    run_times_s: list[Real] | UnsetType = UNSET
    warmup_lengths: list[Count] | UnsetType = UNSET
    warmup_times_s: list[Real] | UnsetType = UNSET
    prepare_s: Real | UnsetType | None = UNSET
    record_s: Real | UnsetType | None = UNSET
    close_s: Real | UnsetType | None = UNSET
    first_replay_s: Real | UnsetType | None = UNSET
    weights_hash: Text | UnsetType | None = UNSET
    losses_hash: Text | UnsetType | None = UNSET
    answer: list[Real] | UnsetType = UNSET
    deterministic: bool | UnsetType = UNSET
    check_iterations: Count | UnsetType = UNSET
    disturbance: dict[str, Amount | None] | UnsetType | None = UNSET
    temperature_c: Real | UnsetType | None = UNSET
    energy: Energy | UnsetType | None = UNSET
    timed_wall_s: Real | UnsetType = UNSET
    timed_cpu_s: Real | UnsetType = UNSET
    max_resident_bytes: Count | UnsetType = UNSET
    libraries_bytes: Count | UnsetType = UNSET
    graph_bytes: Count | UnsetType = UNSET
    gpu: dict[str, Any] | UnsetType | None = UNSET
    conduct: dict[str, Any] | UnsetType | None = UNSET
    position: Count | UnsetType = UNSET


class ProfileRow(Measured, kw_only=True):
    """Times of blocks and loops, from an event log."""

    repetition: Count
    block_time_s: dict[str, list[Real]] | UnsetType = UNSET
    loop_time_s: Times | UnsetType = UNSET
    loop_wall_s: Times | UnsetType | None = UNSET
    phase_wall_s: Times | UnsetType | None = UNSET
    phase_beside_s: dict[str, Times] | UnsetType = UNSET
    worker_busy_s: list[Real] | UnsetType = UNSET
    runtime_cost_s: Real | UnsetType | None = UNSET
    bounds: Times | UnsetType | None = UNSET
    floors: Times | UnsetType | None = UNSET
    pass_time_s: Real | UnsetType | None = UNSET
    step_time_s: Real | UnsetType | None = UNSET
    barrier: Text | UnsetType = UNSET
    iterations: Number | UnsetType = UNSET


class FailureRow(Measured, kw_only=True):
    """A configuration that could not be measured."""

    reason: Name
    message: Annotated[str, Meta(min_length=1, max_length=1 << 16)]
    repetition: Count | UnsetType = UNSET


class Points(msgspec.Struct, kw_only=True):
    """A Task Bench graph at one amount of work."""

    mean_work: Amount
    num_tasks: Number
    iteration_times_s: Annotated[list[Amount], Meta(min_length=1)]
    work: Count | UnsetType = UNSET
    prepare_s: Amount | UnsetType = UNSET


class Empty(Points, kw_only=True):
    """A Task Bench graph whose tasks do nothing."""

    prepare_s: Amount


class MetgRow(msgspec.Struct, kw_only=True):
    """A model on a Task Bench graph, at all amounts of work."""

    model: Name
    threads: Number
    graph: dict[str, Any]
    repetition: Count
    unit_s: Amount
    empty: Empty
    points: Annotated[list[Points], Meta(min_length=1)]
    parallel: Number
    interference: Count
    disturbance: dict[str, Amount | None]
    wall_s: Annotated[float, Meta(gt=0, lt=1e15)]
    record_s: Amount | None
    close_s: Amount | None


class MetgFailureRow(msgspec.Struct, kw_only=True):
    """A model that could not be measured on a graph."""

    failure: Name
    message: Annotated[str, Meta(min_length=1, max_length=1 << 16)]
    model: Name
    threads: Number
    graph: dict[str, Any]
    repetition: Count


class DurationsRow(msgspec.Struct, kw_only=True):
    """Durations of the blocks of a network."""

    durations_s: Annotated[list[Amount], Meta(min_length=1)]


class LossesRow(msgspec.Struct, kw_only=True):
    """Where the time of an iteration went, in seconds of wall time, and the factors of the efficiency."""

    model: Name
    threads: Number
    step_time_s: Annotated[float, Meta(gt=0, lt=1e15)]
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


class TraceRow(msgspec.Struct, kw_only=True):
    """A logged run: where its log is, and its losses."""

    plan_id: Name
    model: Name
    threads: Number
    path: Name
    losses: LossesRow
    overhead: Real
    overheads: Annotated[list[Real], Meta(min_length=1)]
    lost: Count
    iterations: Number
    check: Text | UnsetType = UNSET
    environment_id: Text | UnsetType = UNSET
    layers: list[dict[str, Any]] | UnsetType = UNSET


ROWS: dict[str, Any] = {
    "run": RunRow,
    "plan": PlanRow,
    "machine": MachineRow,
    "capacity": CapacityRow,
    "machine_model": MachineModelRow,
    "sample": SampleRow,
    "profile": ProfileRow,
    "failure": FailureRow,
    "metg": MetgRow,
    "durations": DurationsRow,
    "trace": TraceRow,
}


def check_row(row: Any) -> str:
    """Return what is wrong with a row, or an empty text."""
    kind = row.get("kind") if isinstance(row, dict) else None
    if not isinstance(kind, str) or kind not in ROWS:
        return "it has no known kind"
    try:
        checked(row, MetgFailureRow if kind == "metg" and "failure" in row else ROWS[kind])
    except ValueError as error:
        return str(error)
    return ""
