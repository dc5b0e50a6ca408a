"""Publish studies, and draw the figures of docs/studies from what was published:

    python -P docs/update_studies.py [NAME FOLDER]

`NAME FOLDER` takes the samples of a results folder of `forktask run NAME` into
results/MACHINE/NAME, with the host's name left out; see results/README.md, whose list is written here. Then, as without
arguments, the figures in `FIGURES` of all published studies are drawn as `forktask report --figure` draws them. A test
fails where a figure is not what the samples give; who changes the form of rows converts them.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib.figure import Figure

from forktask.cython_src.errors import UsageError
from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.speeds import leading_plans, main_plan
from forktask.experiments.report import figures
from forktask.experiments.report.figures.style import save
from forktask.experiments.results.folder import SAMPLES, read_results
from forktask.experiments.studies.report import drawn_figure
from forktask.experiments.studies.running import results_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS, LIST, IMAGES = ROOT / "results", ROOT / "results" / "README.md", ROOT / "docs" / "images"
# The figures of each study: those of a network are drawn for each network, others for the plan with most samples.
FIGURES = {
    "gpt2_ladder": ("ladder", "run_time"),
    "gpt2_batch_subsize": ("overlay", "granularity"),
    "gpt2_shapes": ("bound", "roofline"),
    "checkerboard": ("options",),
    "conv_forms": ("overlay", "options"),
    "layers": ("layer_times",),
    "metg_dnn": ("granularity",),
    "replay_ladder": ("factorial",),
    "interference": ("interference",),
    "batch_networks": ("memory",),
    "time_to_accuracy": ("accuracy_over_time",),
    "lenet5": ("accuracy_over_time",),
    "fashion_mnist": ("accuracy_over_time",),
    "fine_tuning": ("accuracy_over_time",),
    "loading": ("loading",),
    "big_images": ("loading",),
}
LARGEST = 1_500_000  # bytes of published samples
# What large samples go without, in this order, where no figure shows it: digits of the durations of blocks, but one;
# profiles; and all loops of a plan, but one.
PARTS = ("blocks of models", "profiles of models", "profiles of serial", "loops")


def published(results: Path = RESULTS) -> dict[str, Path]:
    """Return the folder of each study that is there, in the order of `FIGURES`."""
    return {name: path for name in FIGURES for path in results.glob(f"*/{name}") if (path / SAMPLES).exists()}


def publish(name: str, folder: Path, results: Path = RESULTS) -> Path:
    """Take the samples of a folder, smaller where need be, and return where they are; another machine's make way."""
    environment = read_results(folder).run.environment
    words = re.sub(r"\(.*?\)", "", environment["cpu"]["model"]).split()
    target = results / f"{words[1].lower()}_{environment['topology']['cores']}_cores" / name
    if name in (before := published(results)) and before[name] != target:
        shutil.rmtree(before[name])
    target.mkdir(parents=True, exist_ok=True)
    samples = (folder / SAMPLES).read_text()
    if host := environment.get("node", {}).get("host"):
        samples = samples.replace(f'"{host}"', '"host"')
    (target / SAMPLES).write_text(made_smaller(name, folder, samples))
    if (folder / "machine.toml").exists():
        shutil.copy(folder / "machine.toml", target)
    return target


def made_smaller(name: str, folder: Path, samples: str) -> str:
    """Return samples of at most `LARGEST` bytes: as they are, else without what the figures do not need, else with
    numbers of five digits, else with one profile of each model.

    Raises
    ------
    ValueError
        They stay larger.
    """
    if len(samples) <= LARGEST:
        return samples
    whole = drawn_bytes(name, folder, samples)
    tried = [without(samples, PARTS[:count]) for count in range(1, len(PARTS) + 1)]
    same = [samples, *(text for text in tried if drawn_bytes(name, folder, text) == whole)]
    once = without(samples, (PARTS[0], "repeated profiles"))
    for text in (*same, *(short_numbers(text) for text in (*same, once))):
        if len(text) <= LARGEST:
            return text
    raise ValueError(f"samples of {name} must fit into {LARGEST} bytes, got {len(samples)}; measure fewer plans")


