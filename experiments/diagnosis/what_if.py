"""A plan of the same network with other options, its blocks' durations estimated from those that were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...cython_src.lowering.lower import lower
from ...cython_src.plan.model import Plan
from ..simulate.machine_model import MachineModel
from ..simulate.policies import Subject

LEAST_BLOCK_S = 1e-7  # of a block of a kernel that was not measured


def relower(options: Mapping[str, Any], measured: Plan, seconds: np.ndarray, machine: MachineModel) -> Subject:
    """Lower other options, and give each block the rate of the measured blocks of its layer, phase and kernel.

    Rates are flops a second, or bytes a second of kernels without flops. Kernels that were not measured move their
    bytes at one thread's bandwidth.
    """
    plan = lower(**options)
    work: defaultdict[tuple, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for loop in measured.loops:
        time = seconds[loop.first_task : loop.first_task + loop.num_blocks].sum()
        work[loop.layer, loop.phase, loop.kernel] += (loop.flops, loop.bytes, time)
    bandwidth = machine.bandwidth_bytes_per_s.get(1, 1e10)
    estimated = []
    for loop in plan.loops:
        flops, num_bytes, time = work[loop.layer, loop.phase, loop.kernel]
        for block in loop.blocks:
            if flops and block.flops:
                each = block.flops * time / flops
            elif num_bytes and time:
                each = block.bytes * time / num_bytes
            else:
                each = block.bytes / bandwidth
            estimated.append(max(each, LEAST_BLOCK_S))
    return Subject(plan, np.array(estimated), machine)
