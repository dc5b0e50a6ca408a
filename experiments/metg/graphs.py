"""The graphs on which METG is measured: those of Task Bench, or the one of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from ...cython_src.errors import UsageError
from ...cython_src.graphs.task_bench import PATTERNS_WITH_RADIX, task_bench
from ...cython_src.lowering.lower import default_batch, lower
from ...cython_src.lowering.options import PlanOptions, describe, plan_options
from ...cython_src.records import Record, about
from ..subjects.memory import check_some_fit

MOST_TASKS = 1_000_000


class TaskBenchOptions(Record, frozen=True):
    """Size and kernel of a Task Bench graph."""

    width: Annotated[int, about("tasks per step", least=1, below=65_537)] = 16
    steps: Annotated[int, about("steps per iteration", least=1, below=65_537)] = 16
    radix: Annotated[int, about("inputs of a task, for nearest and spread", least=0, below=1025)] = 5
    kernel: Annotated[str, about("what a task does", choices=("compute", "memory", "load_imbalance", "busy_wait"))] = (
        "compute"
    )
    check: Annotated[bool, about("each task checks its inputs; without, the runtime alone is measured")] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width * self.steps > MOST_TASKS:
            raise UsageError(
                f"an iteration must have at most {MOST_TASKS} tasks, width x steps, got {self.width} x {self.steps}"
            )


def requested_graphs(
    patterns: Sequence[str], network: str | None, requested: Mapping[str, Any], plan: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the graph of each pattern, or in place of them that of a network. `requested`, `plan`: the requested
    fields of `TaskBenchOptions` and of `PlanOptions`. Raises `UsageError`: an option that these graphs do not have, or
    a graph that Task Bench or forktask does not have."""
    options = TaskBenchOptions(**requested)
    if network is not None:
        if unused := requested.keys() - {"kernel"}:
            flag = "no-check" if "check" in unused else min(unused)
            raise UsageError(f"--{flag} is an option of Task Bench graphs, got it with --network; leave it out")
        if options.kernel != "compute":
            raise UsageError(f"--kernel must be compute with --network, got {options.kernel}")
        described = PlanOptions(**{"batch": default_batch(network), **plan})
        check_some_fit([(network, described)])
        lower(network, described)  # raises
        return [{"network": network, **described.as_dict(), "kernel": "compute"}]
    if plan:
        flag = next(iter(plan)).replace("_", "-")
        raise UsageError(f"--{flag} is an option of plans of networks, got it without --network; leave it out")
    graphs = [{"pattern": pattern, **options.as_dict()} for pattern in patterns]
    for graph in graphs:
        task_bench(**graph)  # raises
    if "radix" in requested and not {*patterns} & {*PATTERNS_WITH_RADIX}:
        raise UsageError(
            f"--radix is for the patterns {', '.join(PATTERNS_WITH_RADIX)}, got {', '.join(patterns)}; leave it out"
        )
    return graphs


def graph_name(graph: Mapping[str, Any]) -> str:
    """Return the name of a graph: its pattern or network."""
    return graph.get("pattern") or graph["network"]


def describe_graph(graph: Mapping[str, Any]) -> str:
    """Describe a graph in words."""
    if "network" in graph:
        others = describe(plan_options(graph), leave_out=("batch", "granularity"))
        return (
            f"{graph['network']}, batch {graph['batch']}, granularity {graph['granularity']}"
            f"{', ' + others if others else ''}: its graph with its blocks' durations, scaled"
        )
    return (
        f"{graph['pattern']}, {graph['width']} x {graph['steps']} tasks per iteration, kernel {graph['kernel']}"
        f"{'' if graph['check'] else ', inputs not checked'}"
    )
