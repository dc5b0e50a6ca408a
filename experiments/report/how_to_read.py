"""Words of the report with their meaning."""

from __future__ import annotations

from ..analysis.accounting import MOST_OVER
from ..analysis.statistics import EQUIVALENCE_BAND, MIN_PAIRS

DEFINITIONS = (
    (
        "median",
        "Typical time of a step: the median over the repetitions, after what made a whole repetition block (one run of "
        "every configuration) slower or faster was taken out. All ratios are quotients of these times; their intervals "
        "come from the ratios within each repetition block.",
    ),
    ("speedup", "Time of the fastest serial run of the same problem, at any granularity, over the time of this run."),
    ("efficiency, eff.", "Speedup divided by the number of threads; models of a GPU have none."),
    (
        "time / fork-join",
        "Time over that of the better fork-join form of the same plan on as many threads. Below 1 is faster.",
    ),
    ("time ratio", "Time of a step of the first model over that of the second. Below 1 is faster."),
    (
        "ratio of times",
        "Along an option of the sweep: time with one value over time with the first value, all other options, the "
        "model and the number of threads being equal. Below 1 is faster.",
    ),
    (
        "verdict",
        f"same: the 95% interval of the ratio lies within {EQUIVALENCE_BAND:.0%} of 1. faster, slower: it lies "
        f"wholly below, above 1 and is not the same. not enough data: fewer than {MIN_PAIRS} pairs, or an "
        f"interval that holds 1 and reaches beyond {EQUIVALENCE_BAND:.0%}. Each verdict stands alone: of twenty "
        f"comparisons of equals, expect about one to be wrong.",
    ),
    (
        "95% interval",
        "Of a ratio: from the tosses that put the runs of a repetition in order, whatever the noise (a sign-flip test; "
        "a wild repetition counts as one and a half). Of a median: the wider of bootstrap and sign test. With fewer "
        "than six repetitions both reach from the lowest to the highest and hold the middle in 94% of cases with five, "
        "88% with four, 75% with three only: give --repeats 6 or more for full cover.",
    ),
    (
        "FLOP floor, roofline floor",
        "Operations over one thread's measured FMA peak; sum over loops of max(operations / peak, bytes / bandwidth). "
        "Operations are those of direct convolutions: Winograd's form needs fewer and may pass both. Otherwise a "
        "roofline ratio below 1 means that data stayed in caches which are faster than the measured memory.",
    ),
    (
        "area, fork-join bound, span, cycle mean",
        "Bounds on the time of a step from the durations of the blocks in the serial run: all work "
        "spread evenly; the same loop by loop with a barrier; the longest chain of dependent blocks in a step; the "
        "longest cycle of the graph closed over steps, per step, below which no number of threads helps. They hold for "
        "blocks that take as long as in the serial run; where a model is above its bound, a sentence says why.",
    ),
    (
        "wall, busy",
        "Of a phase, in models that wait between phases: the time from the end of the phase before to its own end, so "
        "that the phases add up to the step. In the other models phases run into each other, and only the time in "
        "blocks belongs to one of them: busy time, mean over the threads. Waiting is in none of it; efficiency then "
        "says by how much blocks slow each other down, and no more.",
    ),
    (
        "beside backward",
        "Part of the update's busy time during which a block of the backward phase ran too: what a barrier between the "
        "two makes impossible.",
    ),
    (
        "share",
        "In the table of creation, barrier and placement: part of the whole change, in logarithms, that an "
        "attribution stands for; of layers: part of the serial time, mean over the repeated profiles, with the least "
        "and the most of them.",
    ),
    (
        "logged / timed",
        "Time of a step with the event log on over that without: near 1, or the logged runs do not stand for "
        "the others.",
    ),
    (
        "inflation",
        "Time that all threads spend in blocks over that of the serial run: above 1, blocks slow each other down.",
    ),
    (
        "floor",
        "What the blocks of the very same run allow at best: fork-join, the sum over loops of max(work / threads, "
        "longest block); span, max(work / threads, longest chain); cycle mean, max(work / threads, longest cycle).",
    ),
    (
        "excess",
        "By how much a run takes longer than the floor computed from its own blocks, both from one process with the "
        "event log on: barriers, task handling, waiting, the log itself, and filling and draining the run. The "
        "interval is over the repeated profiles.",
    ),
    ("per unit", "Excess per barrier for fork-join; excess times threads per task for task models."),
    (
        "empty kernels",
        "Time of the same graph under the same model with kernels that do nothing: its barriers or tasks.",
    ),
    (
        "equal shares / floor",
        "What `schedule(static)` allows, equal numbers of blocks for each thread, over the floor, which places the "
        "blocks of each loop at best.",
    ),
    (
        "time / both",
        f"Time of a run over the floor from its own blocks and the time with empty kernels together: above 1, by what "
        f"neither explains. within {MOST_OVER:.0%}: yes, the interval over the repeated profiles ends below "
        f"{1 + MOST_OVER}; no, it begins above; undecided otherwise, and with fewer than two profiles.",
    ),
    (
        "break-even",
        "Smallest number of iterations after which recording and closing the graph have paid for "
        "themselves; never: the step itself is slower; undecided: the step times do not differ clearly.",
    ),
    ("IQR", "Distance between the quartiles of the step times as they were measured, relative to the median."),
)
