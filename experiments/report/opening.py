"""The first paragraphs of a report, for readers who know none of its words: question, machine, method, answer."""

from __future__ import annotations

import math

from ..analysis.gpu import gpu_names
from ..analysis.names import LOOP_MODELS, NETWORK, base_model, is_gpu, is_graph, model_label
from ..analysis.roofline import memory_share
from ..analysis.speeds import best_serial, main_plan, speed_table
from ..analysis.statistics import FASTER, SAME, SLOWER
from ..analysis.study import Study
from ..sampling.models import MODELS
from .columns import interval
from .over_sweep import over_sweep
from .words import axes_text, compared_bits, find_text, format_time, samples_word

CPU, GPU, BOTH = "cpu", "gpu", "both"


def _place(model: str) -> str:
    """Return where a model runs blocks."""
    return BOTH if base_model(model) == "gpu_both" else GPU if is_gpu(model) else CPU


def _says(model: str) -> str:
    known = MODELS.get(base_model(model))
    return known.says if known else ""


def opening(study: Study) -> list[str]:
    """Return the paragraphs, about the main plan; none without samples."""
    if not len(study.samples):
        return []
    plan_id = main_plan(study)
    texts = (_question(study, plan_id), _answer(study, plan_id), over_sweep(study), _limits(study))
    return [" ".join(text) for text in texts if text]


def _question(study: Study, plan_id: str) -> list[str]:
    record, plan = study.records[plan_id], study.plans[plan_id]
    training = record["phase"] == "train"
    passes = "computes the network's answers, then how each weight should change, then changes the weights"
    step = f"{passes}; training repeats this many thousand times" if training else "computes the network's answers"
    of = "a neural network"
    samples = samples_word(study, plan_id)
    what = "1 " + samples.removesuffix("s") if record["batch"] == 1 else f"{record['batch']} {samples}"
    if samples == "sequences":
        what += f" of {record['sequence']} words or parts of words"
    about = f"A step takes {what} through the network {record[NETWORK]}: it {step}."
    if is_graph(plan):
        of, about = f"the task graph {record[NETWORK]}", "A step runs each of its tasks once."
    points = study.points_of(plan_id)
    ways = {place: {model for model, _ in points if _place(model) == place} for place in (CPU, GPU, BOTH)}
    threads = max((n for model, n in points if model in ways[CPU]), default=1)
    cpu = find_text(study.environment, "cpu_model", "cpu", "model_name") or "an unknown processor"
    gpus = f" ({', '.join(gpu_names(study))})"
    texts = {
        CPU: f"on up to {threads} thread{'s' * (threads > 1)} of one machine ({cpu})",
        GPU: f"on a GPU{gpus}",
        BOTH: f"on processor and GPU together{gpus * (not ways[GPU])}",
    }
    groups = [(len(ways[place]), text) for place, text in texts.items() if ways[place]]
    (count, where), others = groups[0], [f"{count} {where}" for count, where in groups[1:]]
    named = f"{count} ways to run the same pieces {where}" if count > 1 else f"one way to run them {where}"
    if count == 1 and not others:
        timed = f"{named} was timed."
    else:
        if others:
            named = ", and ".join([", ".join([named, *others[:-1]]), others[-1]]) + ","
        timed = f"{named} were timed in turn. They "
        if compared_bits(study, plan_id):
            timed += "left the same results bit for bit" + " on one device, within rounding on both," * bool(others)
            timed += " and "
        timed += "differ only in when a piece may start"
        timed += " and on which device it runs." if others else "."
    place, lost = "on several processor cores", "cores wait for one another"
    if ways[GPU] or ways[BOTH]:
        place, lost = "on a graphics processor (GPU)", "it waits to be told what to do next"
    return [
        f"How much faster does a step of {of} get {place}, and how much of that is lost because {lost}? {about}",
        f"Here a step was cut into {plan.num_tasks} pieces of work, and {timed}",
    ]


def _answer(study: Study, plan_id: str) -> list[str]:
    table = speed_table(study)
    rows = {(r["model"], r["threads"]): r for r in table[table["plan_id"] == plan_id].to_dict("records")}
    points = [(model, n) for model, n in rows if not is_gpu(model) and _says(model)]
    threads = max((n for _, n in points), default=1)
    serial = best_serial(study, plan_id)
    joins = [(plan_id, m, n) for m, n in points if n == threads and base_model(m) in LOOP_MODELS]
    free = [(plan_id, m, n) for m, n in points if n == threads and base_model(m) not in LOOP_MODELS]
    told = []
    if serial is not None:
        told.append(
            f"On one thread, where nothing waits, a step takes {format_time(study.typical_time(serial).value)}."
        )
    for forms, which in ((joins, "with such waiting" if told else "with waiting"), (free, "without it")):
        if not forms or threads < 2:
            continue
        _, model, _ = study.times.fastest(forms)
        row = rows[model, threads]
        gain = f", {_times(row['speedup'])}" if math.isfinite(row["speedup"]) else ""
        way = f"fastest way {which}" if joins else "fastest way"
        told.append(
            f"On {threads} threads the {way} is {model_label(model)} ({_says(model)}): "
            f"{format_time(row['median_s'])}{gain}."
        )
        if which == "without it" and joins:
            told.append(_verdict(row, model_label(row["reference"])))
    for place, where in ((GPU, "On the GPU"), (BOTH, "On processor and GPU together")):
        accelerated = [(plan_id, model, n) for model, n in rows if _place(model) == place]
        if not accelerated:
            continue
        _, model, n = study.times.fastest(accelerated)
        row = rows[model, n]
        gain = f", {_times(row['speedup'])} as one thread of the processor" if math.isfinite(row["speedup"]) else ""
        told.append(f"{where} the fastest way is {model_label(model)}: {format_time(row['median_s'])}{gain}.")
    return told


def _limits(study: Study) -> list[str]:
    """Return the limit of steps of several sizes, arithmetic or memory, as sentences."""
    shares = {each: memory_share(study, each) for each in study.plan_ids()}
    known = {each: share for each, share in shares.items() if share is not None}
    if len(known) < 2 or not set(study.axes) <= {"batch", "sequence"}:
        return []
    least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)

    both = ", and ".join(f"{known[each]:.0%} with {axes_text(study, each)}" for each in (most, least))
    if f"{known[most]:.0%}" == f"{known[least]:.0%}":
        both = f"{known[most]:.0%} in each of these sizes"
    return [
        "Some pieces can go no faster because the processor calculates, others because its memory delivers numbers. Of "
        f"the least time that a step could take on one thread, memory limits {both}."
    ]


def _times(speedup: float) -> str:
    return f"{speedup:.2f} times as fast" if speedup >= 1 else f"{1 / speedup:.2f} times as long"


def _verdict(row, reference: str) -> str:
    limits = interval(row["ratio_low"], row["ratio_high"], 3)
    said = {
        FASTER: "This difference is more than chance",
        SLOWER: "So here the waiting costs less than what replaces it, by more than chance",
        SAME: "So here waiting makes no difference",
    }.get(row["verdict"], "Whether this difference is more than chance, these measurements do not say")
    ratio = f"{row['ratio']:.3f}" + (f", 95 % interval {limits}" if limits else "")
    return f"{said} (time over that of {reference}: {ratio}; below 1 is faster)."
