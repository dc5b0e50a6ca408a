"""Put results into the README:  python docs/update_readme.py DEMONSTRATION [COMPARISON]

DEMONSTRATION is the folder of `forktask run demonstration`: the first figure, and the sentence of result above it.
COMPARISON is that of `make compare`: the table further below.
"""

import re
import sys
import textwrap
from pathlib import Path

import matplotlib
import numpy as np

from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.speeds import main_plan, speed_table
from forktask.experiments.report import columns
from forktask.experiments.report.figures import style
from forktask.experiments.report.figures.axes import x_axis
from forktask.experiments.report.sections import records_of
from forktask.experiments.simulate.predict import error_text, prediction_table, thread_counts
from forktask.experiments.tables import text_table

ROOT = Path(__file__).resolve().parent.parent
IMAGES, README = ROOT / "docs" / "images", ROOT / "README.md"
MODELS = {
    "forkjoin:region=persistent": "fork-join: a barrier after each loop",
    "taskiter": "tasks: replayed, no barriers",
}


def put(mark: str, content: str) -> None:
    """Write a text between two marks of the README."""
    marked = f"<!-- {mark} -->\n{content}\n<!-- end of {mark} -->"
    text, found = re.subn(f"<!-- {mark} -->.*<!-- end of {mark} -->", lambda _: marked, README.read_text(), flags=re.S)
    if found != 1:
        raise SystemExit(f"README.md must have the marks of its {mark} once, has them {found} times")
    README.write_text(text)


def demonstration(folder: str) -> None:
    """Draw measured and simulated speedups with fine and with coarse blocks, and write what they say."""
    study = load(folder)
    plans = sorted(study.plan_ids(), key=lambda plan_id: -study.plans[plan_id]["num_tasks"])
    threads = thread_counts(study, plans[0])
    with matplotlib.rc_context(style.style_parameters()):
        figure, axes = style.new_figure("double", 2, panel_height=2.3)
        styles = style.model_styles(list(MODELS))
        for axis, plan_id, name in zip(axes, plans, ("fine", "coarse"), strict=True):
            table = prediction_table(study, plan_id, threads, None, list(MODELS))
            measured = speed_table(study)
            near = table.loc[~table["far"], "threads"].max()
            axis.axvspan(near, threads[-1] * 1.3, facecolor="0.95", zorder=0)
            for model, label in MODELS.items():
                look, own = styles[model], table[table["model"] == model]
                axis.plot(own["threads"], own["speedup"], color=look.color, linestyle=look.line)
                place = (own["threads"].iloc[-1], own["speedup"].iloc[-1])
                above = 4 if model == "taskiter" else -10
                axis.annotate(
                    f"{place[1]:.0f}" if place[1] >= 3 else f"{place[1]:.1f}",
                    place,
                    xytext=(0, above),
                    textcoords="offset points",
                    ha="center",
                    color=look.color,
                )
                points = measured[(measured["plan_id"] == plan_id) & (measured["model"] == model)]
                ends = [(points["speedup"] - points["speedup_low"]), (points["speedup_high"] - points["speedup"])]
                axis.errorbar(
                    points["threads"],
                    points["speedup"],
                    yerr=[np.maximum(end.fillna(0), 0) for end in ends],
                    color=look.color,
                    linestyle="none",
                    elinewidth=0.8,
                    **style.marker_look(look),
                    label=label,
                )
            x_axis(axis, threads, "threads")
            axis.set_ylim(0, 24)
            blocks = study.plans[plan_id]["granularity"].removeprefix("images=")
            images = f"{blocks} image{'s' * (blocks != '1')}"
            style.panel_title(axis, f"{name} blocks: {images} each, {study.plans[plan_id]['num_tasks']} a step")
            axis.text(near * 1.15, 22, "far beyond what\nwas measured", color=style.GREY, va="center")
            axis.text(near / 1.15, 22, "lines simulated,\nmarkers measured", color=style.GREY, ha="right", va="center")
        axes[0].set_ylabel("speedup over one thread")
        style.add_legend(figure, "double", axes[0].get_legend_handles_labels()[0])
        style.save(figure, IMAGES / "demonstration.svg")
    put("result", result(study, plans, threads))


def result(study, plans, threads) -> str:
    """Return the sentence of result."""
    fine = plans[0]
    most = max(count for _, count in study.points_of(fine))
    row = speed_table(study).set_index(["plan_id", "model", "threads"]).loc[(fine, "taskiter", most)]
    table = prediction_table(study, fine, threads, None, list(MODELS)).set_index(["model", "threads"])
    last = [table.loc[(model, threads[-1]), "speedup"] for model in MODELS]
    error = re.search(r"by ([\d.]+%)", error_text(prediction_table(study, fine, threads)))
    share, least, greatest = (1 - row[name] for name in ("ratio", "ratio_high", "ratio_low"))
    measured = f"{share:.0%} of a step on {most} cores [{least:.0%}, {greatest:.0%}]"
    if least <= 0:
        measured = f"at most {greatest:.0%} of a step on {most} cores (95 % interval from {least:.0%})"
    text = (
        f"**What barriers cost: {measured}, measured, and {1 - last[0] / last[1]:.0%} on {threads[-1]}, simulated.** "
        "So much less time do replayed tasks take than the better form of fork-join, for a training step of a small "
        "network (`cifar10_cnn`, batch 16) in fine blocks. From the blocks' durations the simulation predicts speedups "
        f"of {last[1]:.0f} and {last[0]:.0f}; at measured points it errs by {error[1]} (median), and beyond four times "
        "the measured threads (shaded) its error is not known. Coarse blocks leave too little to do at once for either."
    )
    picture = "![Speedup over threads, fork-join and tasks, fine and coarse blocks](docs/images/demonstration.svg)"
    return textwrap.fill(text, 120) + "\n\n" + picture


def comparison(folder: str) -> None:
    """Write the table of the main plan."""
    study = load(folder)
    table = text_table(columns.SPEED, records_of(speed_table(study), main_plan(study)))
    put("table", "```\n" + "\n".join(table) + "\n```")


if __name__ == "__main__":
    demonstration(sys.argv[1])
    for other in sys.argv[2:]:
        comparison(other)
