"""The table and figure of a sweep with GPU models: step times, launch overhead, idle share, one-time costs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...cython_src.errors import UsageError
from ..analysis.answers import LOSS_TOLERANCES, disagreement
from ..analysis.statistics import ratio_interval, spread
from ..sampling.files import write_atomically
from ..sampling.models import parse_model
from ..sampling.results import Results

EPOCH_IMAGES = 50_000
COLUMNS = (
    "network",
    "batch",
    "model",
    "threads",
    "samples",
    "step_time_s",
    "iqr_s",
    "epoch_s",
    "vs_forkjoin",
    "vs_forkjoin_low",
    "vs_forkjoin_high",
    "vs_stream",
    "vs_stream_low",
    "vs_stream_high",
    "overhead_s",
    "busy_s",
    "idle_share",
    "context_s",
    "compilation_s",
    "prepare_s",
    "first_replay_s",
)


def summarise(results: Results) -> list[dict[str, Any]]:
    """A row for each plan, model and thread count.

    Returns
    -------
    list of dict
        `COLUMNS`; vs_...: time of gpu_forkjoin or gpu_stream over this model's (above 1: faster); overhead_s: a step of
        empty kernels; busy_s: kernels of a step, one after the other; idle_share: 1 - busy / step, below 0 where kernels
        overlap. What was not measured is None.

    Raises
    ------
    UsageError
        Answers of two models for one plan differ by more than rounding: then no time is reported.
    """
    plans = {row["plan_id"]: row for row in results.of_kind("plan")}
    samples: dict[tuple[str, str, int], dict[int, Mapping]] = {}
    for row in results.of_kind("sample"):
        samples.setdefault((row["plan_id"], row["model"], row["threads"]), {})[row["repetition"]] = row
    profiles = {(row["plan_id"], row["model"], row["threads"]): row for row in results.of_kind("profile")}
    _check_answers(samples)
    table = []
    for (plan_id, model, threads), rows in samples.items():
        times = {r: row["step_time_s"] for r, row in rows.items()}
        middle, first = spread(list(times.values())), next(iter(rows.values()))
        entry: dict[str, Any] = dict.fromkeys(COLUMNS)
        batch = plans[plan_id]["options"]["batch"]
        entry |= {
            "network": plans[plan_id]["network"],
            "batch": batch,
            "model": model,
            "threads": threads,
            "samples": middle.count,
            "step_time_s": middle.median,
            "iqr_s": middle.iqr,
            "epoch_s": middle.median * EPOCH_IMAGES / batch,
            "prepare_s": spread([row["prepare_s"] for row in rows.values()]).median,
            "first_replay_s": spread([row["first_replay_s"] for row in rows.values()]).median,
        }
        for name in ("forkjoin", "stream"):
            reference = samples.get((plan_id, f"gpu_{name}", 1))
            if reference and model != f"gpu_{name}":
                ratio = ratio_interval({r: row["step_time_s"] for r, row in reference.items()}, times)
                numbers = (ratio.value, ratio.low, ratio.high)
                for suffix, number in zip(("", "_low", "_high"), numbers, strict=True):
                    entry[f"vs_{name}{suffix}"] = None if math.isnan(number) else number
        if first.get("gpu"):
            costs = [row["gpu"]["costs_s"] for row in rows.values()]
            for name in ("context", "compilation"):
                if all(name in cost for cost in costs):
                    entry[f"{name}_s"] = spread([cost[name] for cost in costs]).median
            profile = profiles.get((plan_id, model, threads))
            if profile is not None:
                entry |= {
                    "overhead_s": profile["runtime_cost_s"],
                    "busy_s": profile["busy_s"],
                    "idle_share": 1 - profile["busy_s"] / middle.median,
                }
        table.append(entry)
    table.sort(key=lambda e: (e["network"], e["batch"], parse_model(e["model"]).model.device, e["model"], e["threads"]))
    return table


def _check_answers(samples: Mapping[tuple[str, str, int], Mapping[int, Mapping]]) -> None:
    """The devices must agree within rounding; that the models of one agree bit for bit was checked when measuring."""
    first: dict[str, tuple[str, list[float]]] = {}
    for (plan_id, model, _), rows in samples.items():
        for row in rows.values():
            name, answer = first.setdefault(plan_id, (model, row["answer"]))
            count = len(LOSS_TOLERANCES)
            if wrong := disagreement(answer[:count], row["answer"][:count]):
                raise UsageError(
                    f"answers must agree before times are compared, but beside {name}'s that of {model} {wrong}; this is a "
                    "fault of the program"
                )


def as_text(table: list[dict[str, Any]], device: str) -> str:
    """The table for a terminal."""
    width = max(len(e["model"]) + len(str(e["threads"])) + 3 for e in table)
    several = len({e["network"] for e in table}) > 1
    column = max(len(e["network"]) for e in table) + 2 if several else 0
    lines = [
        f"GPU: {device}" + ("" if several else f"; {table[0]['network']}"),
        "",
        f"{'network' if several else '':{column}}{'batch':>5}  {'model':{width}} {'us a step':>10} {'spread':>8} {'epoch s':>8}   {'vs gpu_forkjoin':21} "
        f"{'vs gpu_stream':21} {'overhead us':>11} {'idle':>5} {'once s':>7}",
    ]
    for e in table:
        name = e["model"] + (f" @ {e['threads']}" if not e["model"].startswith("gpu_") else "")
        once = sum(e[k] or 0.0 for k in ("context_s", "compilation_s", "prepare_s"))
        lines.append(
            f"{e['network'] if several else '':{column}}{e['batch']:>5}  {name:{width}} {e['step_time_s'] * 1e6:10.1f} {e['iqr_s'] * 1e6:8.1f} {e['epoch_s']:8.2f}   "
            f"{_ratio(e, 'forkjoin'):21} {_ratio(e, 'stream'):21} "
            f"{'' if e['overhead_s'] is None else format(e['overhead_s'] * 1e6, '.1f'):>11} "
            f"{'' if e['idle_share'] is None else format(e['idle_share'], '.0%'):>5} {once:7.2f}"
        )
    lines += [
        "",
        f"vs: how many times faster, median of pairs with its 95 % interval. overhead: a step of empty kernels. idle: 1 - "
        f"kernels / step (below 0: kernels overlap). epoch: {EPOCH_IMAGES:,} images. once: context, compilation, prepare.",
    ]
    return "\n".join(lines)


def _ratio(entry: Mapping[str, Any], name: str) -> str:
    value, low, high = (entry[f"vs_{name}{suffix}"] for suffix in ("", "_low", "_high"))
    if value is None:
        return ""
    return f"{value:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low is not None else "")


def draw_batches(table: list[dict[str, Any]], path: Path) -> None:
    """Time of an epoch over the batch, a line for each model, to `path`.pdf and .png with its caption in .txt."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    import seaborn as sns

    best: dict[str, dict[int, float]] = {}
    several = len({e["network"] for e in table}) > 1
    for e in table:  # of thread counts the fastest
        line = best.setdefault(f"{e['network']}, {e['model']}" if several else e["model"], {})
        line[e["batch"]] = min(line.get(e["batch"], math.inf), e["epoch_s"])
    colors = sns.color_palette("colorblind", len(best))
    with sns.axes_style("ticks"), plt.rc_context({"font.size": 8, "axes.labelsize": 8, "pdf.fonttype": 42}):
        figure, axes = plt.subplots(figsize=(3.5, 2.6), layout="constrained")
        for color, marker, (model, line) in zip(colors, "osD^vP*X<>" * len(best), best.items(), strict=False):
            axes.plot(*zip(*sorted(line.items()), strict=True), marker=marker, markersize=4, color=color, label=model)
        axes.set(xscale="log", yscale="log", xlabel="batch", ylabel=f"seconds for {EPOCH_IMAGES:,} images")
        batches = sorted({e["batch"] for e in table})
        axes.set_xticks(batches, [str(b) for b in batches])
        axes.minorticks_off()
        axes.legend(frameon=False, fontsize=6)
        sns.despine(figure)
        figure.savefig(path.with_suffix(".pdf"))
        figure.savefig(path.with_suffix(".png"), dpi=200)
        plt.close(figure)
    caption = (
        f"Time of an epoch of {EPOCH_IMAGES:,} images over the batch; CPU models at their best number of threads.\n"
    )
    write_atomically(path.with_suffix(".txt"), caption.encode())


def report(out_dir: str, results: Results, as_json: bool = False) -> str:
    """Write `gpu.csv`, and `gpu_batch.pdf` where there are several batches; returns the table as text or JSON."""
    table = summarise(results)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_atomically(Path(out_dir, "gpu.csv"), text.getvalue().encode())
    if len({e["batch"] for e in table}) > 1:
        draw_batches(table, Path(out_dir, "gpu_batch"))
    if as_json:
        return json.dumps(table, indent=1)
    names = sorted({row["gpu"]["name"] for row in results.of_kind("sample") if row.get("gpu")})
    return as_text(table, ", ".join(names) or "none measured") + f"\n\n{out_dir}: samples.jsonl, gpu.csv"
