"""Run the missing trainings of a study; each result is a row of its folder as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError, refusals
from ...cython_src.gpu import device as gpu_device
from ..machine.topology import available_cpus, cpu_order
from ..results.folder import Results, ResultsWriter, new_run, read_results
from ..results.rows import RunRow, answered
from ..results.training_rows import LoadingFailureRow, LoadingRow, TrainingFailureRow, TrainingRow
from ..sampling.child import measure_in_process, run_environment, sample_environment
from ..sampling.schedule import Job, Schedule
from ..tables.numbers import plural
from ..tables.progress import continued_by, say
from ..training.dataset import check_there
from .configuration import Study, Training, study_of
from .loaders import COMMAND as LOADERS_COMMAND
from .loaders import jobs as loading_jobs
from .one_run import COMMAND

CHANGEABLE = ("train", "stages", "study")  # parts of a study that may change when it goes on


@dataclass(frozen=True)
class StudyResults:
    """Results of a study's runs, in their order."""

    study: Study
    found: Sequence[tuple[Training, TrainingRow | TrainingFailureRow]]
    run: RunRow  # the latest of the folder
    loading: Sequence[LoadingRow | LoadingFailureRow] = ()  # where the study asks for them

    def done(self) -> list[tuple[Training, TrainingRow]]:
        """Runs that were trained to their end."""
        return [(run, row) for run, row in self.found if isinstance(row, TrainingRow)]

    def failed(self) -> list[tuple[Training, TrainingFailureRow]]:
        """Runs that were not."""
        return [(run, row) for run, row in self.found if isinstance(row, TrainingFailureRow)]


def obstacles(study: Study) -> list[str]:
    """Return what keeps this machine from running a study: cores, GPUs, data, a sentence each."""
    configs = [stage for run in study.trainings() for stage in run.stages]
    counts = sorted({(config.threads, config.places) for config in configs})
    checks: list[Callable[[], object]] = [partial(cpu_order, n, places=places) for n, places in counts]
    if any(config.spec.is_gpu for config in configs):
        checks.append(gpu_device.count_gpus)
    checks += [partial(check_there, data) for data in dict.fromkeys(config.data for config in configs)]
    return refusals(checks)


def expected(study: Study) -> dict[str, Any]:
    """Return the runs of a study, and what this machine lacks for it, without training anything."""
    return {
        "title": study.title,
        "how_to_read": study.how_to_read,
        "obstacles": obstacles(study),
        "runs": [
            {"label": run.label, "seed": run.seed, "epochs": [stage.epochs for stage in run.stages]}
            for run in study.trainings()
        ],
    }


def expected_text(result: Mapping[str, Any]) -> str:
    """Format the result of `expected` for a terminal."""
    lines = [result["title"], "", *([result["how_to_read"], ""] if result["how_to_read"] else [])]
    for run in result["runs"]:
        first, *later = run["epochs"]
        epochs = f"{' + '.join(map(str, run['epochs']))} epochs" if later else plural(first, "epoch")
        lines.append(f"{run['label']}, seed {run['seed']}, {epochs}")
    return "\n".join([*lines, *(f"\ncannot run: {text}" for text in result["obstacles"])])


def run_study(study: Study, out: Path, command: str, report: Callable[[str], None] = print) -> StudyResults:
    """Train what is missing in a folder, each run in a fresh process; a run that was interrupted goes on.

    Parameters
    ----------
    out : Path
        New, or the folder of an earlier call: runs that are done there stay, failed ones are tried again.
    command : str
        The user's, which goes on.
    report : callable
        Takes a line for each run.

    Raises
    ------
    UsageError
        More threads than this machine has cores, no GPU for a model of a GPU, or a folder that cannot take the results.
    """
    for text in obstacles(study):
        raise UsageError(text)
    if study.left_out:
        say(study.left_out)
    with ResultsWriter(out) as writer:
        writer.start(new_run("study", study.as_dict(), command, study.how_to_read, **run_environment()), CHANGEABLE)
        schedule = Schedule("study", writer.append)
        jobs = [*_jobs(study, out, writer.results, partial(schedule.say, write=report))]
        with continued_by(command, lambda: f"runs that are done stay in {out}"):
            schedule.run(jobs, len(jobs))
        return found_results(study, writer.results)


def results_of(folder: Path) -> StudyResults | None:
    """Return the results of a study's folder, as its last run asked for them; None: it holds something else."""
    results = read_results(folder)
    return found_results(study_of(results.run), results) if results.is_study else None


def found_results(study: Study, results: Results) -> StudyResults:
    """Return what rows hold of the runs of a study: the last row of each run, and of each way of loading alone."""
    trained = {row.run_id: row for row in results.rows if isinstance(row, TrainingRow | TrainingFailureRow)}
    result = [(run, trained[run.run_id]) for run in study.trainings() if run.run_id in trained]
    loaded = [row for row in results.rows if isinstance(row, LoadingRow | LoadingFailureRow)]
    of_jobs = [[row for row in loaded if _is_of(row, job)] for job in loading_jobs(study)]
    return StudyResults(study, result, results.run, [rows[-1] for rows in of_jobs if rows])


def _is_of(row: LoadingRow | LoadingFailureRow, job: Mapping[str, Any]) -> bool:
    return (row.way, row.count, row.config) == (*job.values(),)


def _jobs(study: Study, out: Path, results: Results, report: Callable[[str], None]) -> Iterator[Job]:
    """Yield what no row holds yet; failures are tried again."""
    done, limit_s = {row.run_id for row in results.of(TrainingRow)}, study.options.time_limit_s
    for run in study.trainings():
        if run.run_id not in done:
            train = partial(_train, run, out / "runs" / run.run_id, limit_s, report)
            yield Job("trainings", f"{run.label}, seed {run.seed}", train)
    for job in loading_jobs(study):
        if not any(_is_of(row, job) for row in results.of(LoadingRow)):
            text = f"load {job['config']['load']}: {job['way']}, {job['count']}"
            yield Job("loading alone", text, partial(_load, job, limit_s))


def _train(
    run: Training, folder: Path, limit_s: float, report: Callable[[str], None]
) -> Iterator[TrainingRow | TrainingFailureRow]:
    folder.mkdir(parents=True, exist_ok=True)
    job = {"stages": [{**stage.as_dict(), "seeds": 1} for stage in run.stages], "folder": str(folder)}
    reply = _in_own_process(job, run.stages[0].threads, limit_s, COMMAND)
    row = answered(TrainingRow, TrainingFailureRow, reply, {"run_id": run.run_id})
    yield row
    if isinstance(row, TrainingFailureRow):
        said = f"{row.reason}: {row.message}"
    else:
        end = row.stages[-1].end
        said = f"test accuracy {100 * end.test_accuracy:.2f} %, {end.time_s:.2f} s"
    report(f"{run.label}, seed {run.seed}: {said}")


def _load(job: Mapping[str, Any], limit_s: float) -> Iterator[LoadingRow | LoadingFailureRow]:
    reply = _in_own_process(job, job["config"]["threads"], limit_s, LOADERS_COMMAND)
    yield answered(LoadingRow, LoadingFailureRow, reply, job)


def _in_own_process(job: Mapping[str, Any], threads: int, limit_s: float, command: Sequence[str]) -> dict[str, Any]:
    settings = sample_environment(threads, 0, len(available_cpus()))
    return measure_in_process({**job, "cpus": None}, settings, limit_s, command)
