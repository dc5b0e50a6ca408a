"""`forktask compare`, `forktask run` and `forktask status`: sweeps over execution models.

This process only decides what is measured next and writes down what came back. Each sample is measured by a
process of its own (measure.py), one at a time, while this one sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TextIO

from ...cython_src.errors import UsageError
from ..sampling.models import (
    DEFAULT_MODELS,
    describe_gpu_convolutions,
    describe_models,
    models_on,
    parse_model,
    process_environment,
)
from ..sampling.progress import ProgressBar, format_seconds
from .configuration import (
    Configuration,
    Grid,
    Measure,
    Point,
    config_folder,
    core_counts,
    find_configuration,
    from_dict,
)
from .results import LASTING_FAILURES, Results, ResultsWriter, read_results

SAMPLE_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.sampling.measure")
STARTUP_S = 0.7  # of a measuring process: interpreter, NumPy, plan; for the expected duration only
GUESSED_FLOPS_PER_S = 5e10  # of one thread; for the expected duration only
STDERR_TAIL = 2000  # characters of a crashed process's last words that are kept


# --- the measuring process
# ------------------------------------------------------------------------------------------


def sample_environment(measure: Measure, threads: int, hogs: int, cores: int) -> dict[str, str]:
    """Environment variables that a measuring process gets in place of all of OpenMP's and BLAS's own.

    The same for every model: BLAS on one thread inside blocks, the OpenMP team's size, no binding by the
    OpenMP runtime (executors pin their threads alike), and whether idle threads spin: our task runtime obeys OMP_WAIT_POLICY too.
    """
    policy = measure.wait_policy
    if policy == "auto":
        policy = "passive" if threads > cores or hogs else "active"
    return {
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "BLIS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "false",
        "OMP_PROC_BIND": "false",
        "OMP_WAIT_POLICY": policy,
        "PYTHONHASHSEED": "0",
    }


def clean_environment(own: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """`own` without what steers or cripples OpenMP and BLAS libraries, plus `settings`."""
    from ..sampling.environment import VARIABLE_PREFIXES, VARIABLES

    dropped = {name for name, (kind, _) in VARIABLES.items() if kind != "kernels"}
    kept = {k: v for k, v in own.items() if k not in dropped and not k.startswith(VARIABLE_PREFIXES)}
    return {**kept, **settings}


@contextlib.contextmanager
def hogs_running(count: int, cpus: Sequence[int]) -> Iterator[list[subprocess.Popen]]:
    """Keep `count` processes spinning, each on one of `cpus`, from the last one on; they end with this process.

    A process group of their own, so that Ctrl-C is not theirs, but the same session: Linux shares a CPU between sessions first
    (autogroups), and a session whose threads are on two CPUs weighs half on each; a hog of its own session would take two thirds of
    a CPU instead of half.
    """
    program = (
        "import os, sys\np = int(sys.argv[1])\nos.sched_setaffinity(0, {int(sys.argv[2])})\n"
        "print(flush=True)\nwhile os.getppid() == p:\n    for _ in range(100000): pass\n"
    )
    hogs = []
    try:
        for k in range(count):
            cpu = cpus[-1 - k % len(cpus)]
            hogs.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-S", "-c", program, str(os.getpid()), str(cpu)],
                    stdout=subprocess.PIPE,
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                )
            )
        for hog in hogs:
            hog.stdout.readline()  # it spins from now on
        yield hogs
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
            hog.stdout.close()


def run_sample(
    job: Mapping[str, Any], environment: Mapping[str, str], time_limit_s: float, command: Sequence[str] = SAMPLE_COMMAND
) -> dict[str, Any]:
    """Measure one job in a fresh process and return its row, or {"failure": reason, "message": ...}.

    The process runs in a process group of its own, so Ctrl-C reaches only this one, which then ends it; in the same session, for
    the sake of `hogs_running`.
    """
    child = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(environment),
        process_group=0,
    )
    try:
        output, errors = child.communicate(json.dumps(dict(job)), timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        return {"failure": "timeout", "message": f"took longer than the limit of {format_seconds(time_limit_s)}"}
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    try:
        row = json.loads(output.strip().rpartition("\n")[2])
    except ValueError:
        row = None
    if isinstance(row, dict) and ("failure" in row or child.returncode == 0):
        return row
    tail = errors.strip()[-STDERR_TAIL:]
    if child.returncode == -signal.SIGKILL:
        return {
            "failure": "memory",
            "message": "killed by SIGKILL, as the kernel does when memory runs out; lower the batch",
        }
    if child.returncode < 0:
        cause = f"killed by {signal.Signals(-child.returncode).name}"
    else:
        cause = f"ended with exit code {child.returncode} and without a sample"
    return {"failure": "crash", "message": f"{cause}{': ' + tail if tail else ''}"}


# --- plans
# ----------------------------------------------------------------------------------------------------------


def describe_plan(plan_id: str, options: Mapping[str, Any], plan, graph) -> dict[str, Any]:
    """The "plan" row: loops with their costs, and the size of the closed task graph."""
    return {
        "kind": "plan",
        "plan_id": plan_id,
        **{name: options[name] for name in ("network", "batch", "phase", "granularity") if name in options},
        "options": dict(options),
        "loops": [
            {
                "name": loop.name,
                "layer": loop.layer,
                "phase": loop.phase,
                "kernel": loop.kernel,
                "num_blocks": loop.num_blocks,
                "flops": loop.flops,
                "bytes": loop.bytes,
            }
            for loop in plan.loops
        ],
        "flops": plan.flops,
        "bytes": plan.bytes,
        "num_tasks": plan.num_tasks,
        "num_edges": graph.num_edges,
        "num_joins": graph.num_joins,
        "memory_bytes": plan.memory_bytes(),
        "iteration_stride": plan.iteration_stride,
        "deterministic": plan.deterministic,
        "num_parameters": len(plan.attributes.get("parameters", ())),
    }


class PlanRows:
    """Lowers the plans of a sweep, for their rows and to refuse a bad one before anything is measured."""

    def __call__(self, plan_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
        from ...cython_src.lowering.lower import lower
        from ...cython_src.plan.dependences import record_graph

        plan = lower(**options)
        return describe_plan(plan_id, options, plan, record_graph(plan.accesses, closed=True))


# --- the sweep
# ------------------------------------------------------------------------------------------------------


@dataclass
class Sweep:
    """Measures what is still missing of a configuration, and writes each row as it comes.

    Parameters
    ----------
    configuration : Configuration
    out_dir : path
    command_line : str
        What the user typed: kept in the results and repeated when the run is interrupted.
    stream : text file
        Progress and messages.
    sample_command : sequence of str
        The measuring process.
    plan_row : callable (plan_id, options) -> dict
    environment : mapping, optional
        {"environment", "environment_id"}; by default collected here.
    machine_row : callable () -> dict, optional
        By default the machine's limits are measured.
    """

    configuration: Configuration
    out_dir: str
    command_line: str
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    sample_command: Sequence[str] = SAMPLE_COMMAND
    plan_row: Any = field(default_factory=PlanRows)
    environment: Mapping[str, Any] | None = None
    machine_row: Any = None

    def run(self) -> Results:
        """Measure, and return all that the folder then holds.

        Raises
        ------
        UsageError
            A plan that cannot be lowered, or an output folder that cannot take the results.
        KeyboardInterrupt
            After the message how to go on; what was measured is kept.
        """
        from ..sampling.environment import available_cpus, collect, cpu_order, environment_id, measure_machine

        configuration, measure = self.configuration, self.configuration.measure
        configuration.check_machine()
        plans = {point.plan_id: point.plan for point in configuration.points()}
        plan_rows = {plan_id: self.plan_row(plan_id, options) for plan_id, options in plans.items()}
        cpus = available_cpus()
        if self.environment is None:
            found = collect(variables=clean_environment(os.environ, sample_environment(measure, 1, 0, len(cpus))))
            self.environment = {"environment": found, "environment_id": environment_id(found)}
        with ResultsWriter(self.out_dir) as writer:
            continued = writer.start(
                {
                    "run_id": uuid.uuid4().hex,
                    "created": datetime.now(UTC).isoformat(timespec="seconds"),
                    "command": self.command_line,
                    "config": configuration.as_dict(),
                    **self.environment,
                }
            )
            if writer.results.partial:
                self._say(
                    "the last line of samples.jsonl was half-written and has been moved aside; "
                    "its sample is measured again"
                )
            jobs = self._missing(writer.results)
            if continued:
                self._say(f"going on with {self.out_dir}: {len(jobs)} of {self._total()} measurements are missing")
            if not writer.results.of_kind("machine"):
                self._say("measuring the machine's limits")
                if self.machine_row is None:
                    row = measure_machine(environment=self.environment["environment"])
                    row["capacity_beside"] = self._capacity_beside(
                        lambda n: cpu_order(n, cpus, oversubscribe=measure.oversubscribe)
                    )
                    writer.append(row)
                else:
                    writer.append(self.machine_row())
            known = {row["plan_id"] for row in writer.results.of_kind("plan")}
            for plan_id, row in plan_rows.items():
                if plan_id not in known:
                    writer.append(row)
            try:
                self._measure(
                    writer, jobs, lambda n: cpu_order(n, cpus, oversubscribe=measure.oversubscribe), len(cpus)
                )
            except KeyboardInterrupt:
                done = len(writer.results.finished())
                self._say(f"interrupted; {done} measurements are kept in {self.out_dir}. To go on: {self.command_line}")
                raise
            return writer.results

    def _capacity_beside(self, order_cpus) -> dict[str, dict[str, float]]:
        """What is left of the CPUs of each number of threads beside hogs: {threads: {hogs: part}}."""
        from ..analysis.interference import measure_capacity_beside

        found: dict[str, dict[str, float]] = {}
        for threads, hogs in sorted({(point.threads, point.interference) for point in self.configuration.points()}):
            if hogs:
                found.setdefault(str(threads), {})[str(hogs)] = measure_capacity_beside(hogs, order_cpus(threads))
        return found

    def _total(self) -> int:
        measure = self.configuration.measure
        return len(self.configuration.points()) * (measure.repeats + measure.profiles)

    def _missing(self, results: Results) -> list[tuple[str, int, int, Point]]:
        """(kind, repetition, position in the whole order, configuration) of what has not been measured."""
        order = []
        for repetition, point in self.configuration.order():
            order.append(("sample", repetition, point))
            if repetition < self.configuration.measure.profiles:
                order.append(("profile", repetition, point))
        finished, settled = results.finished(), results.settled()
        return [
            (kind, repetition, position, point)
            for position, (kind, repetition, point) in enumerate(order)
            if point.config_id not in settled and (kind, point.config_id, repetition) not in finished
        ]

    def _measure(self, writer: ResultsWriter, jobs, order_cpus, cores: int) -> None:
        measure = self.configuration.measure
        # The first weights seen for a plan and instruction set: all others must equal them.
        expected: dict[tuple[str, str], dict] = {}
        for row in writer.results.of_kind("sample"):
            if not row.get("deterministic", True):
                continue
            expected.setdefault((row["plan_id"], row["instruction_set"]), row)
        deterministic = {row["plan_id"]: row["deterministic"] for row in writer.results.of_kind("plan")}
        failed: set[str] = set()
        start, last_said = time.monotonic(), None
        with ProgressBar(len(jobs), "measuring", self.stream) as bar:
            for number, (kind, repetition, position, point) in enumerate(jobs):
                stage = f"repetition {repetition + 1} of {measure.repeats}"
                if not bar.visible and stage != last_said:
                    spent = time.monotonic() - start
                    left = f", {format_seconds(spent / number * (len(jobs) - number))} left" if number else ""
                    self._say(f"{stage}: {number} of {len(jobs)} measured{left}")
                    last_said = stage
                bar.show(number, f"{stage}, {point}")
                if point.config_id in failed:
                    continue
                cpus = order_cpus(point.threads) if measure.pin else None
                settings = {
                    **sample_environment(measure, point.threads, point.interference, cores),
                    **process_environment(parse_model(point.model)),
                }
                job = {
                    "kind": kind,
                    "model": point.model,
                    "threads": point.threads,
                    "cpus": cpus,
                    "plan": dict(point.plan),
                    "seed": measure.seed,
                    "check_iterations": measure.check_iterations,
                    "target_s": measure.target_s,
                    "warmup_s": measure.warmup_s,
                    "memory_limit": measure.memory_limit,
                }
                with hogs_running(point.interference, order_cpus(point.threads)):
                    result = run_sample(
                        job, clean_environment(os.environ, settings), measure.time_limit_s, self.sample_command
                    )
                row = {
                    "kind": kind,
                    "config_id": point.config_id,
                    "model": point.model,
                    "threads": point.threads,
                    "plan_id": point.plan_id,
                    "interference": point.interference,
                    "repetition": repetition,
                    "position": position,
                    "environment_id": self.environment["environment_id"],
                    "cpus": cpus,
                    "variables": settings,
                }
                if (
                    kind == "sample"
                    and "failure" not in result
                    and deterministic[point.plan_id]
                    and result.get("deterministic", True)
                ):
                    first = expected.setdefault((point.plan_id, result["instruction_set"]), {**result, **row})
                    result = check_same_answer(result, first)
                if "failure" in result:
                    failed.add(point.config_id)
                    bar.clear()
                    self._say(f"{point}: {result['failure']}: {result['message'].splitlines()[0]}")
                    row.update(kind="failure", measuring=kind, reason=result.pop("failure"), **result)
                    writer.append(row)
                    continue
                writer.append({**result, **row})

    def _say(self, message: str) -> None:
        print(f"forktask: {message}", file=self.stream, flush=True)


def check_same_answer(sample: dict[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """`sample`, or a failure "mismatch" (with the sample inside) if weights or losses differ from `first`'s."""
    differing = [what for what in ("weights", "losses") if sample[f"{what}_hash"] != first[f"{what}_hash"]]
    if not differing:
        return sample
    return {
        "failure": "mismatch",
        "message": f"{' and '.join(differing)} after {sample['check_iterations']} iterations are not those of "
        f"{first['model']} on {first['threads']} thread{'s' * (first['threads'] > 1)}, repetition "
        f"{first['repetition']}, as they must be bit for bit",
        "sample": sample,
    }


