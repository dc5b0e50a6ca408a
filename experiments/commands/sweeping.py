"""Common part of `forktask compare` and `forktask run`: a sweep, then tables, figures and a report."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from datetime import datetime

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
    if arguments.quick:
        configuration = configuration.quick()
        _say_quick(configuration.grid)
    out_dir = arguments.out or f"results/{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    code = measure(configuration, out_dir, arguments.trace)[0]
    if code is None:
        return 1
    for conv in configuration.grid.conv if configuration.uses_gpu else ():
        from ..sampling.models import describe_gpu_convolutions

        print(f"forktask: {describe_gpu_convolutions(conv)}", file=sys.stderr)
    from ..report.files import report_folder

    print(report_folder(out_dir, arguments.json))
    return code


def measure(
    configuration, out_dir: str, trace: bool, *, iterations: int | None = None, shown: int = 3, command: str = ""
) -> tuple[int | None, list[str]]:
    """Measure a sweep, say what failed, and trace it if asked for.

    Parameters
    ----------
    configuration : Configuration
    out_dir : str
    trace : bool
    iterations : int, optional
        Length of each logged run; default: `target_s` long.
    shown : int
        Iterations in the pictures.
    command : str, optional
        What continues the sweep; default: the arguments of this process.

    Returns
    -------
    int or None
        Exit code, 1 where some model failed; None where there is nothing to report on.
    list of str
        Sentences about the files of traces, and their losses.
    """
    from ..report.trace_files import write_trace_files
    from ..results.folder import LASTING_FAILURES
    from ..results.rows import SampleRow
    from ..sampling.models import parse_models
    from ..scaling.questions import undecided
    from ..simulate.predict import keep_machine
    from ..sweep.status import failure_report, standing_failures
    from ..sweep.sweep import Sweep
    from ..traces.sweep import trace_injected, trace_sweep

    results = Sweep(configuration, out_dir, command or _command_line(out_dir), undecided=undecided).run()
    lines, trusted = failure_report(results)
    if not trusted:
        lines.append(
            f'no figures: the models did not compute the same weights, see the rows "failure" in {results.path}'
        )
    elif not results.of(SampleRow):
        lines.append("no figures: every configuration failed")
    for line in lines:
        print(f"forktask: {line}", file=sys.stderr)
    if not trusted or not results.of(SampleRow):
        return None, []
    if configuration.measure.simulate:
        keep_machine(out_dir)
    grid, options = configuration.grid, configuration.measure
    said: list[str] = []
    failures: list[str] = []
    asked = {"threads": max(grid.threads), "seconds": options.target_s, "iterations": iterations}
    asked["oversubscribe"] = options.oversubscribe
    if trace:
        for folder, logs, failed in trace_sweep(out_dir, results, grid.models, **asked):
            said += write_trace_files(folder, logs, shown) if logs else []
            failures += failed
    if options.inject:
        on_cpu = [str(spec) for spec in parse_models(grid.models) if spec.model.device == "cpu"]
        failures += trace_injected(out_dir, results, on_cpu, causes=options.inject, **asked)
        print(f"forktask: outliers are traced; forktask diagnose {out_dir} says what it finds", file=sys.stderr)
    for failure in failures:
        print(f"forktask: not traced: {failure}", file=sys.stderr)
    again = any(row.reason not in LASTING_FAILURES for row in standing_failures(results))
    return 1 if again or failures else 0, said


def _say_quick(grid) -> None:
    from ..tables.numbers import plural

    print(
        f"forktask: --quick, a check that it works: batch {', '.join(map(str, grid.batch))}, "
        f"{plural(grid.threads[0], 'thread')}, one repetition, whatever else was asked for",
        file=sys.stderr,
    )


def _command_line(out_dir: str) -> str:
    """Return the command that continues the sweep: the arguments of this process, with the output folder named."""
    typed = ["forktask", *sys.argv[1:]]
    if not any(part == "--out" or part.startswith("--out=") for part in typed):
        typed += ["--out", out_dir]
    return shlex.join(typed)
