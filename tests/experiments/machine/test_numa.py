"""Memory on NUMA nodes: which take part, policies, what is read back, and refusals. Real nodes: tests/made_up_node."""

import ctypes
import os

import numpy as np
import pytest
from experiments.machine.test_environment import topology_files, write_tree
from experiments.machine.test_info import make_environment, make_machine
from experiments.synthetic_results import sweep_of, synthetic_rows

from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, read, update
from forktask.experiments.machine import fitness, limits, machine_peaks, numa
from forktask.experiments.machine.info import format_page
from forktask.experiments.report.words import machine_text
from forktask.experiments.sampling import generation
from forktask.experiments.sampling.generation import contestant_of
from forktask.experiments.subjects.models import parse_model
from forktask.experiments.subjects.subject import homes_of

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


def test_one_node_is_asked_for_nothing(monkeypatch):
    """Check that no system call is made, no row filled and no home used where there is one node."""
    monkeypatch.setattr(numa.ctypes, "CDLL", lambda *_, **__: pytest.fail("a library was opened"))
    for nodes in ([], [0]):
        assert all(numa.set_memory_policy(policy, nodes) == "" for policy in numa.POLICIES)
        job = {"memory_policy": "first_touch", "memory_nodes": nodes, "cpus": [0, 1], "memory_error": ""}
        assert numa.pages_of(job) is None and homes_of(job) == []
    assert homes_of({**job, "memory_nodes": [0, 1]}) == [0, 1]
    assert homes_of({**job, "memory_nodes": [0, 1], "memory_policy": "interleave"}) == []
    assert homes_of({**job, "memory_nodes": [0, 1], "cpus": None}) == []


class Kernel:
    """A C library whose system call keeps what it is given, and fails as asked."""

    def __init__(self, error=0):
        self.calls, self.error = [], error

    def __call__(self, *_, **__):
        return self

    def syscall(self, number, mode, mask, bits):
        self.calls.append((number, mode, None if mask is None else list(mask), bits.value))
        numa.ctypes.set_errno(self.error)
        return -1 if self.error else 0


def test_policies_are_the_kernels(monkeypatch):
    """Check mode, mask and its length of each policy, beyond 64 nodes too, against the kernel's numbers."""
    kernel = Kernel()
    monkeypatch.setattr(numa.ctypes, "CDLL", kernel)
    monkeypatch.setattr(numa.platform, "machine", lambda: "x86_64")
    for policy in numa.POLICIES:
        assert numa.set_memory_policy(policy, [1, 3, 65]) == ""
    assert kernel.calls == [(238, 3, [10, 2], 129), (238, 0, None, 0), (238, 1, [2], 65)]


def test_a_refused_policy_is_kept_and_warned_about(monkeypatch):
    """Check a kernel without permission, an unknown processor, and the warning and sentence of a report."""
    monkeypatch.setattr(numa.ctypes, "CDLL", Kernel(1))
    monkeypatch.setattr(numa.platform, "machine", lambda: "aarch64")
    error = numa.set_memory_policy("interleave", [0, 1])
    assert error == "set_mempolicy: Operation not permitted"
    monkeypatch.setattr(numa.platform, "machine", lambda: "vax")
    assert "vax" in numa.set_memory_policy("interleave", [0, 1])
    pages = {"policy": "interleave", "bytes_by_node": {"0": 300, "1": 100}, "remote_share": 0.26, "error": error}
    rows = [row | ({"pages": pages} if row["kind"] == "sample" else {}) for row in synthetic_rows()]
    next(row["config"] for row in rows if row["kind"] == "run").update(places="numa", bind="spread")
    sweep = sweep_of(rows)
    assert any("The kernel refused the memory policy (set_mempolicy" in text for text in sweep.warnings)
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


def test_pages_of_arrays_are_counted_once(monkeypatch):
    """Check which pages the kernel is asked for: those of all arrays, shared ones once; and one that refuses."""
    page, requested = os.sysconf("SC_PAGE_SIZE"), []
    memory = np.zeros(6 * page, np.uint8)
    start = -memory.ctypes.data % page
    arrays = [memory[start + 1 : start + page + 1], memory[start + page : start + 3 * page], memory[:0]]

    class Pages(Kernel):
        def syscall(self, number, pid, count, addresses, targets, states, flags):
            requested.extend((ctypes.c_uint64 * count.value).from_address(addresses.value))
            if not self.error:
                (ctypes.c_int32 * count.value).from_address(states.value)[:] = [1, 0, -2]

    for error, result in ((0, {"0": page, "1": page}), (1, {})):
        monkeypatch.setattr(numa.ctypes, "CDLL", Pages(error))
        assert numa.bytes_by_node(arrays) == result
    first = memory.ctypes.data + start
    assert requested == 2 * [first, first + page, first + 2 * page]
    assert numa.bytes_by_node([]) == {}


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


def test_each_pair_of_nodes_is_measured(monkeypatch):
    """Check whose CPU reads whose memory, that pages are asked for there, and what a refusal leaves."""
    calls, refusal = [], []
    topology = {"cpus": [{"cpu": 3, "node": 0}, {"cpu": 4, "node": 0}, {"cpu": 7, "node": 1}]}
    monkeypatch.setattr(limits, "memory_nodes", lambda: [0, 1])
    monkeypatch.setattr(limits, "topology_of", lambda cpus: topology)
    monkeypatch.setattr(limits, "set_memory_policy", lambda *policy: calls.append(policy) or "".join(refusal))
    monkeypatch.setattr(limits.machine_peaks, "measure_bandwidth", lambda n, s, size, cpus: calls.append(cpus) or 1e9)
    monkeypatch.setattr(limits.machine_peaks, "measure_load_latency", lambda s, size, cpu: 1e-7)
    of_one = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-7}
    assert limits._measure_between_nodes(0.1, 100) == {n: {"0": of_one, "1": of_one} for n in "01"}
    pages = [("node0", [0, 0]), ("node0", [1, 0]), ("node0", [0, 0]), ("node0", [1, 0])]
    assert calls == [pages[0], [3], pages[1], [3], pages[2], [7], pages[3], [7], ("first_touch", [0, 1])]
    refusal.append("set_mempolicy: Operation not permitted")
    assert limits._measure_between_nodes(0.1, 100) == {}


def test_a_load_of_memory_is_timed():
    """Check that a load which needs the one before takes longer out of memory than out of the first cache."""
    near, far = (machine_peaks.measure_load_latency(0.02, size) for size in (16 << 10, 64 << 20))
    assert 0 < near < far < 1e-3


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
