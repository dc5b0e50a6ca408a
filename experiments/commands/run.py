"""`forktask run`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from ...cython_src.errors import UsageError
from ..tables.progress import say
from .arguments import add_fields, folder_of, given, progress_printer, show
from .sweeping import add_output, command_line, measure_and_report, not_reported, print_expected, report_on

DESCRIPTION = (
    "Run a TOML file, or one of those shipped with forktask. One with a table [grid] is a sweep: execution models are "
    "compared, on this machine or a cluster. One with a table [train] is a study: all combinations of networks, "
    "batches, models, optimizers and seeds are trained, and losses, errors, accuracy over time, time and memory "
    "reported. An interrupted one continues in its folder. Exit code 1: something failed for "
    "another reason than its memory, or weights differ."
)
OF_SWEEPS = ("on", "script", "detach", "trace", "sessions", "every_s")  # options


def add_arguments(parser: ArgumentParser) -> None:
    from ..cluster.slurm import SlurmOptions
    from ..machine.placement import Placement
    from ..results.grids import shipped
    from ..sweep.configuration import AXES, Measure
    from ..sweep.configuration import fields as keys

    sweeps, studies = (", ".join(path.stem for path in shipped(kind)) for kind in ("sweep", "study"))
    parser.epilog = (
        f"Shipped sweeps: {sweeps}; studies: {studies}. Keys of [grid]: {', '.join(AXES)}; of [measure]: "
        f"{', '.join(f.name for f in keys(Measure))}; of [quick]: those of [grid]; of [slurm]: "
        f"{', '.join(f.name for f in keys(SlurmOptions))}; of [train]: the options of `forktask train`."
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a TOML file, or the name of a shipped one; in a clone also finding1, finding2, ...: its published values "
        "are measured again and compared",
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), help="only the file's models of this device; default: all")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would run, and what this machine lacks for it; of a sweep also the expected duration",
    )
    add_fields(parser, Placement, before="of a sweep: ")
    parser.add_argument(
        "--on",
        metavar="ENGINE",
        help="of a sweep: measure on the nodes of a cluster: slurm, or dask:ADDRESS of its scheduler",
    )
    parser.add_argument("--script", action="store_true", help="of --on slurm: write the batch script, submit nothing")
    parser.add_argument("--detach", action="store_true", help="of --on slurm: submit, and do not wait")
    add_output(parser)


def call(arguments: Namespace) -> int:
    """Measure or train what a file describes; with --dry-run print what that would be."""
    from ..machine.placement import Placement
    from ..report.reproduced import finding_named, reproduced_text
    from ..results.grids import given_or_shipped, kind_of

    if finding := finding_named(arguments.file):
        arguments.out = folder_of(arguments) if not arguments.dry_run else arguments.out
        code = _run_sweep(finding.file, arguments)
        if not (arguments.dry_run or arguments.on):
            progress_printer(arguments)(reproduced_text(finding, arguments.out))
        return code
    path = given_or_shipped(arguments.file)
    if kind_of(path) == "sweep":
        return _run_sweep(path, arguments)
    requested = (*(name for name in OF_SWEEPS if getattr(arguments, name, None)), *given(arguments, Placement))
    if unused := next(iter(requested), None):
        unused = unused.removesuffix("_s").replace("_", "-")
        raise UsageError(f"--{unused} is for sweeps, got it with the study {arguments.file}; leave it out")
    return _run_study(path, arguments)


def _run_study(path: Path | str, arguments: Namespace) -> int:
    """Train what is missing, and print and write the report."""
    from ..results.folder import check_run
    from ..studies.configuration import read_study
    from ..studies.report import write_study_report
    from ..studies.running import CHANGEABLE, expected, expected_text, run_study
    from ..studies.tables import agreement

    study = read_study(path).on(arguments.device)
    if arguments.quick:
        study = study.quick()
    if arguments.dry_run:
        if arguments.out:
            check_run(arguments.out, "study", study.as_dict(), CHANGEABLE)
        show(arguments, expected(study), expected_text)
        return 0
    out = folder_of(arguments)
    again = command_line(out)

    try:
        results = run_study(study, Path(out), again, progress_printer(arguments))
    except KeyboardInterrupt:
        say(f"interrupted; runs that are done stay in {out}. To continue: {again}")
        raise
    if arguments.no_report:
        print(not_reported(out))
    else:
        print(write_study_report(results, Path(out), arguments.json))
    # What does not fit is an answer, as in a sweep, as long as something was trained.
    broken = any(row.reason != "memory" for _, row in results.failed()) or not results.done()
    return 1 if broken or agreement(results)[1] else 0


def _run_sweep(path: Path | str, arguments: Namespace) -> int:
    """Measure, and print tables; with --dry-run print what would be measured."""
    from ..cluster.slurm import SlurmOptions
    from ..machine.placement import Placement
    from ..sweep.configuration import read_configuration

    configuration = read_configuration(path).on(arguments.device)
    configuration = configuration.with_measure(**given(arguments, Placement))
    SlurmOptions.from_mapping(configuration.slurm, f"table [slurm] of {arguments.file}")
    for name in ("script", "detach"):
        if getattr(arguments, name) and arguments.on != "slurm":
            got = f"it with --on {arguments.on}" if arguments.on else "it alone"
            raise UsageError(f"--{name} belongs to --on slurm, got {got}; leave it out")
    spread = {name: getattr(arguments, name) for name in ("sessions", "every_s") if name in arguments}
    configuration = configuration.with_measure(**spread)
    if arguments.on:
        _check_engine(configuration, arguments)
    if arguments.dry_run:
        return print_expected(configuration, arguments)
    return (_measure_on if arguments.on else measure_and_report)(configuration, arguments)


def _measure_on(configuration, arguments: Namespace) -> int:
    from ..cluster.client import measure_on, next_shards
    from ..results.folder import ResultsWriter
    from ..sweep.comparison import judge
    from ..sweep.status import describe_status, undecided

    if arguments.quick:
        configuration = configuration.quick()
    out_dir = folder_of(arguments)
    again = command_line(out_dir)
    with _engine(configuration, out_dir, again, arguments) as engine:
        if arguments.script:
            with ResultsWriter(out_dir) as writer:
                shards = next_shards(configuration, writer.results, undecided, set())
            print(f"sbatch {engine.write_script(shards)}/batch.sh" if shards else "nothing is missing")
            return 0
        try:
            results = measure_on(engine, configuration, out_dir, undecided=undecided)
        except KeyboardInterrupt:
            jobs = ", and jobs go on" if arguments.on == "slurm" else ""
            say(f"interrupted; what was measured is kept{jobs}. To continue: {again}")
            raise
    if results is None:
        say(f"submitted; `forktask status {out_dir}` shows its progress, and this command fetches the results: {again}")
        return 0
    compared = judge(results)
    for line in compared.failures:
        say(line)
    status = describe_status(results)
    if status["samples_missing"] or status["profiles_missing"]:
        say(f"some shards were lost. To submit them again: {again}")
        compared.complete = False
    return report_on(compared, configuration, out_dir, arguments)


def _check_engine(configuration, arguments: Namespace) -> None:
    """Raise `UsageError` for an engine that `--on` cannot name, and for what engines do not do."""
    kind, _, address = arguments.on.partition(":")
    if arguments.on != "slurm" and not (kind == "dask" and address):
        raise UsageError(f"--on must be slurm or dask:ADDRESS, such as dask:tcp://10.0.0.1:8786, got {arguments.on!r}")
    if configuration.measure.sessions > 1:
        raise UsageError(
            f"sessions are of one machine, got {configuration.measure.sessions} with --on, where each node's start is "
            f"one; leave sessions out"
        )
    if arguments.trace or configuration.measure.inject:
        raise UsageError(
            "traces are of one machine, got --trace or inject with --on; leave it out, and trace on a node without --on"
        )


def _engine(configuration, out_dir: str, again: str, arguments: Namespace) -> AbstractContextManager:
    """Return the engine that `--on` names, as a context manager."""
    if arguments.on == "slurm":
        from ..cluster.slurm import SlurmEngine, check_program

        if not arguments.script:
            check_program("sbatch")  # before there is a folder
        return nullcontext(SlurmEngine(configuration, out_dir, again, wait=not arguments.detach))
    from ..cluster.dask_engine import DaskEngine

    return DaskEngine(arguments.on.partition(":")[2], configuration, again)
