"""Program that runs in the made-up node and prints what it finds: a JSON object in each line that begins with `>`."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.storage import Storage
from forktask.cython_src.errors import UsageError
from forktask.cython_src.kernels.interface.kernel_spec import KernelSpec, register
from forktask.cython_src.plan.builder import PlanBuilder
from forktask.cython_src.plan.model import Block, update, write
from forktask.experiments.machine.info import format_page
from forktask.experiments.machine.numa import bytes_by_node, memory_nodes, set_memory_policy
from forktask.experiments.machine.proc import read_fields
from forktask.experiments.machine.topology import PLACES, available_cpus, cpu_order, parse_cpu_list
from forktask.experiments.results.folder import read_results
from forktask.experiments.results.rows import ProfileRow, SampleRow, values_of
from forktask.experiments.subjects.models import built_models, make_executor, parse_model, process_environment

MOVE_PAGES = 279  # number of the system call on x86_64
PAGE = 4096
THREADS, BLOCKS, PAGES = 4, 16, 50  # pages of a block
seen: dict[int, list[int]] = {}


def say(**result):
    print(">" + json.dumps(result), flush=True)


def look(operands, attributes, bounds, iteration):
    """Kernel that notes where the system lets its thread run: nOS-V answers sched_getaffinity() itself, and otherwise.
    Sleeping lets other threads come."""
    status = read_fields(Path("/proc/thread-self/status"), ":")
    seen[threading.get_native_id()] = parse_cpu_list(status["Cpus_allowed_list"])
    time.sleep(0.005)


def pinning(hows, *models):
    """Where the threads of models are, by places and bind."""
    register(KernelSpec(name="test_look", operands=("out",), integers=(), bounds=("i",), reference=look))
    builder = PlanBuilder("looking")
    builder.buffer("out", (BLOCKS,), role="statistic")
    for step in range(3):
        blocks = [Block((i,), (update("out", (i, i + 1)),)) for i in range(BLOCKS)]
        builder.loop(f"step{step}", "test_look", {"out": "out"}, blocks)
    bound, result = bind(builder.build(), target="numpy"), {}
    for how in hows.split(";"):
        places, bind_ = how.split()
        cpus = cpu_order(THREADS, places=places, bind=bind_)
        for model in models:
            own = cpus[:1] if model == "serial" else cpus
            with make_executor(model, len(own), cpus=own) as executor:
                executor.prepare(bound)
                seen.clear()
                executor.run(1)
            result[f"{how} {model}"] = [own, sorted(seen.values())]
    return result


def nodes_of(array):
    """The node of each page of an array, as the kernel says."""
    pages = np.arange(array.ctypes.data, array.ctypes.data + array.nbytes, PAGE, dtype=np.uint64)
    status = np.empty(len(pages), np.int32)
    none = ctypes.c_void_p(None)
    arguments = (
        ctypes.c_ulong(len(pages)),
        ctypes.c_void_p(pages.ctypes.data),
        none,
        ctypes.c_void_p(status.ctypes.data),
    )
    assert ctypes.CDLL(None).syscall(MOVE_PAGES, 0, *arguments, 0) == 0
    return status.tolist()


def pages(policy):
    """Where the arrays of a plan lie under a policy: the node of each page, by array and block that writes it."""
    cpus = cpu_order(THREADS, places="numa")
    os.sched_setaffinity(0, {*cpus})
    error = set_memory_policy(policy, memory_nodes())
    builder = PlanBuilder("pages")
    for name in "xy":
        builder.buffer(name, (BLOCKS, PAGES * PAGE), "uint8", role="temporary")
    rows = [(k, k + 1) for k in range(BLOCKS)]
    builder.loop("x", "k", {"x": "x"}, [Block((), (write("x", row),)) for row in rows])
    blocks = [Block((), (update("x", row), write("y", row))) for row in reversed(rows)]
    builder.loop("y", "k", {"x": "x", "y": "y"}, blocks)
    arrays = Storage(homes=cpus if policy == "first_touch" else ()).arrays_for(builder.build())
    result = {name: nodes_of(array) for name, array in arrays.items()}
    return {"error": error, "bytes": bytes_by_node(arrays.values()), "nodes": result}


def here():
    """What a process here sees of its CPUs and nodes."""
    try:
        cpu_order(1, places="0-3")
        refused = ""
    except UsageError as error:
        refused = str(error)
    return {
        "cpus": available_cpus(),
        "nodes": memory_nodes(),
        "order": cpu_order(len(available_cpus())),
        "numa": cpu_order(2, places="numa"),
        "refused": refused,
    }


def forktask(*words):
    done = subprocess.run([sys.executable, "-P", "-m", "forktask", *words], capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout


def info():
    """What the command says: the environment, and the page made from the same object."""
    text = json.loads(forktask("info", "--json"))
    return {"info": text["environment"], "page": format_page(text)}


def in_child(what, *arguments, **variables):
    """What a function of this file returns in a process of its own."""
    command = [sys.executable, "-P", __file__, what, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})
    return json.loads(done.stdout.splitlines()[-1])


def pinning_of_all():
    """Where the threads of every model are; a runtime to preload starts once in a process, so that it has two ways."""
    hows = [f"{places} {bind_}" for places in (*PLACES, "9,0,4-5") for bind_ in ("close", "spread")]
    preloads = {model: process_environment(parse_model(model)) for model in built_models()}
    result = in_child("pinning", ";".join(hows), *(model for model, preload in preloads.items() if not preload))
    for model, preload in preloads.items():
        for how in ("numa close", "9,0,4-5 close") if preload else ():
            result |= in_child("pinning", how, model, **preload)
    return result


def in_cpuset():
    """What a process in a cpuset of the middle two nodes sees."""
    root = Path("/sys/fs/cgroup")
    (root / "cgroup.subtree_control").write_text("+cpuset")
    part = root / "part"
    part.mkdir()
    (part / "cpuset.cpus").write_text("4-11")
    (part / "cpuset.mems").write_text("1-2")
    before = (root / "cgroup.procs", os.getpid())
    (part / "cgroup.procs").write_text(str(os.getpid()))
    try:
        return in_child("here")
    finally:
        before[0].write_text(str(before[1]))


def main():
    Path("/sys/kernel/mm/transparent_hugepage/enabled").write_text("never")
    say(here=in_child("here"), cpuset=in_cpuset())
    say(pages={policy: in_child("pages", policy) for policy in ("interleave", "first_touch", "node0")})
    say(models=built_models(), pinning=pinning_of_all())
    say(**info())
    plan = ("--network", "lenet5", "--batch", "16", "--threads", "4", "--models", "forkjoin,taskiter")
    place = ("--places", "numa", "--memory-policy", "first_touch")
    forktask("compare", *plan, *place, "--quick", "--no-report", "--out", "/tmp/compare")
    results = read_results("/tmp/compare")
    rows = map(values_of, results.of(SampleRow))
    say(rows=[{name: value for name, value in row.items() if name in ("cpus", "pages")} for row in rows])
    say(remote=[row.remote_bytes for row in results.of(ProfileRow)])
    for cpu in (6, 7):
        Path(f"/sys/devices/system/cpu/cpu{cpu}/online").write_text("0")
    say(unplugged=in_child("here"), page_unplugged=info()["page"])
    Path("/sys/devices/system/cpu/cpu6/online").write_text("1")
    say(plugged=in_child("here"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
    else:
        main()
