"""Data of a bound plan as users have them: samples, labels, their order, learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import UsageError
from ..kernels.loss.loss import IGNORED
from ..plan.model import Plan


def load(plan: Plan, arrays: Mapping[str, np.ndarray], samples: Any, labels: Any, order: Any, rate: Any) -> None:
    """Copy data into the arrays of a plan; see `BoundPlan.load`."""
    own = {b.name.rpartition(".")[2]: arrays[b.name] for b in plan.buffers.values() if b.role == "dataset"}
    kind = next((kind for kind in ("images", "tokens") if kind in own), "")
    if not kind:
        raise UsageError(f"load() is for plans with images or tokens, and {plan.name!r} has none; fill `arrays`")
    if (labels is None) == ("labels" in own):
        wanted, got, remedy = (
            ("labels", "none", "add them") if labels is None else ("no labels", "some", "leave it out")
        )
        raise UsageError(f"plan {plan.name!r} takes {wanted}, got {got}; {remedy}")
    target, values = own[kind], np.asarray(samples)
    if kind == "tokens":
        values = values.reshape(-1)
        values = np.append(values, values[:1]) if values.size == target.size - 1 else values
        _whole(kind, values, plan.attributes["vocabulary"])
    if values.shape != target.shape:
        raise UsageError(
            f"{kind} of plan {plan.name!r} must have shape {target.shape}, got {values.shape}; give lower() their "
            f"number as num_images"
        )
    target[...] = values
    if labels is not None:
        numbers = np.asarray(labels).reshape(-1)
        _whole("labels", numbers[numbers != IGNORED], plan.attributes["num_classes"])
        if numbers.shape != own["labels"].shape:
            raise UsageError(
                f"labels of plan {plan.name!r} must be {own['labels'].size}, got {numbers.size}; give one of each"
            )
        own["labels"][...] = numbers
    (table,) = (arrays[name] for name in plan.buffers if name.endswith("batch_order"))
    count = len(target) // (plan.attributes["sequence"] if kind == "tokens" else 1)
    chosen = np.arange(table.size) % count if order is None else np.asarray(order).reshape(-1)[: table.size]
    _whole("order", chosen, count)
    if chosen.size < table.size:
        raise UsageError(
            f"order must name {table.size} samples, {len(table)} batches of {table.shape[1]}, got {chosen.size}; give "
            f"lower() a smaller num_batches"
        )
    table[...] = chosen.reshape(table.shape)
    if rate is not None and "learning_rates" not in arrays:
        raise UsageError(f"learning_rate is for plans that train, got it for {plan.name!r}; leave it out")
    if rate is not None:
        arrays["learning_rates"][...] = rate


def _whole(what: str, numbers: np.ndarray, end: int) -> None:
    """Raise `UsageError` unless numbers are whole and in [0, end)."""
    if numbers.size and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= end):
        raise UsageError(
            f"{what} must be whole numbers in [0, {end - 1}], got {numbers.dtype} from {numbers.min()} to "
            f"{numbers.max()}; check them"
        )
