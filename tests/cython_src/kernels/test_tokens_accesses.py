"""Kernels of tokens touch exactly what their blocks declare."""

import numpy as np
import pytest

from forktask.cython_src.binding.checks import check_accesses, find_unused_reads
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update, write

ROWS, FEATURES, VOCABULARY, PITCH, SEQUENCE, POSITIONS = 12, 21, 9, 16, 4, 6
HALVES = ((0, 5), (5, ROWS))
INTEGERS = {"tokens": VOCABULARY, "targets": VOCABULARY, "batch_order": 3, "text": VOCABULARY}
SHAPES = {
    "text": (3 * SEQUENCE + 1,),
    "batch_order": (2, 3),
    "tokens": (ROWS,),
    "targets": (ROWS,),
    "x": (ROWS, FEATURES),
    "r": (ROWS, FEATURES),
    "w": (FEATURES,),
    "b": (FEATURES,),
    "wte": (VOCABULARY, FEATURES),
    "wpe": (POSITIONS, FEATURES),
    "y": (ROWS, FEATURES),
    "s": (ROWS, FEATURES),
    "statistics": (ROWS, 2),
    "logits": (ROWS, PITCH),
    "losses": (ROWS,),
    "logsumexp": (ROWS,),
    "correct": (ROWS,),
    "dw": (2, FEATURES),
    "db": (2, FEATURES),
    "dwte": (1, VOCABULARY, FEATURES),
    "dwpe": (1, POSITIONS, FEATURES),
}


def by_rows(reads, writes, whole=(), more=lambda r: ()):
    """Blocks of rows that read and write rows of buffers, and read others as a whole."""
    return [
        Block(
            r,
            (
                *(read(name, r) for name in reads),
                *(read(name) for name in whole),
                *(write(name, r) for name in writes),
                *more(r),
            ),
        )
        for r in HALVES
    ]


