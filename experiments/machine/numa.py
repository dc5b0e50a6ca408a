"""NUMA: where the pages of a process go, and where they came to lie.

A machine with one node, or whose kernel shows none, is asked for nothing. Functions that read files take `root`, the
folder that stands for `/`.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .proc import parsed, read_fields, read_text
from .topology import available_cpus, parse_cpu_list, places_of, topology_of

if TYPE_CHECKING:
    import numpy as np

    from ...cython_src.binding.bind import BoundPlan
    from ...cython_src.plan.model import Plan

INTERLEAVE, FIRST_TOUCH, NODE0 = POLICIES = ("interleave", "first_touch", "node0")
# The kernel's modes: MPOL_INTERLEAVE, MPOL_DEFAULT, MPOL_PREFERRED.
MODES = {INTERLEAVE: 3, FIRST_TOUCH: 0, NODE0: 1}
# Numbers of the system calls.
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
MOVE_PAGES = {"x86_64": 279, "aarch64": 239}
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NODE_FOLDER = "sys/devices/system/node"


def memory_nodes(root="/", cpus=None) -> list[int]:
    """Return the nodes that have memory which this process may use, and CPUs of those that it may run on.

    Nodes without CPUs, such as a GPU's memory, get no share of a process's pages.
    """
    cpus = available_cpus() if cpus is None else cpus
    near = {c["node"] for c in topology_of(cpus, root)["cpus"] if c["cpu"] in cpus}
    with_memory = parsed(parse_cpu_list, read_text(Path(root, NODE_FOLDER, "has_memory")))
    allowed = parsed(parse_cpu_list, read_fields(Path(root, "proc/self/status"), ":").get("Mems_allowed_list"))
    return sorted(near.intersection(*(set(nodes) for nodes in (with_memory, allowed) if nodes)))


def set_memory_policy(policy: str, nodes: Sequence[int]) -> str:
    """Place the pages that this thread, and those that it starts, touch first: on `nodes` page by page, on the node of
    the thread, or on the first of `nodes` as long as it has some free. Return why the kernel refuses it, or an empty
    text."""
    if len(nodes) < 2:
        return ""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"no number of the system call set_mempolicy is known for {platform.machine()}"
    bits = 0 if policy == FIRST_TOUCH else sum(1 << node for node in nodes[: 1 if policy == NODE0 else None])
    words = bits.bit_length() // 64 + 1
    mask = (ctypes.c_uint64 * words)(*(bits >> 64 * word & 2**64 - 1 for word in range(words)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, MODES[policy], mask if bits else None, ctypes.c_ulong(64 * words + 1 if bits else 0)) == 0:
        return ""
    return f"set_mempolicy: {os.strerror(ctypes.get_errno())}"


def nodes_of_pages(arrays: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of the pages of some arrays, ascending, and the node of each; -1 where the kernel does not
    say."""
    import numpy as np  # heavy, and no description of a machine needs it

    number = MOVE_PAGES.get(platform.machine())
    spans = [np.arange(*_pages(array), dtype=np.uint64) for array in arrays if array.nbytes]
    pages = np.unique(np.concatenate([*spans, np.zeros(0, np.uint64)]))  # arrays may share some
    nodes = np.full(len(pages), -1, np.int32)
    if len(pages) and number is not None:
        starts = pages * np.uint64(PAGE_BYTES)
        addresses, result = (ctypes.c_void_p(each.ctypes.data) for each in (starts, nodes))
        # Without nodes to move them to, the call says where they are.
        ctypes.CDLL(None).syscall(number, 0, ctypes.c_ulong(len(pages)), addresses, None, result, 0)
    return pages, nodes


def _pages(array: np.ndarray) -> tuple[int, int]:
    """Return the first page of an array, or a part of one, and the page after its last."""
    length = array.itemsize + sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    first = array.ctypes.data
    return first // PAGE_BYTES, (first + length - 1) // PAGE_BYTES + 1


def bytes_by_node(arrays: Iterable[np.ndarray]) -> dict[str, int]:
    """Return how many bytes of the pages of some arrays lie on each node; empty where the kernel does not say."""
    _, nodes = nodes_of_pages(arrays)
    counts = Counter(nodes[nodes >= 0].tolist())
    return {str(node): counts[node] * PAGE_BYTES for node in sorted(counts)}