def failure_report(results: Results) -> tuple[list[str], bool]:
    """One line for each failed configuration, and whether figures can still be trusted.

    Running out of time or memory is a result; a crash is a fault, unless it was mended by a later attempt;
    wrong weights make every figure worthless.
    """
    finished = {config_id for kind, config_id, _ in results.finished() if kind == "sample"}
    lines, trusted = [], True
    for row in results.of_kind("failure"):
        if row["reason"] == "crash" and row["config_id"] in finished:
            continue
        message = row["message"].splitlines()[0]
        lines.append(
            f"{row['model']} on {row['threads']} thread{'s' * (row['threads'] > 1)}: {row['reason']}: {message}"
        )
        trusted = trusted and row["reason"] != "mismatch"
    return lines, trusted


def expected_duration_s(configuration: Configuration, plan_rows: Mapping[str, Mapping[str, Any]]) -> float:
    """A guess, before anything was measured: from the FLOPs of each plan at a typical rate."""
    measure, total = configuration.measure, 3.0
    for point in configuration.points():
        step_s = plan_rows[point.plan_id]["flops"] / (GUESSED_FLOPS_PER_S * point.threads)
        sample_s = STARTUP_S + step_s * (measure.check_iterations + 2) + max(measure.target_s, 10 * step_s)
        sample_s += max(min(measure.warmup_s, 0.3), 2 * step_s)
        profile_s = STARTUP_S + max(measure.target_s, 5 * step_s)
        total += measure.repeats * min(sample_s, measure.time_limit_s)
        total += measure.profiles * min(profile_s, measure.time_limit_s)
    return total


