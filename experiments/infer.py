"""`forktask infer`: the forward pass over many images, with the time of each layer.

The table follows the OpenACC study of this network: conv1, relu1, pool1, ... softmax, sums by kind, loading, creating,
total. Layers are timed on a plan without fusion, block by block from the event log; the total of the fused plan, which
is what one would use, stands beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..cython_src.errors import UsageError
from ..cython_src.storage import Storage
from .data import Dataset, load_data
from .progress import ProgressBar
from .safetensors import read_safetensors
from .train import set_arrays, share_images

MAX_IMAGES = 10_000_000
# Events are read out and forgotten after so many, which bounds the log's memory.
EVENTS_A_RUN = 200_000


class ForwardPass:
    """A forward plan for `num_images` images in batches, bound to a storage; what is left over has a plan of its own.

    Parameters
    ----------
    network : str
    data : Dataset
    num_images, batch : int
        Images come from the data set in order, again from its beginning where it has fewer.
    storage : Storage
        Owner of the parameters.
    fusion : bool
    granularity : str
    """

    def __init__(self, network, data: Dataset, num_images: int, batch: int, storage: Storage, fusion: bool, granularity):
        raise NotImplementedError


def layer_times(plan, events: np.ndarray, times: dict[str, float]) -> None:
    """Add the busy time of each layer, in seconds over all workers, to `times`."""
    busy = np.bincount(
        plan.task_loop[events["task"]], (events["stop_ns"] - events["start_ns"]) * 1e-9, minlength=len(plan.loops)
    )
    for loop, seconds in zip(plan.loops, busy, strict=True):
        layer = loop.layer or loop.name
        times[layer] = times.get(layer, 0.0) + float(seconds)


def sums_by_kind(times: dict[str, float]) -> dict[str, float]:
    """Layer times summed over conv1, conv2, ...: kind -> seconds."""
    sums: dict[str, float] = {}
    for layer, seconds in times.items():
        kind = layer.rstrip("0123456789")
        sums[kind] = sums.get(kind, 0.0) + seconds
    return sums