def remote_bytes(plan: Plan, arrays: Mapping[str, np.ndarray], runs: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return, by kernel, how many bytes the blocks of a pass access, and how many of these on another node than the
    block, on average; without pages whose node the kernel does not say. A region counts by the pages from its first
    byte to its last. `runs`: the node on which each block ran, int, shape (passes, tasks)."""
    import numpy as np

    pages, nodes = nodes_of_pages(arrays.values())
    count = 1 + max(runs.max(initial=0), nodes.max(initial=0))
    result: dict[str, tuple[float, float]] = {}
    for loop in plan.loops:
        total, remote = result.get(loop.kernel, (0.0, 0.0))
        for task, block in enumerate(loop.blocks, loop.first_task):
            away = 1 - np.bincount(runs[:, task], minlength=count) / len(runs)
            for access in block.accesses:
                part = arrays[access.buffer][tuple(slice(*span) for span in access.box)]
                if part.size:
                    first, last = pages.searchsorted(_pages(part))
                    lie = nodes[first:last]
                    known = lie[lie >= 0]
                    total += part.nbytes * len(known) / len(lie)
                    remote += part.nbytes * float(away[known].sum()) / len(lie)
        result[loop.kernel] = total, remote
    return result


def remote_share(plan: Plan, arrays: Mapping[str, np.ndarray], cpus: Sequence[int]) -> float | None:
    """Return the share of the bytes that a step's blocks access which lie on another node than the CPU that a static
    schedule gives the block, the same for every model; None where the kernel does not say where pages lie."""
    import numpy as np

    from ...cython_src.binding.storage import home_of

    own_nodes = [node for _, node, _, _ in places_of(cpus)]
    homes = [home_of(loop, number, len(cpus)) for loop in plan.loops for number in range(loop.num_blocks)]
    by_kernel = remote_bytes(plan, arrays, np.array(own_nodes)[None, homes]).values()
    total, remote = (sum(each[k] for each in by_kernel) for k in range(2))
    return remote / total if total else None


def own_bytes_by_node(root="/") -> dict[str, int]:
    """Return how many bytes of this process's memory, except that of files, lie on each node; empty where the kernel
    does not say."""
    result: Counter[int] = Counter()
    for line in (read_text(Path(root, "proc/self/numa_maps")) or "").splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        page_bytes = 1024 * (parsed(int, fields.pop("kernelpagesize_kB", "4")) or 0)
        for name, text in {} if "file" in fields else fields.items():
            if name[:1] == "N" and (node := parsed(int, name[1:])) is not None:
                result[node] += page_bytes * (parsed(int, text) or 0)
    return {str(node): result[node] for node in sorted(result)}


def pages_of(job: Mapping[str, Any], bound: BoundPlan | None = None) -> dict[str, Any] | None:
    """Return the policy of a job, the bytes of a plan's arrays, or of all its memory, on each node, the share of
    accesses that are remote, and why the kernel refused the policy, if it did; None: there is one node."""
    if len(job.get("memory_nodes", ())) < 2:
        return None
    lie = own_bytes_by_node() if bound is None else bytes_by_node(bound.arrays.values())
    on_cpus = bound is not None and bound.target != "gpu" and job["cpus"]
    share = remote_share(bound.plan, bound.arrays, job["cpus"]) if on_cpus else None
    return {"policy": job["memory_policy"], "bytes_by_node": lie, "remote_share": share, "error": job["memory_error"]}


def nodes_memory(root="/") -> dict[str, dict[str, int | None]]:
    """Return "total_bytes" and "free_bytes" of each node, by its number."""
    result = {}
    for folder in sorted(Path(root, NODE_FOLDER).glob("node[0-9]*"), key=lambda folder: (len(folder.name), folder)):
        if not folder.name[4:].isdecimal():
            continue
        fields = {name.split()[-1]: text for name, text in read_fields(folder / "meminfo", ":").items() if name}
        result[folder.name[4:]] = {
            key: parsed(lambda text: int(text.split()[0]) * 1024, fields.get(name))
            for key, name in (("total_bytes", "MemTotal"), ("free_bytes", "MemFree"))
        }
    return result
