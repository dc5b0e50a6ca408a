"""Write the measured and the simulated results into the README:  python -P docs/update_readme.py

They are those of PUBLISHED, a folder of `forktask run demonstration`; tests/test_provenance.py fails where the README
or its figure is not what this folder gives. After a new measurement: its `samples.jsonl` and `machine.toml` go there,
and then this command.
"""

import re
import textwrap
from pathlib import Path

import matplotlib
import numpy as np

from forktask.experiments.analysis.load import load
from forktask.experiments.analysis.speeds import on_most_threads, speed_table
from forktask.experiments.report.figures import style
from forktask.experiments.report.figures.axes import x_axis
from forktask.experiments.simulate.predict import prediction_table, thread_counts
from forktask.experiments.tables import Column, markdown_table
from forktask.experiments.tables.numbers import interval, time

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "results" / "epyc_2_cores" / "demonstration"
FIGURE, README = ROOT / "docs" / "images" / "demonstration.svg", ROOT / "README.md"
MODELS = {
    "forkjoin:region=persistent": "fork-join: a barrier after each loop",
    "taskiter": "tasks: replayed, no barriers",
}


def fine_and_coarse(study) -> dict[str, str]:
    """Return the names of the two plans, the one with more blocks first."""
    plans = sorted(study.plan_ids(), key=lambda plan_id: -study.plans[plan_id].num_tasks)
    return dict(zip(plans, ("fine", "coarse"), strict=True))


def blocks_text(study, plan_id: str) -> str:
    """Return how many images a block of a plan has, and how many blocks a step."""
    images = study.records[plan_id]["granularity"].removeprefix("images=")
    return f"{images} image{'s' * (images != '1')} each, {study.plans[plan_id].num_tasks} a step"


def measured(study) -> str:
    """Return the table of all models on most threads, with machine, commit, date and conditions."""
    table, threads = on_most_threads(speed_table(study))
    plans = fine_and_coarse(study)
    table = table.set_index(["plan_id", "model"])
    fine = next(iter(plans))
    columns = [Column("model", lambda row: f"`{row['model']}`")]
    for plan_id, name in plans.items():
        columns += [
            Column(f"{name}: a step", lambda row, p=plan_id: time(table.loc[(p, row["model"]), "median_s"]), True),
            Column("time / fork-join", lambda row, p=plan_id: ratio_text(table.loc[(p, row["model"])])),
        ]
    rows = [{"model": model} for model in table.loc[fine].sort_values("median_s").index]
    environment = study.environment
    cpu, folder = environment["cpu"], PUBLISHED.relative_to(ROOT)
    blocks = "; ".join(f"{name}: {blocks_text(study, plan_id)}" for plan_id, name in plans.items())
    about = (
        f"Blocks, {blocks}. {cpu['model']}{', virtual machine' if cpu['virtual_machine'] else ''}, {threads} "
        f"threads, {study.run.created[:10]}, commit {environment['build']['commit'][:12]}. "
        f"{(PUBLISHED / 'conditions.txt').read_text().strip()} Measured with `forktask run demonstration`; "
        f"[the samples]({folder}/samples.jsonl)."
    )
    return "\n".join([*markdown_table(columns, rows), "", textwrap.fill(about, 120, break_on_hyphens=False)])


def ratio_text(row) -> str:
    """Return a ratio with its interval and verdict; empty for the model that others are compared with."""
    if not row["verdict"]:
        return ""
    return f"{row['ratio']:.3f} {interval(row['ratio_low'], row['ratio_high'], 3)} {row['verdict']}"