# --- commands
# -------------------------------------------------------------------------------------------------------


def add_parser(subparsers) -> None:
    """Add `compare`, `run` and `status`."""
    compare = subparsers.add_parser(
        "compare",
        help="train one network under several execution models and compare them",
        description="Train one network under several execution models, check that all computed the same weights, and "
        "leave samples, a table, figures and a report in a folder. Give the same command again to go on after an "
        "interruption.",
        epilog=f"Models and their options: {describe_models()}.",
    )
    grid, measure = Grid(), Measure()
    compare.add_argument("--network", default=grid.network[0], help="default: %(default)s")
    compare.add_argument("--batch", default="64", metavar="B[,B...]", help="images a step; default: %(default)s")
    compare.add_argument("--phase", choices=("train", "forward"), default="train", help="default: %(default)s")
    compare.add_argument(
        "--models",
        default=",".join(DEFAULT_MODELS),
        metavar="M[,M...]",
        help="name[:option=value...]; default: %(default)s",
    )
    add_device(compare)
    compare.add_argument(
        "--threads", default="cores", metavar="N[,N...]", help="default: 1,2,4,... up to the cores of this process"
    )
    compare.add_argument(
        "--repeats",
        type=int,
        default=measure.repeats,
        metavar="R",
        help="processes for each configuration; default: %(default)s",
    )
    compare.add_argument(
        "--granularity",
        default="auto",
        help='how layers are cut into blocks: "auto", or sizes of a block such as '
        '"images=16,channels=4,rows=8", any left out; default: %(default)s',
    )
    compare.add_argument(
        "--weight-gradients",
        choices=("partial", "chain"),
        default="partial",
        help="partial sums added in a fixed tree, or accumulated one block after the other; default: %(default)s",
    )
    compare.add_argument(
        "--memory",
        choices=("full", "shared"),
        default="full",
        help="memory of its own for each activation, or shared in turn; default: %(default)s",
    )
    compare.add_argument("--no-fusion", action="store_true", help="one loop for each operation")
    compare.add_argument(
        "--fusion",
        default="all",
        help="what is joined in layout channels: all, none, or some of activation,residual,statistics,depthwise,normalise; "
        "default: %(default)s",
    )
    compare.add_argument(
        "--layout",
        choices=("auto", "lanes", "flat", "channels"),
        default="auto",
        help="what stands in the vector lanes: images, pixels or channels; default: %(default)s",
    )
    compare.add_argument("--optimizer", choices=("sgd", "adam", "adamw"), default="sgd", help="default: %(default)s")
    compare.add_argument(
        "--recompute",
        action="store_true",
        help="keep few activations and compute the others again; with --memory shared",
    )
    compare.add_argument(
        "--memory-limit",
        default=measure.memory_limit,
        metavar="BYTES",
        help="such as 1.5GiB: what needs more becomes a row that says so; default: what is free",
    )
    compare.add_argument(
        "--conv",
        default="auto",
        help="form of the convolutions: auto, direct, winograd, im2col, if, if_blocked, pad, pad_blocked; default: %(default)s",
    )
    compare.add_argument(
        "--seed", type=int, default=measure.seed, help="of data, weights and order; default: %(default)s"
    )
    compare.add_argument(
        "--time-limit",
        type=float,
        default=measure.time_limit_s,
        metavar="SECONDS",
        help="longest time for one sample; default: %(default)s",
    )
    compare.add_argument(
        "--tuned",
        default=measure.tuned,
        metavar="FILE",
        help="of `forktask tune`: each model also at its own granularity",
    )
    compare.add_argument("--no-profile", action="store_true", help="leave out the repeats with the event log")
    compare.add_argument(
        "--interference", type=int, default=0, metavar="K", help="processes that spin on the same CPUs"
    )
    _add_common(compare)
    compare.set_defaults(run=run_compare)

    run = subparsers.add_parser(
        "run",
        help="run a sweep described in a TOML file",
        description="Run a sweep described in a TOML file, or one of those shipped: "
        + ", ".join(sorted(p.stem for p in config_folder().glob("*.toml")))
        + ".",
    )
    run.add_argument("file", metavar="FILE", help="a TOML file, or the name of a shipped one")
    run.add_argument("--dry-run", action="store_true", help="print the grid, the environment and the expected duration")
    _add_common(run)
    run.set_defaults(run=run_file)

    status = subparsers.add_parser(
        "status",
        help="what a results folder holds, what is missing, how to go on",
        description="Say what a results folder holds, what failed, what is missing, and which command goes on.",
    )
    status.add_argument("folder", metavar="DIR", help="results folder of compare or run")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(run=run_status)


