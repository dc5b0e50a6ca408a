"""Page faults on managed memory: the host's as the kernel counts them, the GPU's as NVIDIA's driver does.

A fault of the host on a page that lies on the GPU is a minor fault of the process like any other. The driver's module
nvidia_uvm counts faults of the GPU and the pages moved, of all processes together, in
/proc/driver/nvidia-uvm/gpus/*/fault_stats. That file exists only if the module was loaded with
uvm_enable_debug_procfs=1. CUPTI, which counts the faults of one process, has no interface in CuPy, and the management
library (NVML) does not count them.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path

WHY_NOT = (
    "not counted: the driver shows them only if its module nvidia_uvm was loaded with uvm_enable_debug_procfs=1 "
    "(or use nsys profile --cuda-um-gpu-page-faults=true)"
)
# Lines of fault_stats: what is counted -> the line's name.
LINES = {"gpu": "replayable_faults", "pages_to_gpu": "num_pages_in", "pages_to_host": "num_pages_out"}


def gpu_faults(root: str | Path = "/") -> dict[str, int] | None:
    """Return replayable faults of all GPUs since their driver's start and pages moved by them; None if not shown."""
    texts = []
    for path in sorted(Path(root, "proc/driver/nvidia-uvm/gpus").glob("*/fault_stats")):
        try:
            texts.append(path.read_text())
        except OSError:
            return None
    counts = dict.fromkeys(LINES, 0)
    for text in texts:
        for kind, name in LINES.items():
            found = re.search(rf"^\s*{name}\s+(\d+)", text, re.M)
            if found is None:
                return None
            counts[kind] += int(found.group(1))
    return counts if texts else None


class FaultCounter:
    """Counter of page faults from its creation until `per` is called."""

    def __init__(self, root: str | Path = "/"):
        self._root = root
        self._gpu, self._host = gpu_faults(root), self._host_faults()

    @staticmethod
    def _host_faults() -> int:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_minflt + usage.ru_majflt

    def per(self, steps: int) -> dict[str, float | None]:
        """Return a step's faults: "host", and "gpu", "pages_to_gpu", "pages_to_host", which are None if not shown."""
        now = gpu_faults(self._root)
        known = self._gpu is not None and now is not None
        gpu = {kind: (now[kind] - self._gpu[kind]) / steps if known else None for kind in LINES}
        return {"host": (self._host_faults() - self._host) / steps, **gpu}


def as_text(faults: dict[str, float | None]) -> str:
    """Format a result of `FaultCounter.per` as one line."""
    text = f"page faults of a step: host {faults['host']:.1f} (all of the process), GPU "
    if faults["gpu"] is None:
        return text + WHY_NOT
    return text + (
        f"{faults['gpu']:.1f} (all processes); pages moved to it {faults['pages_to_gpu']:.1f}, back "
        f"{faults['pages_to_host']:.1f}"
    )