def without(samples: str, parts: Sequence[str]) -> str:
    """Return samples without some of `PARTS`."""
    kept = []
    for line in samples.splitlines():
        row = json.loads(line)
        own = "serial" if row.get("model") == "serial" else "models"
        again = own == "models" and row.get("repetition") and "repeated profiles" in parts
        if row["kind"] == "profile" and (again or f"profiles of {own}" in parts):
            continue
        if row["kind"] == "profile" and f"blocks of {own}" in parts:
            rough = {name: [float(f"{time:.1g}") for time in times] for name, times in row["block_time_s"].items()}
            line = json.dumps({**row, "block_time_s": rough}, separators=(",", ":"))
        if row["kind"] == "plan" and "loops" in parts:
            line = json.dumps({**row, "loops": row["loops"][:1]}, separators=(",", ":"))
        kept.append(line + "\n")
    return "".join(kept)


def short_numbers(samples: str) -> str:
    """Return samples whose numbers have at most five digits."""
    return re.sub(r"\b\d+\.\d{5,}(e[-+]?\d+)?\b", lambda found: f"{float(found[0]):.5g}", samples)


def drawn_bytes(name: str, folder: Path, samples: str) -> dict[str, bytes]:
    """Return the figures that samples give, by file name."""
    with TemporaryDirectory() as place:
        (Path(place) / SAMPLES).write_text(samples)
        if (folder / "machine.toml").exists():
            shutil.copy(folder / "machine.toml", place)
        try:
            return {path.name: path.read_bytes() for path in draw(name, Path(place), Path(place))}
        except UsageError:
            return {}  # a figure lacks something


def draw(name: str, folder: Path, images: Path) -> list[Path]:
    """Draw the figures of a study from its samples as IMAGES/NAME-FIGURE.svg, and return their paths."""
    return [save(figure, images / f"{name}-{stem}.svg") for stem, figure in drawn(name, folder)]


def drawn(name: str, folder: Path) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of a study, with their names."""
    if read_results(folder).run.holds == "study":
        results = results_of(folder)
        for figure in FIGURES[name]:
            yield figure, drawn_figure(results, figure, "double")[0]
        return
    sweep = load(folder)
    leading = leading_plans(sweep)
    for figure in FIGURES[name]:
        of_network = figures.FIGURES[figure].ONE_FOR == "network" and len(leading) > 1
        for plan_id in leading if of_network else [main_plan(sweep)]:
            network = f"-{sweep.records[plan_id]['network']}" if of_network else ""
            yield figure + network, figures.draw(sweep, figure, plan_id)


def listed(results: Path = RESULTS) -> str:
    """Return the table of all published studies, for results/README.md."""
    lines = ["| folder | machine, date | commit | measured with |", "|---|---|---|---|"]
    for folder in published(results).values():
        run, place = read_results(folder).run, folder.relative_to(results)
        build, cpu = run.environment["build"]["commit"].partition("-"), run.environment["cpu"]["model"]
        command = re.sub(r" --out[ =]\S+", "", run.command)
        commit = build[0][:12] + (", with changes" if build[1] else "")
        lines.append(f"| [`{place}`]({place}/{SAMPLES}) | {cpu}, {run.created[:10]} | {commit} | `{command}` |")
    return "".join(f"{line}\n" for line in lines)


def with_list(text: str, results: Path = RESULTS) -> str:
    """Return the text of results/README.md with the table of studies written anew."""
    mark, end = "<!-- studies -->\n", "<!-- end of studies -->"
    return re.sub(f"{mark}.*{end}", lambda _: f"{mark}{listed(results)}{end}", text, flags=re.S)


def main() -> None:
    """Publish what was asked for, and draw all."""
    if sys.argv[1:]:
        publish(sys.argv[1], Path(sys.argv[2]))
    LIST.write_text(with_list(LIST.read_text()))
    for name, folder in published().items():
        print(*draw(name, folder, IMAGES), sep="\n")


if __name__ == "__main__":
    main()