def add_device(parser) -> None:
    """Add `--device`."""
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        default="cpu",
        help="gpu: models are those of a GPU (taskiter stands for gpu_taskiter), on one thread; default: %(default)s",
    )


def _add_common(parser) -> None:
    parser.add_argument("--out", metavar="DIR", help="results folder; default: results/<date and time>")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats: a check that it works")
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than cores")


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"{option} takes whole numbers separated by commas, got {text!r}") from None


def configuration_from_arguments(arguments: Namespace) -> Configuration:
    """What `forktask compare` was asked for."""
    threads = core_counts() if arguments.threads == "cores" else parse_numbers(arguments.threads, "--threads")
    if arguments.device == "gpu" and arguments.threads == "cores":
        threads = (1,)
    given = [part for part in arguments.models.split(",") if part]
    configuration = Configuration(
        grid=Grid(
            network=(arguments.network,),
            batch=parse_numbers(arguments.batch, "--batch"),
            phase=(arguments.phase,),
            granularity=(arguments.granularity,),
            weight_gradients=(arguments.weight_gradients,),
            memory=(arguments.memory,),
            fusion=(False if arguments.no_fusion else True if arguments.fusion == "all" else arguments.fusion,),
            conv=(arguments.conv,),
            layout=(arguments.layout,),
            optimizer=(arguments.optimizer,),
            recompute=(arguments.recompute,),
            models=tuple(models_on(arguments.device, given, DEFAULT_MODELS)),
            threads=threads,
            interference=(arguments.interference,),
        ),
        measure=Measure(
            repeats=arguments.repeats,
            seed=arguments.seed,
            time_limit_s=arguments.time_limit,
            profile=not arguments.no_profile,
            oversubscribe=arguments.oversubscribe,
            memory_limit=arguments.memory_limit,
            tuned=arguments.tuned,
        ),
    )
    return configuration.quick() if arguments.quick else configuration


