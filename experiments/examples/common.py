"""Common part of all examples: their arguments, and the check of the result."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable

import numpy as np

import forktask as ft


def run_example(name: str, compute: Callable[..., tuple[str, bool, np.ndarray]], argv: list[str] | None = None) -> int:
    """Run `compute(model, threads[, iterations])` -> (claim, whether it holds, result); print it; 0 if it holds."""
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--model", default="taskiter", help=f"one of {', '.join(ft.model_names())}, with options")
    parser.add_argument("--threads", type=int, help="default: 2; 1 with --model serial")
    parser.add_argument("--iterations", type=int, default=argparse.SUPPRESS)
    given = vars(parser.parse_args(argv))
    given["threads"] = threads = given["threads"] or (1 if given["model"] == "serial" else 2)
    claim, right, result = compute(**given)
    digest = hashlib.sha256(np.ascontiguousarray(result).tobytes()).hexdigest()[:12]
    on = f"{threads} thread{'s' if threads > 1 else ''}"
    print(f"{name}: {claim}: {'yes' if right else 'NO'}; result {digest} ({given['model']}, {on})")
    return 0 if right else 1
