"""`forktask metg`: what a runtime costs a task, on Task Bench graphs.

METG(50 %) is the minimum effective task granularity: the shortest task, in wall time x threads / tasks, at which half
of the rate is still reached that the kernel has alone. One denominator for all models: the kernel's best time for a
unit of work without any runtime, over all processes of the run, times the threads.

The time of a graph in a process is that of its fastest run: what the runtime costs, not what the neighbours do. With
hogs (--interference) neighbours are the question, and it is the median. Over processes the median and the extremes are
given.

References
----------
Slaughter et al., "Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime Performance" (SC 2020).
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import random
import statistics
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..sampling.models import (
    DEFAULT_MODELS,
    built_models,
    check_threads,
    models_on,
    parse_model,
    parse_models,
    process_environment,
)
from ..sampling.progress import ProgressBar
from ..sweep.configuration import Measure, core_counts
from ..sweep.results import LASTING_FAILURES, ResultsWriter, canonical_json
from ..sweep.run import add_device, clean_environment, hogs_running, parse_numbers, run_sample, sample_environment

SAMPLES = "metg.jsonl"
PRESENTATION = ("out", "format", "json", "command")  # arguments that do not change what is measured
MEASURE_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.metg.measure")
HALF = 0.5
MUCH_PRESSURE = 0.1  # part of the time in which some thread waited for a CPU: from here on figures are doubtful
EAGER_MODEL = "tasks"  # creates its tasks anew: what recording is compared to


def add_parser(subparsers) -> None:
    """Add `metg`."""
    defaults = _default_models()
    parser = subparsers.add_parser(
        "metg",
        help="what a runtime costs a task: METG(50 %%) on Task Bench graphs",
        description="Run Task Bench graphs with more and more work in each task and find the shortest task at which "
        "half of the kernel's own rate is reached. Each task checks that its inputs came from the right tasks.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pattern", default="stencil_1d", metavar="P[,P...]", help="default: %(default)s")
    what.add_argument("--network", help="the graph of a network instead, with the durations of its blocks, scaled")
    parser.add_argument("--batch", type=int, default=64, help="images a step, with --network; default: %(default)s")
    parser.add_argument("--granularity", default="auto", help="with --network; default: %(default)s")
    parser.add_argument(
        "--models", default=",".join(defaults), metavar="M[,M...]", help="name[:option=value...]; default: %(default)s"
    )
    add_device(parser)
    parser.add_argument(
        "--threads", default="cores", metavar="N[,N...]", help="default: 1,2,4,... up to the cores of this process"
    )
    parser.add_argument("--width", type=int, default=16, help="tasks a step; default: %(default)s")
    parser.add_argument("--steps", type=int, default=16, help="steps an iteration; default: %(default)s")
    parser.add_argument(
        "--radix",
        type=int,
        default=5,
        help="inputs of a task, for nearest, spread and random_nearest; default: %(default)s",
    )
    parser.add_argument(
        "--kernel",
        choices=("compute", "memory", "load_imbalance", "busy_wait"),
        default="compute",
        help="default: %(default)s",
    )
    parser.add_argument("--no-check", action="store_true", help="tasks do not look at their inputs: the runtime alone")
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="R", help="processes for each model; default: %(default)s"
    )
    parser.add_argument("--interference", type=int, default=0, metavar="K", help="processes that spin on the same CPUs")
    parser.add_argument("--seed", type=int, default=1, help="of the order of measurements; default: %(default)s")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="folder for samples, table and figures; the same command again goes on with what is there; "
        "default: print only",
    )
    parser.add_argument(
        "--format", choices=("pdf", "svg", "png"), default="pdf", help="of figures; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="one short repeat: a check that it works")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than cores")
    parser.set_defaults(run=run)


def _default_models() -> list[str]:
    known = built_models()
    return [m for m in (*DEFAULT_MODELS, "openmp_tasks", "tbb") if m.partition(":")[0] in known and m != "joblib"]


def _check_gpu_graph(arguments: Namespace) -> None:
    """Raise `UsageError` for graphs that have no GPU form."""
    if arguments.network is not None:
        raise UsageError(f"metg --device gpu runs Task Bench graphs, got --network {arguments.network}; give --pattern")
    if arguments.kernel == "memory":
        raise UsageError("--kernel memory has no GPU form, got --device gpu; use compute, load_imbalance or busy_wait")


def run(arguments: Namespace) -> int:
    """`forktask metg`."""
    given = models_on(arguments.device, arguments.models.split(","), tuple(_default_models()))
    models = [str(spec) for spec in parse_models(given)]
    if arguments.device == "gpu":
        _check_gpu_graph(arguments)
    cores = len(os.sched_getaffinity(0))
    counts = core_counts() if arguments.threads == "cores" else parse_numbers(arguments.threads, "--threads")
    if arguments.device == "gpu" and arguments.threads == "cores":
        counts = (1,)
    for threads in counts:
        check_threads(threads, cores, arguments.oversubscribe)
    if arguments.repeats < 1 or arguments.interference < 0:
        raise UsageError(
            f"--repeats must be at least 1 and --interference not negative, got {arguments.repeats} and "
            f"{arguments.interference}"
        )
    graphs = _graphs(arguments)
    repeats = 1 if arguments.quick else arguments.repeats
    jobs = []
    for repetition in range(repeats):
        block = [
            (repetition, model, threads, graph)
            for graph in graphs
            for threads in counts
            for model in models
            if threads <= (parse_model(model).model.max_threads or threads)
        ]
        random.Random(f"{arguments.seed} {repetition}").shuffle(block)
        jobs += block
    if not jobs:
        raise UsageError(
            f"no model runs on {arguments.threads} threads, got {arguments.models}; add a thread count of 1"
        )
    folder = None if arguments.out is None else Path(arguments.out)
    with nullcontext() if folder is None else ResultsWriter(folder, SAMPLES) as writer:
        try:
            rows = _measure_all(jobs, arguments, repeats, cores, writer)
        except KeyboardInterrupt:
            if writer is not None:
                kept = len(writer.results.of_kind("metg"))
                print(
                    f"forktask: interrupted; {kept} measurements are kept in {folder}, the same command goes on",
                    file=sys.stderr,
                )
            raise
    table = summarise(rows)
    if folder is not None:
        (folder / "metg.csv").write_text(_as_csv(table))
        for path in draw_all(table, folder, arguments.format):
            print(f"forktask: wrote {path}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(table, indent=1))
    else:
        print(format_table(table))
    return 0 if any("failure" not in row for row in rows) else 1


def _graphs(arguments: Namespace) -> list[dict[str, Any]]:
    """Task Bench graphs, or the one of a network; refuses what cannot be."""
    if arguments.network is not None:
        from ...cython_src.lowering.lower import lower

        graph = {"network": arguments.network, "batch": arguments.batch, "granularity": arguments.granularity}
        lower(**graph)
        if arguments.kernel != "compute":
            raise UsageError(f"--kernel must be compute with --network, got {arguments.kernel}")
        return [{**graph, "kernel": "compute"}]
    from ...cython_src.graphs.task_bench import task_bench

    graphs = []
    for pattern in dict.fromkeys(arguments.pattern.split(",")):
        graphs.append(
            {
                "pattern": pattern,
                "width": arguments.width,
                "steps": arguments.steps,
                "radix": arguments.radix,
                "kernel": arguments.kernel,
                "check": not arguments.no_check,
            }
        )
        task_bench(**graphs[-1])
    return graphs


def graph_name(graph: Mapping[str, Any]) -> str:
    """The pattern, or the network."""
    return graph.get("pattern") or graph["network"]


def describe(graph: Mapping[str, Any]) -> str:
    """A graph in words."""
    if "network" in graph:
        return (
            f"{graph['network']}, batch {graph['batch']}, granularity {graph['granularity']}: its graph with its "
            f"blocks' durations, scaled"
        )
    return (
        f"{graph['pattern']}, {graph['width']} x {graph['steps']} tasks an iteration, kernel {graph['kernel']}"
        f"{'' if graph['check'] else ', inputs not checked'}"
    )


def _start(arguments: Namespace, repeats: int, cores: int, writer: ResultsWriter) -> None:
    """Write the run row; go on with what the folder holds if it was measured in the same way."""
    from ..sampling.environment import collect, environment_id

    environment = collect(variables=clean_environment(os.environ, sample_environment(Measure(), 1, 0, cores)))
    config = {
        k: v for k, v in vars(arguments).items() if isinstance(v, str | int | bool | None) and k not in PRESENTATION
    }
    continued = writer.start(
        {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "config": {**config, "repeats": repeats},
            "environment": environment,
            "environment_id": environment_id(environment),
        }
    )
    if continued:
        print(
            f"forktask: going on with {writer.out_dir}: {len(writer.results.of_kind('metg'))} measurements are there",
            file=sys.stderr,
        )


def job_key(model: str, threads: int, graph: Mapping[str, Any], repetition: int) -> str:
    """What tells one measurement from another."""
    return canonical_json([model, threads, dict(graph), repetition])


def _measure_all(
    jobs, arguments: Namespace, repeats: int, cores: int, writer: ResultsWriter | None
) -> list[dict[str, Any]]:
    """Measure the jobs one after the other, each in a process of its own; rows are written as they come.

    What the folder holds is not measured again, unless it failed in a way that a second attempt may mend.
    """
    from ..sampling.environment import available_cpus, cpu_order

    cpus = available_cpus()
    measure = Measure()
    rows: dict[str, dict[str, Any]] = {}
    durations: list[list[float]] = []
    if writer is not None:
        _start(arguments, repeats, cores, writer)
        durations = [row["durations_s"] for row in writer.results.of_kind("durations")]
        for row in writer.results.of_kind("metg"):
            if row.get("failure", "") in ("", *LASTING_FAILURES):
                rows[job_key(row["model"], row["threads"], row["graph"], row["repetition"])] = row
    with ProgressBar(len(jobs), "metg") as bar:
        if "network" in jobs[0][3] and not durations:
            durations = [_measure_durations(jobs[0][3], cpus[:1], cores)]
            if writer is not None:
                writer.append({"kind": "durations", "durations_s": durations[0]})
        for number, (repetition, model, threads, graph) in enumerate(jobs):
            if job_key(model, threads, graph, repetition) in rows:
                continue
            bar.show(number, f"repetition {repetition + 1}, {graph_name(graph)}, {model}, {threads} threads")
            order = cpu_order(threads, cpus, oversubscribe=arguments.oversubscribe)
            settings = {
                **sample_environment(measure, threads, arguments.interference, cores),
                **process_environment(parse_model(model)),
            }
            job = {
                "kind": "metg",
                "model": model,
                "threads": threads,
                "cpus": order,
                "graph": graph,
                "runs": 2 if arguments.quick else 5,
                "target_s": 0.001 if arguments.quick else 0.01,
                "budget_s": 2.0 if arguments.quick else 20.0,
                **({"durations_s": durations[0]} if durations else {}),
            }
            with hogs_running(arguments.interference, order):
                row = run_sample(job, clean_environment(os.environ, settings), measure.time_limit_s, MEASURE_COMMAND)
            row = {
                "kind": "metg",
                **row,
                "model": model,
                "threads": threads,
                "graph": graph,
                "repetition": repetition,
                "position": number,
                "interference": arguments.interference,
                "variables": settings,
                "cpus": order,
            }
            if "failure" in row:
                bar.clear()
                print(
                    f"forktask: {graph_name(graph)}, {model}, {threads} threads: {row['failure']}: "
                    f"{row['message'].splitlines()[0]}",
                    file=sys.stderr,
                    flush=True,
                )
            rows[job_key(model, threads, graph, repetition)] = row
            if writer is not None:
                writer.append(row)
    return list(rows.values())


def _measure_durations(graph: Mapping[str, Any], cpus: list[int], cores: int) -> list[float]:
    """Times of a network's blocks, measured once: all models get the same graph."""
    settings = clean_environment(os.environ, sample_environment(Measure(), 1, 0, cores))
    row = run_sample(
        {"kind": "durations", "graph": graph, "cpus": cpus}, settings, Measure().time_limit_s, MEASURE_COMMAND
    )
    if "failure" in row:
        raise UsageError(
            f"the blocks of {graph['network']} must run to be timed, got: {row['message'].splitlines()[0]}"
        )
    return row["durations_s"]


