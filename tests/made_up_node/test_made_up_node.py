"""An emulated node with two sockets, four NUMA nodes and SMT: what is read there, where threads and pages are."""

from pathlib import Path

import pytest
from made_up_node.emulator import CPUS_OF_NODE, NODES, run_in_node

pytestmark = [pytest.mark.made_up_node, pytest.mark.timeout(1200)]

CPUS = NODES * CPUS_OF_NODE
LIMIT_S = 1000.0  # two slow cores take three minutes


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return run_in_node(Path(__file__).with_name("guest.py"), tmp_path_factory.mktemp("node"), LIMIT_S)


def test_info_reads_the_topology(found):
    """Check sockets, nodes, cores, siblings, caches and each node's memory, in the object and on the page."""
    topology = found["info"]["topology"]
    assert topology["known"] and topology["online"] == [*range(CPUS)]
    assert [topology[name] for name in ("sockets", "nodes", "cores", "threads_per_core")] == [2, 4, 8, 2]
    for cpu in topology["cpus"]:
        number = cpu["cpu"]
        place = (cpu["socket"], cpu["node"], cpu["core"], cpu["siblings"])
        assert place == (number // 8, number // 4, number & ~1, [number & ~1, number | 1])
        assert cpu["llc"] == number // 8 * 8
    assert {*found["info"]["memory_of_nodes"]} == {*map(str, range(NODES))}
    assert "workers go to CPUs 0, 2, 4, 6, 8, 10, 12, 14, 1, 3" in found["page"]
    assert all(f"{node} has CPUs {4 * node}-{4 * node + 3} and " in found["page"] for node in range(NODES))


# The CPUs of four workers.
PLACED = {
    "cores close": [0, 2, 4, 6],
    "cores spread": [0, 4, 8, 12],
    "threads close": [0, 1, 2, 3],
    "threads spread": [0, 4, 8, 12],
    "llc close": [0, 2, 8, 10],
    "llc spread": [0, 4, 8, 12],
    "numa close": [0, 4, 8, 12],
    "numa spread": [0, 4, 8, 12],
    "sockets close": [0, 2, 8, 10],
    "sockets spread": [0, 4, 8, 12],
    "9,0,4-5 close": [9, 0, 4, 5],
    "9,0,4-5 spread": [9, 0, 4, 5],
}


def test_every_models_threads_are_where_places_and_bind_say(found):
    """Check the CPUs of all workers of every model, as the kernel showed them while blocks ran."""
    models = {key.split()[2] for key in found["pinning"]}
    assert {"forkjoin", "taskiter", "openmp_tasks", "joblib"} <= models == {*found["models"]}
    assert {key.rpartition(" ")[0] for key in found["pinning"]} == {*PLACED}
    for key, (requested, seen) in found["pinning"].items():
        how, _, model = key.rpartition(" ")
        assert requested == (PLACED[how][:1] if model == "serial" else PLACED[how]), key
        assert seen and all([cpu] in [[one] for one in requested] for (cpu,) in seen), key


def test_pages_lie_where_the_policy_says(found):
    """Check pages of two arrays, of which each block writes 50: on the nodes in turns, on the first alone, or each with
    the home of the block that writes it first, the second array's last block first."""
    pages = found["pages"]
    assert {one["error"] for one in pages.values()} == {""}
    for array in "xy":
        nodes = pages["interleave"]["nodes"][array]
        assert all(nodes.count(node) == pytest.approx(len(nodes) / NODES, abs=2) for node in range(NODES))
        assert {*pages["node0"]["nodes"][array]} == {0}
        homes = pages["first_touch"]["nodes"][array]
        # A page at a border belongs to the block before, or to the one behind, where arrays do not begin with a page.
        own = [{*homes[50 * block + 1 : 50 * block + 49]} for block in range(16)]
        assert own == [{block // 4 if array == "x" else (15 - block) // 4} for block in range(16)]
    assert {*pages["node0"]["bytes"]} == {"0"}
    total = sum(pages["interleave"]["bytes"].values())
    assert all(pages["interleave"]["bytes"][str(node)] == pytest.approx(total / 4, rel=0.05) for node in range(NODES))


def test_measuring_processes_are_placed(found):
    """Check CPUs, pages and bytes from other nodes in the rows of a comparison on four nodes by first touch."""
    assert len(found["rows"]) == 2
    for row in found["rows"]:
        assert row["cpus"] == PLACED["numa close"]
        assert (row["pages"]["policy"], row["pages"]["error"]) == ("first_touch", "")
        assert {*row["pages"]["bytes_by_node"]} == {*map(str, range(NODES))}
        assert 0 < row["pages"]["remote_share"] < 1
    assert len(found["remote"]) == 2
    for by_kernel in found["remote"]:
        assert all(0 <= remote <= total for total, remote in by_kernel.values())
        assert sum(remote for _, remote in by_kernel.values()) > 0


def test_a_cpuset_bounds_cpus_and_nodes(found):
    """Check a control group of the middle two nodes, and that a list of CPUs outside it is refused."""
    assert found["here"]["cpus"] == [*range(CPUS)] and found["here"]["nodes"] == [0, 1, 2, 3]
    inside = found["cpuset"]
    assert (inside["cpus"], inside["nodes"], inside["numa"]) == ([*range(4, 12)], [1, 2], [4, 8])
    assert inside["order"] == [4, 6, 8, 10, 5, 7, 9, 11]
    assert "may use, 4-11, got 0-3 in 0-3; leave them out" in inside["refused"]


def test_a_cpu_may_go_and_come_between_two_commands(found):
    """Check the order of CPUs while a core is unplugged, and while one of its siblings is back."""
    gone = [*range(6), *range(8, CPUS)]
    assert found["unplugged"]["cpus"] == gone
    assert found["unplugged"]["order"] == [0, 2, 4, 8, 10, 12, 14, 1, 3, 5, 9, 11, 13, 15]
    assert "14 logical CPUs, 7 cores" in found["page_unplugged"] and "1 has CPUs 4-5 and" in found["page_unplugged"]
    assert found["plugged"]["cpus"] == sorted([*gone, 6])