def simulated(study, threads: list[int]) -> str:
    """Return what the simulated curve shows, and how far it can be checked."""
    fine = next(iter(fine_and_coarse(study)))
    table = prediction_table(study, fine, threads, None, list(MODELS)).set_index(["model", "threads"])
    joined, replayed = (table.loc[(model, threads[-1]), "speedup"] for model in MODELS)
    seen = prediction_table(study, fine, threads)
    error = seen.loc[seen["threads"] > 1, "error"].abs().median()
    text = (
        f"From the serial durations of the fine blocks the simulation gives {threads[-1]} threads a speedup of "
        f"{joined:.0f} with barriers and {replayed:.0f} without. It assumes that the cost of a barrier grows linearly "
        "beyond the measured threads, and that bandwidth and cores do so too. The batch of 16 images leaves most of "
        f"{threads[-1]} threads without a block in loops over images. At the points that were measured here it errs by "
        f"{error:.1%} (median); **its error on more than two threads was never measured.**"
    )
    path = FIGURE.relative_to(ROOT)
    return f"{textwrap.fill(text, 120)}\n\n![Speedup over threads, fork-join and tasks, fine and coarse blocks]({path})"


def draw_all(study, path: Path) -> None:
    """Draw measured and simulated speedups with fine and with coarse blocks."""
    threads = thread_counts(study, next(iter(fine_and_coarse(study))))
    with matplotlib.rc_context(style.style_parameters()):
        figure, axes = style.new_figure("double", 2, panel_height=2.3)
        for axis, (plan_id, name) in zip(axes, fine_and_coarse(study).items(), strict=True):
            draw_plan(axis, study, plan_id, threads)
            style.panel_title(axis, f"{name} blocks: {blocks_text(study, plan_id)}")
        axes[0].set_ylabel("speedup over one thread")
        highest = max(axis.get_ylim()[1] for axis in axes)
        for axis in axes:
            axis.set_ylim(0, highest * 1.1)
        style.add_legend(figure, "double", axes[0].get_legend_handles_labels()[0])
        style.save(figure, path)


def draw_plan(axis, study, plan_id: str, threads: list[int]) -> None:
    """Draw the two models of MODELS: simulated lines, and measured markers with intervals."""
    points = speed_table(study)
    points = points[points["plan_id"] == plan_id]
    styles = style.model_styles(list(MODELS))
    table = prediction_table(study, plan_id, threads, None, list(MODELS))
    axis.axvspan(points["threads"].max() * 1.1, threads[-1] * 1.3, facecolor="0.95", zorder=0)
    axis.text(points["threads"].max() * 1.3, 0.4, "simulated only", color=style.GREY)
    for model, label in MODELS.items():
        look, own, seen = styles[model], table[table["model"] == model], points[points["model"] == model]
        axis.plot(own["threads"], own["speedup"], color=look.color, linestyle=look.line)
        last = (own["threads"].iloc[-1], own["speedup"].iloc[-1])
        above = 4 if model == "taskiter" else -10
        axis.annotate(f"{last[1]:.3g}", last, (0, above), textcoords="offset points", ha="center", color=look.color)
        ends = [seen["speedup"] - seen["speedup_low"], seen["speedup_high"] - seen["speedup"]]
        errors = [np.maximum(end.fillna(0), 0) for end in ends]
        shown = {**style.marker_look(look), "color": look.color, "linestyle": "none", "elinewidth": 0.8}
        axis.errorbar(seen["threads"], seen["speedup"], yerr=errors, label=label, **shown)
    x_axis(axis, threads, "threads")


def readme_of(study, text: str) -> str:
    """Return the text of the README with both results written anew.

    Raises
    ------
    ValueError
        The marks of a result are not there once.
    """
    threads = thread_counts(study, next(iter(fine_and_coarse(study))))
    for mark, content in (("measured", measured(study)), ("simulated", simulated(study, threads))):
        marked = f"<!-- {mark} -->\n{content}\n<!-- end of {mark} -->"
        text, found = re.subn(f"<!-- {mark} -->.*<!-- end of {mark} -->", lambda _, m=marked: m, text, flags=re.S)
        if found != 1:
            raise ValueError(f"README.md must have the marks of {mark!r} once, has them {found} times")
    return text


def main() -> None:
    """Write the README's results and its figure."""
    study = load(PUBLISHED)
    README.write_text(readme_of(study, README.read_text()))
    draw_all(study, FIGURE)


if __name__ == "__main__":
    main()