def tokens_plan():
    """A plan in which each kernel has a loop of two blocks or more."""
    builder = PlanBuilder("tokens")
    for name, shape in SHAPES.items():
        integer = name in INTEGERS or name == "correct"
        builder.buffer(name, shape, "int32" if integer else "float32", role="parameter")
    features = {"features": FEATURES}
    vocabulary = {"vocabulary": VOCABULARY, "pitch": PITCH, "rows": ROWS}
    used, spare = (0, VOCABULARY), (VOCABULARY, PITCH)

    def loop(kernel, operands, blocks, attributes):
        builder.loop(f"{kernel} {len(operands)}", kernel, operands, blocks, attributes=attributes)

    samples = [
        Block(n, (read("text"), read("batch_order"), *(write(t, (n[0] * 4, n[1] * 4)) for t in ("tokens", "targets"))))
        for n in ((0, 1), (1, 3))
    ]
    load = {"dataset_tokens": "text", "batch_order": "batch_order", "tokens": "tokens", "targets": "targets"}
    loop("tokens_load", load, samples, {"sequence": SEQUENCE, "batch": 3, "num_batches": 2, "num_images": 3})
    table = {"tokens": "tokens", "token_weight": "wte"}
    shape = {**features, "sequence": SEQUENCE, "vocabulary": VOCABULARY}
    loop("embedding_forward", {**table, "output": "x"}, by_rows(["tokens"], ["x"], ["wte"]), shape)
    positions = {**table, "position_weight": "wpe", "output": "x"}
    loop("embedding_forward", positions, by_rows(["tokens"], ["x"], ["wte", "wpe"]), shape)
    norm = {"input": "x", "weight": "w", "bias": "b", "output": "y", "statistics": "statistics"}
    loop("layernorm_forward", norm, by_rows(["x"], ["y", "statistics"], ["w", "b"]), {**features, "eps": 1e-5})
    both = {**norm, "residual": "r", "sum": "s"}
    blocks = by_rows(["x", "r"], ["s", "y", "statistics"], ["w", "b"])
    loop("layernorm_forward", both, blocks, {**features, "eps": 1e-5})
    blocks = by_rows(["x", "r"], ["y", "statistics"], ["w", "b"])
    loop("layernorm_forward", {**norm, "residual": "r"}, blocks, {**features, "eps": 1e-5})
    back = {"gradient": "y", "input": "x", "weight": "w", "statistics": "statistics", "output": "s"}
    back |= {"weight_partials": "dw", "bias_partials": "db"}
    for residual in ({}, {"residual": "r"}):
        blocks = [
            Block(
                (*r, p),
                (
                    *(read(name, r) for name in ("y", "x", "statistics", *residual.values())),
                    read("w"),
                    write("s", r),
                    write("dw", (p, p + 1)),
                    write("db", (p, p + 1)),
                ),
            )
            for p, r in enumerate(HALVES)
        ]
        loop("layernorm_backward", {**back, **residual}, blocks, features)
    loop("gelu_forward", {"input": "x", "output": "y"}, by_rows(["x"], ["y"]), features)
    loop("gelu_backward", {"gradient": "r", "before": "x", "output": "y"}, by_rows(["r", "x"], ["y"]), features)
    loop("tokens_add", {"first": "r", "second": "x", "output": "y"}, by_rows(["r", "x"], ["y"]), features)
    columns = [
        Block(c, (read("tokens"), read("r", (0, ROWS), c), access("dwte", (0, 1), (0, VOCABULARY), c)))
        for access in (write, update)
        for c in ((0, 7), (7, FEATURES))
    ]
    scatter = {"tokens": "tokens", "gradient": "r", "output": "dwte"}
    sizes = {**features, "rows": ROWS, "vocabulary": VOCABULARY}
    for accumulate in (0, 1):
        half = columns[2 * accumulate : 2 * accumulate + 2]
        builder.loop(f"scatter {accumulate}", "embedding_token_gradient", scatter, half,
                     attributes={**sizes, "accumulate": accumulate})  # fmt: skip
    places = [
        Block(
            t,
            (
                *(read("r", (n * SEQUENCE + t[0], n * SEQUENCE + min(t[1], SEQUENCE))) for n in range(3)),
                write("dwpe", (0, 1), t),
            ),
        )
        for t in ((0, 3), (3, POSITIONS))
    ]
    loop("embedding_position_gradient", {"gradient": "r", "output": "dwpe"}, places,
         {**features, "sequence": SEQUENCE, "batch": 3})  # fmt: skip
    counts = {"losses": "losses", "correct": "correct"}
    logits = {"logits": "logits", "targets": "targets"}

    def over_vocabulary(reads, writes, changes):
        def more(r):
            return (update("logits", r, used), write("logits", r, spare)) if changes else (read("logits", r, used),)

        return by_rows(reads, writes, (), more)

    loop("vocabulary_evaluate", {**logits, **counts}, over_vocabulary(["targets"], counts, False), vocabulary)
    blocks = over_vocabulary(["targets"], ["logsumexp", *counts], False)
    loop("vocabulary_logsumexp", {**logits, "logsumexp": "logsumexp", **counts}, blocks, vocabulary)
    blocks = over_vocabulary(["targets", "logsumexp"], [], True)
    loop("vocabulary_gradient", {**logits, "logsumexp": "logsumexp"}, blocks, vocabulary)
    loop("vocabulary_loss", {**logits, **counts}, over_vocabulary(["targets"], counts, True), vocabulary)
    return builder.build()


def initialise(bound):
    rng = np.random.default_rng(0)
    for name, array in bound.arrays.items():
        if array.dtype.kind == "f":
            array[...] = rng.standard_normal(array.shape)
        elif name in INTEGERS:
            array[...] = rng.integers(0, INTEGERS[name], array.shape)


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_kernels_touch_what_they_declare(target):
    """Check every kernel, in both forms: undeclared reads do not matter, undeclared writes do not happen."""
    plan = tokens_plan()
    assert check_accesses(plan, target, initialise=initialise, num_replays=1, blocks_per_loop=5) > len(plan.loops)


def test_declared_reads_are_used():
    """Check that no kernel's region is too wide: each declared read changes what the block writes."""
    assert find_unused_reads(tokens_plan(), "cpu", initialise=initialise, num_replays=1) == []
