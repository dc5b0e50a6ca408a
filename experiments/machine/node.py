"""This machine's names, by which rows of several nodes are told apart."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from .proc import read_text

# Variables in which schedulers tell a job its node: Slurm, and pods of Kubernetes that are given it.
SCHEDULERS_NAMES = ("SLURMD_NODENAME", "NODE_NAME")


def this_node(root="/") -> dict[str, str]:
    """Return host, scheduler's node name and boot id; empty where there is none."""
    return {
        "host": platform.node(),
        "scheduler": next(filter(None, map(os.environ.get, SCHEDULERS_NAMES)), ""),
        "boot_id": read_text(Path(root, "proc/sys/kernel/random/boot_id")) or "",
    }