# --- rows to table --------------------------------------------------------------------------------------------------


def metg_s(work: Sequence[float], efficiency: Sequence[float], unit_s: float, target: float = HALF) -> float | None:
    """Shortest task that reaches the target efficiency: wall time x threads / tasks, in seconds.

    Parameters
    ----------
    work : sequence of float
        Units of work of an average task, ascending.
    efficiency : sequence of float
        Of each: work x unit_s / (wall time x threads / tasks).
    unit_s : float
        Time of a unit of work.

    Returns
    -------
    float or None
        None: the target was not reached. Between two points the efficiency is taken as linear in the logarithm of the
        work; before the first one, in the work.
    """
    for i, value in enumerate(efficiency):
        if value < target:
            continue
        if i == 0:
            at = work[0] * target / value
        else:
            part = (target - efficiency[i - 1]) / (value - efficiency[i - 1])
            at = math.exp(math.log(work[i - 1]) + part * (math.log(work[i]) - math.log(work[i - 1])))
        return at * unit_s / target
    return None


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians and extremes over repetitions.

    Returns
    -------
    dict
        unit_s: {kernel: seconds of a unit of work, the denominator}; results: one for each graph, model and thread count
        with metg_s, empty_task_s (wall time of an iteration / tasks), record_s, close_s, prepare_s (of a task) as
        {"median", "low", "high"} or None; pressure: part of the time in which some thread waited for a CPU; break_even: replays after which preparing has paid off against eager tasks,
        None where there is nothing to compare; curve: list of {work, task_s, granularity_s, efficiency,
        efficiency_low, efficiency_high}; failures: list of messages.
    """
    good = [row for row in rows if "failure" not in row]
    unit_s: dict[str, float] = {}
    for row in good:
        kernel = row["graph"]["kernel"]
        unit_s[kernel] = min(unit_s.get(kernel, math.inf), row["unit_s"])
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        key = json.dumps([row["graph"], row["threads"], row["model"]])
        groups.setdefault(key, []).append(row)
    order = {m: i for i, m in enumerate(built_models())}
    results = []
    for group in groups.values():
        first = group[0]
        entry: dict[str, Any] = {
            "graph": first["graph"],
            "model": first["model"],
            "threads": first["threads"],
            "failures": [f"{r['failure']}: {r['message']}" for r in group if "failure" in r],
        }
        group = [row for row in group if "failure" not in row]
        entry["repeats"] = len(group)
        if group:
            waiting = [(r["disturbance"]["pressure_some_us"] or 0) * 1e-6 / r["wall_s"] for r in group]
            entry["pressure"] = statistics.median(waiting)
            entry.update(_summarise_group(group, unit_s[first["graph"]["kernel"]]))
        results.append(entry)
    results.sort(
        key=lambda e: (graph_name(e["graph"]), e["threads"], order.get(e["model"].partition(":")[0], 99), e["model"])
    )
    for entry in results:
        entry["break_even"] = _break_even(entry, results)
    return {"unit_s": unit_s, "results": results}


def _summarise_group(group, unit_s: float) -> dict[str, Any]:
    threads = group[0]["parallel"]
    typical = statistics.median if group[0]["interference"] else min
    metgs, efficiencies = [], {}
    for row in group:
        works = [p["mean_work"] for p in row["points"]]
        walls = [typical(p["iteration_times_s"]) / p["num_tasks"] for p in row["points"]]
        values = [work * unit_s / (wall * threads) for work, wall in zip(works, walls, strict=True)]
        metgs.append(metg_s(works, values, unit_s))
        for work, value in zip(works, values, strict=True):
            efficiencies.setdefault(work, []).append(value)
    tasks = group[0]["empty"]["num_tasks"]
    curve = [
        {
            "work": work,
            "task_s": work * unit_s,
            "granularity_s": work * unit_s / statistics.median(values),
            "efficiency": statistics.median(values),
            "efficiency_low": min(values),
            "efficiency_high": max(values),
        }
        for work, values in sorted(efficiencies.items())
    ]

    def spread(values):
        values = [v for v in values if v is not None]
        if len(values) < len(group):
            return None
        return {"median": statistics.median(values), "low": min(values), "high": max(values)}

    return {
        "metg_s": spread(metgs),
        "empty_task_s": spread([typical(r["empty"]["iteration_times_s"]) / tasks for r in group]),
        "record_s": spread([r["record_s"] and r["record_s"] / tasks for r in group]),
        "close_s": spread([None if r["close_s"] is None else r["close_s"] / tasks for r in group]),
        "prepare_s": spread([r["empty"]["prepare_s"] / tasks for r in group]),
        "curve": curve,
    }


def _break_even(entry, results) -> int | None:
    """Replays of the empty graph after which a model has made up for its preparation against eager tasks."""
    if not entry["repeats"]:
        return None
    eager = [
        e
        for e in results
        if e["model"].partition(":")[0] == EAGER_MODEL
        and e["repeats"]
        and (e["graph"], e["threads"]) == (entry["graph"], entry["threads"])
    ]
    if not eager or entry in eager:
        return None
    # The same graph size on both sides, so costs of a task compare.
    gain = eager[0]["empty_task_s"]["median"] - entry["empty_task_s"]["median"]
    cost = entry["prepare_s"]["median"] - eager[0]["prepare_s"]["median"]
    return None if gain <= 0 else max(0, math.ceil(cost / gain))


def format_table(table: Mapping[str, Any]) -> str:
    """The results as text."""
    lines = [
        f"kernel {kernel} alone: {unit * 1e9:.3g} ns a unit of work; efficiencies are against this times the threads"
        for kernel, unit in table["unit_s"].items()
    ]
    pressed = [e["pressure"] for e in table["results"] if "pressure" in e and e["pressure"] > MUCH_PRESSURE]
    if pressed:
        lines.append(
            f"disturbed: threads waited for a CPU in up to {max(pressed):.0%} of the time (other programs, hogs or "
            f"more threads than CPUs); figures on a quiet machine are lower"
        )
    last = None
    for entry in table["results"]:
        graph = entry["graph"]
        if graph != last:
            last = graph
            lines += ["", describe(graph), _COLUMNS]
        label = f"{entry['model']:34} {entry['threads']:7}"
        if not entry["repeats"]:
            lines.append(f"{label}  {entry['failures'][0].splitlines()[0][:90]}")
            continue
        metg, replays = entry["metg_s"], entry["break_even"]
        interval = "" if metg is None else f"{metg['low'] * 1e9:.3g}-{metg['high'] * 1e9:.3g}"
        lines.append(
            f"{label} {'not reached' if metg is None else format(metg['median'] * 1e9, '.3g'):>11} {interval:>14} "
            f"{_ns(entry['empty_task_s']):>9} {_ns(entry['record_s']):>8} {_ns(entry['close_s']):>8} "
            f"{_ns(entry['prepare_s']):>8} {'' if replays is None else replays:>10}"
        )
    return "\n".join(lines)


_COLUMNS = (
    f"{'model':34} {'threads':>7} {'METG(50 %)':>11} {'range':>14} {'empty':>9} {'record':>8} {'close':>8} "
    f"{'prepare':>8} {'break-even':>10}\n{'':42} {'ns':>11} {'ns':>14} {'ns/task':>9} {'ns/task':>8} "
    f"{'ns/task':>8} {'ns/task':>8} {'replays':>10}"
)


def _ns(spread: Mapping[str, float] | None) -> str:
    return "" if spread is None else f"{spread['median'] * 1e9:.3g}"


def _as_csv(table: Mapping[str, Any]) -> str:
    names = ("metg_s", "empty_task_s", "record_s", "close_s", "prepare_s")
    graph_columns = ["pattern", "width", "steps", "network", "batch", "granularity", "kernel", "check"]
    columns = [*graph_columns, "model", "threads", "repeats"]
    columns += [
        f"{name}_{which}" if which != "median" else name for name in names for which in ("median", "low", "high")
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, "break_even", "failures"])
    for entry in table["results"]:
        row = [entry["graph"].get(c, "") for c in graph_columns] + [entry[c] for c in ("model", "threads", "repeats")]
        for name in names:
            values = entry.get(name)
            row += ["", "", ""] if values is None else [values["median"], values["low"], values["high"]]
        writer.writerow([*row, entry["break_even"], "; ".join(entry["failures"])])
    return out.getvalue()


# --- figure ---------------------------------------------------------------------------------------------------------


def draw_all(table: Mapping[str, Any], folder: Path, kind: str) -> list[Path]:
    """A figure for each graph, with its caption beside it."""
    from ..report.figures.style import save

    paths = []
    for name in dict.fromkeys(graph_name(e["graph"]) for e in table["results"]):
        entries = [e for e in table["results"] if graph_name(e["graph"]) == name and e["repeats"]]
        if not entries:
            continue
        paths.append(save(draw(entries), folder / f"metg_{name}.{kind}"))
        (folder / f"metg_{name}.txt").write_text(caption(entries, table["unit_s"]) + "\n")
    return paths


def draw(entries: Sequence[Mapping[str, Any]]):
    """Efficiency over task granularity, a panel for each thread count; METG(50 %) marked on the line of one half."""
    import matplotlib

    from ..report.figures.style import (
        add_legend,
        model_handles,
        model_styles,
        new_figure,
        panel_title,
        style_parameters,
    )

    counts = sorted({e["threads"] for e in entries})
    styles = model_styles([e["model"] for e in entries])
    with matplotlib.rc_context(style_parameters()):
        figure, axes = new_figure("double", len(counts))
        for axis, threads in zip(axes, counts, strict=True):
            panel_title(axis, f"{threads} thread{'s' if threads > 1 else ''}")
            axis.axhline(HALF, color="0.6", linewidth=0.6, linestyle=":")
            for entry in (e for e in entries if e["threads"] == threads):
                style = styles[entry["model"]]
                x = [p["granularity_s"] * 1e9 for p in entry["curve"]]
                axis.plot(
                    x,
                    [p["efficiency"] for p in entry["curve"]],
                    color=style.color,
                    linestyle=style.line,
                    marker=style.marker,
                    markersize=2.5,
                    markeredgewidth=0,
                )
                axis.fill_between(
                    x,
                    [p["efficiency_low"] for p in entry["curve"]],
                    [p["efficiency_high"] for p in entry["curve"]],
                    color=style.color,
                    alpha=0.2,
                    linewidth=0,
                )
                if entry["metg_s"] is not None:
                    axis.plot(
                        [entry["metg_s"]["median"] * 1e9],
                        [HALF],
                        color=style.color,
                        marker=style.marker,
                        markeredgecolor="white",
                        markeredgewidth=0.6,
                    )
            axis.set_xscale("log")
            axis.set_ylim(0, 1.05)
            axis.set_xlabel("task granularity: wall time x threads / tasks (ns)")
            axis.grid(True, axis="y")
        axes[0].set_ylabel("efficiency")
        add_legend(figure, "double", model_handles(styles, list(styles)))
    return figure


def caption(entries: Sequence[Mapping[str, Any]], unit_s: Mapping[str, float]) -> str:
    """What the figure shows, in words."""
    graph = entries[0]["graph"]
    repeats = sorted({e["repeats"] for e in entries})
    found = ", ".join(
        f"{e['model']} on {e['threads']}: "
        + ("not reached" if e["metg_s"] is None else f"{e['metg_s']['median'] * 1e9:.3g} ns")
        for e in entries
    )
    return (
        f"Efficiency over task granularity on the graph {describe(graph)}. Efficiency is the kernel's own time, "
        f"{unit_s[graph['kernel']] * 1e9:.3g} ns a unit of work without any runtime, over wall time x threads / tasks. Lines: "
        f"median of {'-'.join(map(str, repeats))} processes, bands: their extremes. Large marks: METG(50 %). {found}."
    )
