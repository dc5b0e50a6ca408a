"""The questions of a comparison: which contestants of a plan are compared, and with which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..subjects.models import ModelSpec
from ..tables.numbers import plural

# What parts two models: candidate, reference, what the candidate has besides.
SWITCHES = (("taskgraph", "tasks", "recorded once"), ("taskiter", "taskgraph", "steps overlap"))

ModelAndThreads = tuple[ModelSpec, int]


class Question(NamedTuple):
    """Whether a contestant is faster than the fastest of some others."""

    contestant: ModelAndThreads
    references: Sequence[ModelAndThreads]
    what: str  # what the contestant has besides, for people
    # "forkjoin": references are the fork-join forms, or the same model once more; "": others
    against: str = ""


def questions(
    contestants: Sequence[ModelAndThreads],
    fastest: Callable[[Sequence[ModelAndThreads]], ModelAndThreads],
    reference: ModelSpec | None = None,
) -> Iterator[Question]:
    """Yield the questions of one plan.

    Models of the processor are those on most threads. Each is compared with the better fork-join form, other forms
    last; a model that is measured twice, with itself; the switches between task models follow, and what threads (to
    fork-join, if it was measured) or a GPU bring; each of our models is compared with the fastest other program on as
    many threads.

    Parameters
    ----------
    contestants : sequence of (model, threads)
        That were measured, in the order of the answers.
    fastest : callable
        Returns the fastest of some of them.
    reference : ModelSpec, optional
        Of functions and programs: each other one is compared with it on most threads, and each with itself on one.
    """
    if reference is not None:
        most = max((count for _, count in contestants), default=1)
        for model, count in contestants:
            if count == most and model != reference and (reference, most) in contestants:
                yield Question((model, count), [(reference, most)], "", "forkjoin")
            if count == most > 1 and (model, 1) in contestants:
                yield Question((model, count), [(model, 1)], plural(most, "thread"))
        return
    peers = [each for each in contestants if each[0].is_peer]
    contestants = [each for each in contestants if each not in peers]
    threads = max((count for model, count in contestants if not model.is_gpu), default=1)
    wide = [(m, n) for m, n in contestants if n == threads and not m.is_serial and not m.is_gpu]
    once = [each for each in wide if not each[0].again]
    on_gpu = [each for each in contestants if each[0].is_gpu]
    for own, forkjoin in ((wide, "forkjoin"), (on_gpu, "gpu_forkjoin")):
        joins = [each for each in own if each[0].name == forkjoin and not each[0].again]
        best = fastest(joins) if joins else None
        for each in sorted(own, key=lambda each: each in joins or bool(each[0].again)):
            again = (each[0].repeated, each[1])
            if each[0].again and again in contestants:
                yield Question(each, [again], "A/A", "forkjoin")
            elif best and each != best:
                yield Question(each, joins, "", "forkjoin")
    for candidate, reference, what in SWITCHES:
        ours, theirs = ([each for each in once if each[0].name == name] for name in (candidate, reference))
        if ours and theirs:
            yield Question(fastest(ours), theirs, what)
    joins = [each for each in once if each[0].name == "forkjoin"]
    serial = [each for each in contestants if each[0].is_serial]
    if once and serial and (threads > 1 or not joins):
        yield Question(fastest(joins or once), serial, plural(threads, "thread"))
    both = [each for each in on_gpu if each[0].name == "gpu_both"]
    alone = [each for each in on_gpu if each not in both]
    cpu = [each for each in contestants if not each[0].is_gpu]
    if alone and cpu:
        yield Question(fastest(alone), cpu, "a GPU")
    if both and alone:
        yield Question(fastest(both), alone, "processor and GPU")
    for own in (wide or serial, on_gpu):
        others = [each for each in peers if own and each[0].is_gpu == own[0][0].is_gpu and each[1] == own[0][1]]
        for each in own if others else ():
            if not each[0].again:
                yield Question(each, others, "")
