"""A GPU made of the CPU: the CUDA sources compiled by the host's compiler, and a device that reorders streams."""

import sys
from pathlib import Path

from gpu.fake_gpu import emulator


def measuring_command(module: str) -> list[str]:
    """Command of a measuring process whose GPU is the fake device."""
    emulator.library()  # compiled here once: such processes load the same file
    return [sys.executable, "-P", str(Path(__file__).parent), "-m", module]
