"""The questions of a comparison: which contestants of a plan are compared, and with which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..tables.numbers import plural
from .names import base_model, is_again, is_gpu, measured_again, model_rank

# What parts two models: candidate, reference, what the candidate has besides.
SWITCHES = (("taskgraph", "tasks", "recorded once"), ("taskiter", "taskgraph", "steps overlap"))

Contestant = tuple[str, int]  # a model on a number of threads


class Question(NamedTuple):
    """Whether a contestant is faster than the fastest of some others.

    Attributes
    ----------
    contestant : (model, threads)
    references : list of (model, threads)
    what : str
        What the contestant has besides, for people.
    against_forkjoin : bool
        Whether the references are the fork-join forms, or the same model once more.
    """

    contestant: Contestant
    references: Sequence[Contestant]
    what: str
    against_forkjoin: bool = False


def questions(
    contestants: Sequence[Contestant], fastest: Callable[[Sequence[Contestant]], Contestant]
) -> Iterator[Question]:
    """Yield the questions of one plan.

    Models of the processor are those on most threads. Each is compared with the better fork-join form; a model that is
    measured twice, with itself; the switches between task models follow, and what threads (to fork-join, if it was
    measured) or a GPU bring.

    Parameters
    ----------
    contestants : sequence of (model, threads)
        That were measured.
    fastest : callable
        Returns the fastest of some of them.
    """
    threads = max((count for model, count in contestants if not is_gpu(model)), default=1)
    wide = [(m, n) for m, n in contestants if n == threads and m != "serial" and not is_gpu(m)]
    once = [each for each in wide if not is_again(each[0])]
    on_gpu = [each for each in contestants if is_gpu(each[0])]
    for own, forkjoin in ((wide, "forkjoin"), (on_gpu, "gpu_forkjoin")):
        joins = [each for each in own if base_model(each[0]) == forkjoin and not is_again(each[0])]
        best = fastest(joins) if joins else None
        for each in sorted(own, key=lambda each: model_rank(each[0])):
            again = (measured_again(each[0]), each[1])
            if is_again(each[0]) and again in contestants:
                yield Question(each, [again], "A/A", True)
            elif best and each != best:
                yield Question(each, joins, "", True)
    for candidate, reference, what in SWITCHES:
        ours, theirs = ([each for each in once if base_model(each[0]) == name] for name in (candidate, reference))
        if ours and theirs:
            yield Question(fastest(ours), theirs, what)
    joins = [each for each in once if base_model(each[0]) == "forkjoin"]
    serial = [each for each in contestants if each[0] == "serial"]
    if once and serial and (threads > 1 or not joins):
        yield Question(fastest(joins or once), serial, plural(threads, "thread"))
    both = [each for each in on_gpu if base_model(each[0]) == "gpu_both"]
    alone = [each for each in on_gpu if each not in both]
    cpu = [each for each in contestants if not is_gpu(each[0])]
    if alone and cpu:
        yield Question(fastest(alone), cpu, "a GPU")
    if both and alone:
        yield Question(fastest(both), alone, "processor and GPU")