def run_compare(arguments: Namespace) -> int:
    """`forktask compare`."""
    return _sweep_and_report(configuration_from_arguments(arguments), arguments)


def run_file(arguments: Namespace) -> int:
    """`forktask run`."""
    configuration = find_configuration(arguments.file)
    if arguments.oversubscribe:
        configuration = replace(configuration, measure=replace(configuration.measure, oversubscribe=True))
    if arguments.quick:
        configuration = configuration.quick()
    if arguments.dry_run:
        return _dry_run(configuration, arguments.json)
    return _sweep_and_report(configuration, arguments)


def _command_line(out_dir: str) -> str:
    """What to type to go on: the arguments of this process, with the output folder named."""
    import shlex

    typed = ["forktask", *sys.argv[1:]]
    if not any(part == "--out" or part.startswith("--out=") for part in typed):
        typed += ["--out", out_dir]
    return shlex.join(typed)


def _sweep_and_report(configuration: Configuration, arguments: Namespace) -> int:
    if arguments.quick:
        grid = configuration.grid
        print(
            f"forktask: --quick, a check that it works: batch {', '.join(map(str, grid.batch))}, "
            f"{grid.threads[0]} thread{'s' * (grid.threads[0] > 1)}, one repetition, whatever else was asked for",
            file=sys.stderr,
        )
    out_dir = arguments.out or f"results/{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    results = Sweep(configuration, out_dir, _command_line(out_dir)).run()
    lines, trusted = failure_report(results)
    for line in lines:
        print(f"forktask: {line}", file=sys.stderr)
    if not trusted:
        print(
            f'forktask: no figures: the models did not compute the same weights, see the rows "failure" in '
            f"{results.path}",
            file=sys.stderr,
        )
        return 1
    if not results.of_kind("sample"):
        print("forktask: no figures: every configuration failed", file=sys.stderr)
        return 1
    if configuration.uses_gpu:
        from ..report.gpu import gpu_report

        for conv in configuration.grid.conv:
            print(f"forktask: {describe_gpu_convolutions(conv)}", file=sys.stderr)
        print(gpu_report(out_dir, results, arguments.json))
        return 1 if any(row["reason"] not in LASTING_FAILURES for row in _standing_failures(results)) else 0
    from ..report.files import summary_json, summary_text, write_report

    write_report(out_dir)
    if arguments.json:
        print(json.dumps(summary_json(out_dir), indent=1))
    else:
        print(summary_text(out_dir))
        print(f"\n{out_dir}: samples.jsonl, summary.csv, figures, report.html")
    return 1 if any(row["reason"] not in LASTING_FAILURES for row in _standing_failures(results)) else 0


