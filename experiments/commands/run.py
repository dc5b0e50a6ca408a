"""`forktask run`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...cython_src.errors import UsageError
from .arguments import add_device_of_file
from .sweeping import add_output, command_line, folder_of, measure_and_report, print_expected, report_on

HELP = "run a sweep described in a TOML file, on this machine or on a cluster"
DESCRIPTION = (
    "Run a sweep described in a TOML file, or one of those shipped with forktask, on this machine or a cluster."
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    from ..cluster.slurm import SlurmOptions
    from ..sweep.configuration import AXES, Measure, config_folder
    from ..sweep.configuration import fields as keys

    parser.epilog = (
        f"Shipped: {', '.join(sorted(p.stem for p in config_folder().glob('*.toml')))}. Keys of [grid]: "
        f"{', '.join(AXES)}; of [measure]: {', '.join(f.name for f in keys(Measure))}; of [slurm]: "
        f"{', '.join(f.name for f in keys(SlurmOptions))}."
    )
    parser.add_argument("file", metavar="FILE", help="a TOML file, or the name of a shipped one")
    add_device_of_file(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the grid, the environment and the expected duration"
    )
    parser.add_argument("--oversubscribe", action="store_true", help="allow more threads than cores")
    parser.add_argument(
        "--on", metavar="ENGINE", help="measure on the nodes of a cluster: slurm, or dask:ADDRESS of its scheduler"
    )
    parser.add_argument("--script", action="store_true", help="of --on slurm: write the batch script, submit nothing")
    parser.add_argument("--detach", action="store_true", help="of --on slurm: submit, and do not wait")
    add_output(parser)


def call(arguments: Namespace) -> int:
    """Measure, and print tables; with --dry-run print what would be measured."""
    from ..cluster.slurm import SlurmOptions
    from ..sweep.configuration import find_configuration

    configuration = find_configuration(arguments.file).on(arguments.device)
    if arguments.oversubscribe:
        configuration = configuration.with_measure(oversubscribe=True)
    SlurmOptions.from_mapping(configuration.slurm, f"table [slurm] of {arguments.file}")
    for name in ("script", "detach"):
        if getattr(arguments, name) and arguments.on != "slurm":
            raise UsageError(f"--{name} belongs to --on slurm, got it with --on {arguments.on}; leave it out")
    if arguments.dry_run:
        return print_expected(configuration, arguments)
    return (_measure_on if arguments.on else measure_and_report)(configuration, arguments)


def _measure_on(configuration, arguments: Namespace) -> int:
    """Measure on a cluster."""
    from ..cluster.client import Names, measure_on, next_blocks
    from ..cluster.engines import engine_on
    from ..results.folder import ResultsWriter, read_results
    from ..sweep.comparison import judge
    from ..sweep.questions import undecided
    from ..sweep.status import describe_status

    if arguments.trace or configuration.measure.inject:
        raise UsageError(
            "traces are of one machine, got --trace or inject with --on; leave it out, and trace on a node without --on"
        )
    if arguments.quick:
        configuration = configuration.quick()
    out_dir = folder_of(arguments)
    again = command_line(out_dir)
    with engine_on(arguments.on, configuration, out_dir, again, wait=not arguments.detach, say=_say) as engine:
        if arguments.script:

            def still_open() -> set[str] | None:
                return undecided(read_results(out_dir))

            with ResultsWriter(out_dir, Names) as writer:
                blocks = next_blocks(configuration, writer.results, still_open, set(), sys.stderr)
            print(f"sbatch {engine.write_script(blocks)}/batch.sh" if blocks else "nothing is missing")
            return 0
        try:
            results = measure_on(engine, configuration, out_dir, undecided=undecided)
        except KeyboardInterrupt:
            jobs = ", and jobs go on" if arguments.on == "slurm" else ""
            _say(f"interrupted; what was measured is kept{jobs}. To go on: {again}")
            raise
    if results is None:
        _say(f"submitted; `forktask status {out_dir}` says how far it is, and this fetches it: {again}")
        return 0
    compared = judge(results)
    if compared.usable and configuration.measure.simulate:
        _keep_machine(engine.machine(), out_dir)
    for line in compared.failures:
        _say(line)
    if describe_status(results)["resume"]:
        _say(f"some blocks were lost. To give them out again: {again}")
        compared.complete = False
    return report_on(compared, configuration, out_dir, arguments)


def _keep_machine(measured: str, out_dir: str) -> None:
    """Keep what simulations need of the nodes: as one of them has measured it, or as this machine does if it is one."""
    from ..results.files import write_atomically
    from ..simulate.predict import MACHINE, OtherMachine, keep_machine

    path = Path(out_dir) / MACHINE
    if measured and not path.exists():
        write_atomically(path, measured)
    try:
        keep_machine(out_dir)
    except OtherMachine as error:
        _say(f"not simulated: {error}")


def _say(message: str) -> None:
    print(f"forktask: {message}", file=sys.stderr, flush=True)
