"""Draw the figures of docs/studies from published numbers:  python -P docs/update_studies.py [NAME FOLDER]

`NAME FOLDER` takes the numbers of a study from the results folder of its command anew; see results/README.md. They
stand in `published.json` of results/MACHINE/NAME, so that they outlive the form of samples. A test fails
where a figure is not what they give.
"""

import json
import sys
from pathlib import Path

import matplotlib

from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.speeds import leading_plans
from forktask.experiments.report.figures import memory, style
from forktask.experiments.results.folder import read_results

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "results" / "xeon_2_cores"
IMAGES = ROOT / "docs" / "images"


def memory_of_networks(folder: Path) -> dict[str, dict]:
    """Return what figure `memory` draws, by network."""
    study = load(folder)
    return {study.records[plan]["network"]: memory.data(study, plan) for plan in leading_plans(study)}


# What a study's figures are drawn from, and how one is drawn.
STUDIES = {"batch_networks": (memory_of_networks, lambda data: memory.draw_data(data, "double"))}


def publish(name: str, folder: Path) -> None:
    """Take numbers and samples from a results folder; the host's name stays out."""
    environment = read_results(folder).run.environment
    found = {
        "machine": environment["cpu"]["model"],
        "commit": environment["build"]["commit"],
        "created": read_results(folder).run.created[:10],
        "figures": STUDIES[name][0](folder),
    }
    (PUBLISHED / name).mkdir(parents=True, exist_ok=True)
    (PUBLISHED / name / "published.json").write_text(json.dumps(found, indent=1) + "\n")
    samples = (folder / "samples.jsonl").read_text()
    host = environment.get("node", {}).get("host")
    (PUBLISHED / name / "samples.jsonl").write_text(samples.replace(f'"{host}"', '"host"') if host else samples)


def draw(folder: Path, images: Path) -> list[Path]:
    """Draw the figures of all published studies, and return their paths."""
    paths = []
    for name, (_, drawn) in STUDIES.items():
        for title, data in json.loads((folder / name / "published.json").read_text())["figures"].items():
            with matplotlib.rc_context(style.style_parameters()):
                figure = style.finish(drawn(data))
            paths.append(style.save(figure, images / f"{name}-{title}.svg"))
    return paths


def main() -> None:
    """Publish what was asked for, and draw all."""
    if sys.argv[1:]:
        publish(sys.argv[1], Path(sys.argv[2]))
    draw(PUBLISHED, IMAGES)


if __name__ == "__main__":
    main()