def _standing_failures(results: Results) -> list[dict]:
    finished = {config_id for kind, config_id, _ in results.finished() if kind == "sample"}
    return [
        row
        for row in results.of_kind("failure")
        if row["reason"] in LASTING_FAILURES or row["config_id"] not in finished
    ]


def _dry_run(configuration: Configuration, as_json: bool) -> int:
    from ..sampling.environment import collect, environment_id

    configuration.check_machine()
    plan_row = PlanRows()
    points = configuration.points()
    plans = {p.plan_id: plan_row(p.plan_id, p.plan) for p in points}
    seconds = expected_duration_s(configuration, plans)
    measured = len(points) * (configuration.measure.repeats + configuration.measure.profiles)
    environment = collect()
    if as_json:
        print(
            json.dumps(
                {
                    "title": configuration.title,
                    "configurations": [
                        {
                            "config_id": p.config_id,
                            "model": p.model,
                            "threads": p.threads,
                            "interference": p.interference,
                            "plan_id": p.plan_id,
                            **p.plan,
                        }
                        for p in points
                    ],
                    "repeats": configuration.measure.repeats,
                    "measurements": measured,
                    "expected_duration_s": seconds,
                    "environment": environment,
                    "environment_id": environment_id(environment),
                },
                indent=1,
            )
        )
        return 0
    print(configuration.title)
    for plan_id, row in plans.items():
        options = ", ".join(f"{k} {v}" for k, v in row["options"].items())
        print(
            f"\nplan {plan_id}: {options}; {row['num_tasks']} tasks, {row['num_edges']} edges, "
            f"{row['flops'] / 1e9:.2f} GFLOP"
        )
        for p in points:
            if p.plan_id == plan_id:
                print(f"  {p.config_id}  {p}")
    cpu, topology = environment["cpu"], environment["topology"]
    print(
        f"\n{cpu['model']}, {topology['cores']} cores, CPUs {environment['affinity']}, "
        f"Python {environment['python']['version']}, environment {environment_id(environment)}"
    )
    print(
        f"{len(points)} configurations x {configuration.measure.repeats} repeats"
        f" and {configuration.measure.profiles} profiles: {measured} measurements, "
        f"about {format_seconds(seconds)}"
    )
    return 0


