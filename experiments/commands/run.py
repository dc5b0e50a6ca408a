"""`forktask run`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...cython_src.errors import UsageError
from ...cython_src.records import fields, fields_of
from .arguments import add_fields, folder_of, progress_printer, show
from .sweeping import add_output, command_line, measure_and_report, not_reported, print_expected, report_on

DESCRIPTION = (
    "Run a TOML file, or one of those shipped with forktask. One with a table [grid] is a sweep: execution models are "
    "compared, on this machine or a cluster. One with a table [train] is a study: all combinations of networks, "
    "batches, models, optimizers and seeds are trained, and losses, errors, accuracy over time, time and memory "
    "reported. An interrupted one continues in its folder. Exit code 1: something failed for "
    "another reason than its memory, or weights differ."
)
OF_SWEEPS = ("on", "script", "detach", "trace")  # options beside those of measuring


def add_arguments(parser: ArgumentParser) -> None:
    from ..cluster.slurm import SlurmOptions
    from ..machine.placement import Placement
    from ..results.grids import shipped
    from ..sweep.configuration import AXES, Measure

    sweeps, studies = (", ".join(path.stem for path in shipped(kind)) for kind in ("sweep", "study"))
    parser.epilog = (
        f"Shipped sweeps: {sweeps}; studies: {studies}. Keys of [grid]: {', '.join(AXES)}; of [measure]: "
        f"{', '.join(f.name for f in fields(Measure))}; of [quick]: those of [grid]; of [slurm]: "
        f"{', '.join(f.name for f in fields(SlurmOptions))}; of [train]: the options of `forktask train`."
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
    from ..report.reproduced import finding_named, reproduced_text
    from ..results.grids import given_or_shipped, kind_of
    from ..sweep.configuration import Measure

    if finding := finding_named(arguments.file):
        arguments.out = folder_of(arguments) if not arguments.dry_run else arguments.out
        code = _run_sweep(finding.file, arguments)
        if not (arguments.dry_run or arguments.on):
            progress_printer(arguments)(reproduced_text(finding, arguments.out))
        return code
    path = given_or_shipped(arguments.file)
    if kind_of(path) == "sweep":
        return _run_sweep(path, arguments)
    of_sweeps = [*(name for name in OF_SWEEPS if getattr(arguments, name)), *fields_of(Measure, vars(arguments))]
    if of_sweeps:
        unused = of_sweeps[0].removesuffix("_s").replace("_", "-")
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
    results = run_study(study, Path(out), command_line(out), progress_printer(arguments))
    print(not_reported(out) if arguments.no_report else write_study_report(results, Path(out), arguments.json))
    # A failure for lack of memory is a result, as in a sweep, as long as something was trained.
    broken = any(row.reason != "memory" for _, row in results.failed()) or not results.done()
    return 1 if broken or agreement(results)[1] else 0


def _run_sweep(path: Path | str, arguments: Namespace) -> int:
    """Measure, and print tables; with --dry-run print what would be measured."""
    from ..cluster.engines import SLURM, check_engine, measure_by, write_batch
    from ..cluster.slurm import SlurmOptions
    from ..sweep.configuration import Measure, read_configuration

    configuration = read_configuration(path).on(arguments.device)
    SlurmOptions.from_mapping(configuration.slurm, f"table [slurm] of {arguments.file}")
    for name in ("script", "detach"):
        if getattr(arguments, name) and arguments.on != SLURM:
            got = f"it with --on {arguments.on}" if arguments.on else "it alone"
            raise UsageError(f"--{name} belongs to --on slurm, got {got}; leave it out")
    configuration = configuration.with_measure(**fields_of(Measure, vars(arguments)))
    if arguments.on:
        check_engine(arguments.on, configuration, arguments.trace)
    if arguments.dry_run:
        return print_expected(configuration, arguments)
    if not arguments.on:
        return measure_and_report(configuration, arguments)
    configuration = configuration.quick() if arguments.quick else configuration
    out = folder_of(arguments)
    if arguments.script:
        print(write_batch(configuration, out, command_line(out)))
        return 0
    compared = measure_by(arguments.on, configuration, out, command_line(out), detach=arguments.detach)
    return report_on(compared, configuration, out, arguments) if compared else 0
