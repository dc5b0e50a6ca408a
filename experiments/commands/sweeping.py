"""Common part of `forktask compare` and `forktask run`: a sweep, then tables, figures and a report."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from datetime import datetime

from ...cython_src.errors import UsageError
from .arguments import add_json, show


def add_output(parser: ArgumentParser) -> None:
    """Add `--out`, `--json` and `--quick`."""
    parser.add_argument("--out", metavar="DIR", help="results folder; default: results/<date and time>")
    add_json(parser, "the summary")
    parser.add_argument(
        "--trace",
        action="store_true",
        help="then log what every thread does, once for each plan and model on most threads: Gantt pictures and losses",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats: a check that it works")


def print_expected(configuration, arguments: Namespace) -> int:
    """Print what would be measured and how long it would take."""
    from ..sweep.sweep import expected, expected_text

    found = expected(configuration.quick() if arguments.quick else configuration)
    if arguments.json:
        del found["plans"]
    show(arguments, found, expected_text)
    return 0


def measure_and_report(configuration, arguments: Namespace) -> int:
    """Measure a sweep, say what failed, and print and draw the rest. Exit code 1: some figure is missing or wrong."""
    from ..sampling.results import LASTING_FAILURES
    from ..scaling.questions import undecided
    from ..simulate.predict import keep_machine
    from ..sweep.status import failure_report, standing_failures
    from ..sweep.sweep import Sweep

    if arguments.quick:
        configuration = configuration.quick()
        _say_quick(configuration.grid)
    out_dir = arguments.out or f"results/{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    if arguments.trace and configuration.uses_gpu:
        raise UsageError("--trace is for models of the CPU, got models of a GPU; forktask profile times their kernels")
    results = Sweep(configuration, out_dir, _command_line(out_dir), undecided=undecided).run()
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
    if configuration.measure.simulate:
        keep_machine(out_dir)
    failures = _trace(configuration, out_dir, results, arguments.trace)
    for failure in failures:
        print(f"forktask: not traced: {failure}", file=sys.stderr)
    print(_report(configuration, out_dir, arguments.json))
    again = any(row["reason"] not in LASTING_FAILURES for row in standing_failures(results))
    return 1 if again or failures else 0


def _trace(configuration, out_dir: str, results, also_undisturbed: bool) -> list[str]:
    from ..report.sweep_traces import trace_injected, trace_sweep
    from ..sampling.models import parse_model

    grid, measure = configuration.grid, configuration.measure
    asked = (out_dir, results, grid.models, max(grid.threads), measure.target_s)
    failures = trace_sweep(*asked, oversubscribe=measure.oversubscribe) if also_undisturbed else []
    if measure.inject:
        on_cpu = [model for model in grid.models if parse_model(model).model.device == "cpu"]
        asked = (out_dir, results, on_cpu, max(grid.threads), measure.target_s)
        failures += trace_injected(*asked, measure.inject, oversubscribe=measure.oversubscribe)
        print(f"forktask: outliers are traced; forktask diagnose {out_dir} says what it finds", file=sys.stderr)
    return failures


def _report(configuration, out_dir: str, as_json: bool) -> str:
    from ..report.files import report_on_sweep
    from ..sampling.models import describe_gpu_convolutions

    for conv in configuration.grid.conv if configuration.uses_gpu else ():
        print(f"forktask: {describe_gpu_convolutions(conv)}", file=sys.stderr)
    return report_on_sweep(out_dir, as_json)


def _say_quick(grid) -> None:
    print(
        f"forktask: --quick, a check that it works: batch {', '.join(map(str, grid.batch))}, "
        f"{grid.threads[0]} thread{'s' * (grid.threads[0] > 1)}, one repetition, whatever else was asked for",
        file=sys.stderr,
    )


def _command_line(out_dir: str) -> str:
    """Return the command that continues the sweep: the arguments of this process, with the output folder named."""
    typed = ["forktask", *sys.argv[1:]]
    if not any(part == "--out" or part.startswith("--out=") for part in typed):
        typed += ["--out", out_dir]
    return shlex.join(typed)