def describe_status(results: Results) -> dict[str, Any]:
    """What a folder holds and what is missing, for `forktask status`."""
    configuration = from_dict(results.run["config"])
    finished, settled = results.finished(), results.settled()
    configurations = []
    for point in configuration.points():
        done = sum((("sample", point.config_id, r) in finished) for r in range(configuration.measure.repeats))
        profiles = sum((("profile", point.config_id, r) in finished) for r in range(configuration.measure.profiles))
        configurations.append(
            {
                "config_id": point.config_id,
                "model": point.model,
                "threads": point.threads,
                "interference": point.interference,
                "plan": dict(point.plan),
                "samples": done,
                "missing": 0 if point.config_id in settled else configuration.measure.repeats - done,
                "profiles": profiles,
            }
        )
    profiles_missing = sum(
        configuration.measure.profiles - c["profiles"] for c in configurations if c["config_id"] not in settled
    )
    missing = sum(c["missing"] for c in configurations)
    lines, trusted = failure_report(results)
    return {
        "title": configuration.title,
        "started": results.of_kind("run")[0]["created"],
        "environment_id": results.run["environment_id"],
        "repeats": configuration.measure.repeats,
        "configurations": configurations,
        "samples": len(results.of_kind("sample")),
        "samples_missing": missing,
        "profiles_missing": profiles_missing,
        "failures": lines,
        "weights_agree": trusted,
        "half_written_line": bool(results.partial),
        "resume": results.run["command"] if missing or profiles_missing else None,
    }


def run_status(arguments: Namespace) -> int:
    """`forktask status`."""
    results = read_results(arguments.folder)
    if not results.rows:
        print("no row has been written completely; give the command that began it again")
        return 0
    status = describe_status(results)
    if arguments.json:
        print(json.dumps(status, indent=1))
        return 0
    print(f"{status['title']}, begun {status['started']}, environment {status['environment_id']}")
    for c in status["configurations"]:
        plan = c["plan"]
        hogs = f" hogs {c['interference']}" if c["interference"] else ""
        print(
            f"  {c['model']:<32} threads {c['threads']:>3}{hogs}  {plan['network']} batch {plan['batch']} "
            f"{plan['granularity']}: {c['samples']} of {status['repeats']} samples"
            f", {c['profiles']} profiles"
        )
    for line in status["failures"]:
        print(f"  failed: {line}")
    if not status["weights_agree"]:
        print("the models did not compute the same weights: no figure of this folder can be trusted")
    if status["half_written_line"]:
        print("the last line is half-written; it is moved aside when the run goes on")
    if status["resume"]:
        print(
            f"{status['samples_missing']} samples and {status['profiles_missing']} profiles are missing. "
            f"To go on: {status['resume']}"
        )
    else:
        print("complete")
    return 0
