"""Memory on NUMA nodes: which take part, policies, what is read back, and refusals. Real nodes: tests/made_up_node."""

import os

import numpy as np
from experiments.machine.test_environment import topology_files, write_tree
from experiments.machine.test_info import make_environment, make_machine
from experiments.synthetic_results import sweep_of, synthetic_rows

from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update
from forktask.experiments.machine import fitness, numa
from forktask.experiments.machine.info import format_page
from forktask.experiments.report.words import machine_text
from forktask.experiments.sampling import generation
from forktask.experiments.sampling.generation import contestant_of
from forktask.experiments.subjects.models import parse_model

CPUS = range(8)
# Nodes of two CPUs each; 4 is a GPU's memory, 3 has none, 2 is not allowed.
NODES = topology_files({c: (0, c // 2, str(c)) for c in CPUS}) | {
    "sys/devices/system/node/node4/cpulist": "\n",
    "sys/devices/system/node/has_memory": "0-2,4\n",
    "proc/self/status": "Name: x\nMems_allowed_list:\t0-1,3-4\n",
}


def test_nodes_have_memory_and_cpus_that_may_be_used(tmp_path):
    """Check that nodes without memory, without CPUs, outside the cpuset or far from all usable CPUs take no part."""
    root = write_tree(tmp_path, NODES)
    assert numa.memory_nodes(root, CPUS) == [0, 1]
    assert numa.memory_nodes(root, [0, 1]) == [0]
    assert numa.memory_nodes(tmp_path / "nowhere", [0, 1]) == [0]
    without = {path: text for path, text in NODES.items() if "has_memory" not in path and "status" not in path}
    assert numa.memory_nodes(write_tree(tmp_path / "hidden", without), CPUS) == [0, 1, 2, 3]


def test_a_refused_policy_is_kept_and_warned_about(monkeypatch):
    """Check an unknown processor, and the warning and sentence of a report."""
    monkeypatch.setattr(numa.platform, "machine", lambda: "vax")
    error = numa.set_memory_policy("interleave", [0, 1])
    assert "vax" in error
    pages = {"policy": "interleave", "bytes_by_node": {"0": 300, "1": 100}, "remote_share": 0.26, "error": error}
    rows = [row | ({"pages": pages} if row["kind"] == "sample" else {}) for row in synthetic_rows()]
    next(row["config"] for row in rows if row["kind"] == "run").update(places="numa", bind="spread")
    sweep = sweep_of(rows)
    assert any("The kernel refused the memory policy (" in text for text in sweep.warnings)
    said = machine_text(sweep)
    assert "threads on places numa, spread, memory by interleave: 75% on node 0 and 25% on node 1" in said
    assert "26% of the bytes that blocks access are on another node than their CPU" in said


def test_the_remote_share_is_that_of_a_static_schedule(monkeypatch):
    """Check the bytes that blocks access on the other node, where one node has all pages and where each has its own."""
    builder = PlanBuilder("two")
    for name in ("out", "in"):
        builder.buffer(name, (2, numa.PAGE_BYTES), "uint8", role="statistic")
    rows = [(i, i + 1) for i in range(2)]
    blocks = [Block((i, i, i + 1), (update("out", rows[i]), read("in", rows[1 - i]))) for i in range(2)]
    builder.loop("swap", "hash_chain", {"out": "out", "in": "in"}, blocks)
    plan = builder.build()
    memory = np.zeros(5 * numa.PAGE_BYTES, np.uint8)
    start = -memory.ctypes.data % numa.PAGE_BYTES
    four = memory[start : start + 4 * numa.PAGE_BYTES].reshape(2, 2, numa.PAGE_BYTES)
    arrays = {"out": four[0], "in": four[1]}
    monkeypatch.setattr(numa, "places_of", lambda cpus: [(0, {3: 0, 7: 1}[cpu], -1, cpu) for cpu in cpus])
    pages = np.arange(4, dtype=np.uint64) + np.uint64(four.ctypes.data // numa.PAGE_BYTES)
    for nodes, expected in (([0, 0, 0, 0], 0.5), ([0, 1, 1, 0], 0.0), ([0, 1, 0, 1], 0.5), ([-1] * 4, None)):
        monkeypatch.setattr(numa, "nodes_of_pages", lambda arrays, nodes=nodes: (pages, np.array(nodes, np.int32)))
        assert numa.remote_share(plan, arrays, [3, 7]) == expected
    monkeypatch.setattr(numa, "nodes_of_pages", lambda arrays: (pages, np.array([0, 2, 2, -1], np.int32)))
    by_kernel = numa.remote_bytes(plan, arrays, np.array([[0, 0], [0, 2], [1, 2], [1, 2]]))  # four passes, two tasks
    page = numa.PAGE_BYTES
    assert by_kernel == {"hash_chain": (3 * page, page * (2 / 4 + 1 / 4 + 1 / 4))}
    monkeypatch.setattr(numa, "nodes_of_pages", lambda arrays: (pages, np.zeros(4, np.int32)))
    assert numa.remote_share(plan, arrays, [7, 7]) == 1.0 and numa.remote_share(plan, arrays, [3]) == 0.0


MAPS = """00400000 default file=/usr/bin/python mapped=9 N0=9 kernelpagesize_kB=4
55550000 interleave:0-1 anon=6 dirty=6 N0=2 N11=4 kernelpagesize_kB=4
55570000 default anon=1 N1=1 kernelpagesize_kB=2048

nonsense N=3 N1=x Nx=1
7fffffffe000 default stack anon=3 N0=3 kernelpagesize_kB=4
"""


def test_own_memory_is_read_back(tmp_path):
    """Check sums over mappings but for files, pages of two sizes, damaged lines, and a kernel that shows none."""
    root = write_tree(tmp_path, {"proc/self/numa_maps": MAPS})
    assert numa.own_bytes_by_node(root) == {"0": 5 * 4096, "1": 2 << 20, "11": 4 * 4096}
    assert numa.own_bytes_by_node(tmp_path / "nowhere") == {}


def test_info_shows_each_node(tmp_path):
    """Check CPUs, memory and own pages of several nodes, hidden ones, and that one node has no line."""
    meminfo = "Node 0 MemTotal:  2097152 kB\nNode 0 MemFree:  1048576 kB\n"
    root = write_tree(tmp_path, NODES | {"sys/devices/system/node/node0/meminfo": meminfo})
    environment = make_environment(
        memory_of_nodes=numa.nodes_memory(root), own_bytes_by_node={"0": 1 << 20, "1": 2 << 20}
    )
    environment["topology"]["cpus"][1]["node"] = 1
    described = {"environment": environment, "environment_id": "0", "machine": make_machine(), "gpus": []}
    described["verdict"] = fitness.verdict(environment, described["machine"])
    page = format_page(described)
    assert "Nodes       0 has CPUs 0 and 2 GiB, 1 GiB free; 1 has CPUs 1 and hidden, hidden free" in page
    assert "4 has CPUs none and hidden" in page and "pages of this process: 1 MiB on 0, 2 MiB on 1" in page
    described["environment"] = make_environment()
    assert "Nodes" not in format_page(described)


def test_every_contestant_gets_the_policy_and_the_nodes(monkeypatch):
    """Check the job of a measuring process: the default, and one that was asked for."""
    monkeypatch.setattr(generation, "memory_nodes", lambda: [0, 1])
    spec = parse_model("serial")
    job = contestant_of("a", spec, 1, limit_s=1.0).job
    assert (job["memory_policy"], job["memory_nodes"]) == ("interleave", [0, 1])
    assert contestant_of("a", spec, 1, limit_s=1.0, memory_policy="node0").job["memory_policy"] == "node0"


def test_this_machines_nodes_are_those_of_its_kernel():
    """Check that the kernel accepts every policy here, or says why not, and that own memory lies on known nodes."""
    nodes = numa.memory_nodes()
    known = {*map(str, numa.nodes_memory()), *map(str, nodes)}
    assert nodes and {*numa.own_bytes_by_node(), *numa.bytes_by_node([np.ones(100_000)])} <= known
    pid = os.fork()
    if pid == 0:
        texts = [numa.set_memory_policy(policy, [nodes[0], 63]) for policy in numa.POLICIES]
        os._exit(0 if all(text == "" or text.startswith("set_mempolicy: ") for text in texts) else 1)
    assert os.waitpid(pid, 0)[1] == 0
