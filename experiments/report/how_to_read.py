"""Words of the report with their meaning."""

from __future__ import annotations

from ..analysis.accounting import MOST_OVER
from ..analysis.estimates import CLIPPED_AT, EQUIVALENCE_BAND, LEAST_ROUNDS, MIN_GENERATIONS, MIN_SESSIONS
from ..results.turns import SESSION_PAUSE_S

DEFINITIONS = (
    (
        "time",
        "Seconds of a step: mean over generations of processes, in logarithms, of the median over their rounds. "
        "Ratios are quotients of these times; where several forms of fork-join took part, the reference of each "
        "generation is the form that the others chose, so that its ratio may differ from the quotient of the times.",
    ),
    ("speedup", "Time of the fastest serial run of the problem, at any granularity, over this time."),
    ("efficiency, eff.", "Speedup over threads; models of a GPU have none."),
    ("time / fork-join", "Over the better fork-join form of the same plan and threads. Below 1 is faster."),
    (
        "answer, verdict, by how much",
        f"faster, slower: the whole 95% interval of the ratio of times lies below, above 1; by less than "
        f"{EQUIVALENCE_BAND:.0%}: it also stays within {EQUIVALENCE_BAND:.0%} of 1; by how much: this interval, in "
        f"per cent of the other's time. same: it contains 1 and stays within {EQUIVALENCE_BAND:.0%} of it. undecided: "
        f"otherwise, and with fewer than {MIN_GENERATIONS} generations, fewer than {LEAST_ROUNDS} undisturbed rounds, "
        f"or more than two thirds of all rounds disturbed. Of twenty "
        f"comparisons of equals expect one to be wrong.",
    ),
    (
        "rounds, generations, sessions",
        "Undisturbed rounds, in each of which every contestant of a generation has one turn, in random order; "
        "generations of processes; sessions: what was measured from one start of a command to its end, or from several "
        f"that follow each other within {SESSION_PAUSE_S / 60:g} minutes.",
    ),
    (
        "in this session, over 5 sessions; sessions apart",
        f"An hour later the state of a machine has changed, and it affects models differently. With {MIN_SESSIONS} or "
        "more sessions the interval is over them, and holds for the machine; before, it holds in this session. Apart: "
        "the highest value of a session over the lowest, less 1.",
    ),
    (
        "95% interval",
        f"Of a ratio: from its spread over generations, or sessions; anytime-valid, so measuring may stop "
        f"once the comparison is decided; from {MIN_GENERATIONS} generations on. Wild ones count as {CLIPPED_AT:g} "
        f"standard deviations.",
    ),
    (
        "FLOP floor, roofline floor",
        "Operations over one thread's FMA peak; sum over loops of max(operations / peak, bytes / bandwidth). Winograd "
        "counts as direct convolution and may pass both.",
    ),
    (
        "area, fork-join bound, span, cycle mean, Brent",
        "Bounds from serial block durations: work over capacity; the sum over loops of max(work / capacity, longest "
        "block); the longest chain of a step; the longest cycle of the graph closed over steps, per step; the least "
        "that tasks reach without idling while a task is ready. Faster blocks may pass them.",
    ),
    (
        "wall, busy",
        "Of a phase: from the end of the phase before to its own end; or, where phases overlap, time in its blocks, "
        "mean over the threads, without waiting.",
    ),
    ("overlaps backward", "Part of the update's busy time during which a block of the backward phase ran too."),
    ("share", "Of an attribution: its part of the whole change, in logarithms; of a layer: of the serial time."),
    (
        "logged / timed",
        "Time with the event log over that without; near 1, or logged runs do not represent the others.",
    ),
    ("inflation", "Time of all threads in blocks over that of the serial run."),
    (
        "floor, excess",
        "What the blocks of the same run allow at best (fork-join: the sum over loops of max(work / threads, longest "
        "block); span; cycle mean), and by how much the run takes longer.",
    ),
    ("per unit", "Excess per barrier for fork-join; excess times threads per task for task models."),
    ("empty kernels", "Time of the same graph under the same model with kernels that do nothing."),
    ("equal shares / floor", "What `schedule(static)` allows over the floor."),
    (
        "time / both",
        f"Time over floor and empty kernels together. within {MOST_OVER:.0%}: whether the interval ends below "
        f"{1 + MOST_OVER}, begins above, or neither.",
    ),
    (
        "break-even",
        "Iterations after which recording and closing the graph are paid back; never: the step is slower; undecided: "
        "the steps do not differ clearly.",
    ),
)
