"""What stages of tools/gpu_day.sh do in Python: `python -m steps NAME ...`, with this folder in PYTHONPATH.

hold                      open the device and keep it open
files                     print each file of CUDA functions, and FILE@PRODUCTS for each other arithmetic
warm FILE                 compile and load one of these; CuPy keeps the result on disk
smoke BATCH STEPS         every model of a GPU leaves the same bits, and the processor's numbers within rounding
kernels BATCH SECONDS NETWORK ...
                          table of a step by CUDA function: times on one stream, bytes and flops of its loops
form FILE INTO            copy a sweep or study, without models that this installation has not, on no more threads than
                          this machine has
"""

import os
import re
import sys
import time
from pathlib import Path

import numpy as np

from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.gpu import launches
from forktask.experiments.sampling.gpu_profile import kernel_times
from forktask.experiments.subjects import models
from forktask.experiments.subjects.subject import build

ROUNDING = 1e-3  # of losses after a few steps


def hold():
    """Keep the device open: its clock and the driver's state stay up between processes."""
    gpu_device.default_gpu()
    while True:
        time.sleep(3600)


def files():
    others = [f"{file}@{products}" for file in launches.multiplying() for products in launches.ARITHMETIC]
    print(*launches.SOURCE_FILES, *others, sep="\n")


def warm(form):
    import cupy

    file, _, products = form.partition("@")
    code = launches.source(file, products=products)
    cupy.RawModule(code=code, options=launches.COMPILE_OPTIONS, backend="nvrtc").compile()


def smoke(batch, steps):
    def run(name):
        spec = models.runnable(name)
        plan = {"network": "cifar10_cnn", "batch": int(batch), "conv": "direct"}
        bound = build({"model": spec, "threads": 1, "cpus": None, "plan": plan, "seed": 1}, spec)
        with models.make_executor(spec, 1) as executor:
            executor.prepare(bound)
            executor.run(int(steps))
        names = [*bound.plan.attributes["parameters"], "losses"]
        result = {name: np.array(bound.arrays[name]) for name in names}
        getattr(bound, "close", lambda: None)()
        return spec.model, result

    _, serial = run("serial")
    _, stream = run("gpu_stream")
    wrong = 0
    for name in [*models.DEFAULT_GPU_MODELS, "gpu_hostload", "gpu_hostload:memory=pinned", "gpu_both"]:
        model, result = run(name)
        same = all(result[one].tobytes() == stream[one].tobytes() for one in result)
        error = float(abs(result["losses"][: int(steps)] / serial["losses"][: int(steps)] - 1).max())
        right = (same or model.mixes_devices) and error < ROUNDING
        wrong += not right
        print(f"{name}: {'the bits of' if same else 'other bits than'} gpu_stream, losses within {error:.1e} of serial")
    if wrong:
        sys.exit(f"{wrong} models are wrong")


def kernels(batch, seconds, *networks):
    print("network,kernels,launches,us,GB,GFLOP")
    spec = models.runnable("gpu_stream")
    for network in networks:
        plan = {"network": network, "batch": int(batch), "conv": "direct"}
        bound = build({"model": spec, "threads": 1, "cpus": None, "plan": plan, "seed": 1}, spec)
        times, passes, _ = kernel_times(bound, float(seconds))
        rows = {}
        for loops in bound.groups:
            given, run = bound.launches_for(loops), [bound.plan.loops[loop] for loop in loops]
            symbols = " + ".join(getattr(how, "symbol", "cuBLAS") for how in given)
            size, flops = 1e-9 * sum(loop.bytes for loop in run), 1e-9 * sum(loop.flops for loop in run)
            own = len(given), 1e6 * sum(times[loops]) / passes, size, flops
            rows[symbols] = np.add(rows.get(symbols, (0, 0, 0, 0)), own)
        for symbols, (count, us, size, flops) in sorted(rows.items(), key=lambda row: -row[1][1]):
            print(f"{network},{symbols},{count:.0f},{us:.1f},{size:.4f},{flops:.3f}")
        bound.close()


def form(path, into):
    text = Path(path).read_text()
    for listed in re.findall(r"^models? = \[(.*)\]$", text, re.M):
        kept = []
        for quoted in listed.split(", "):
            try:
                models.runnable(quoted.strip('"'))
                kept.append(quoted)
            except UsageError as error:
                print(f"skipped: {quoted}: {error}")
        text = text.replace(f"[{listed}]", f"[{', '.join(kept)}]")
    cores = len(os.sched_getaffinity(0))
    text = re.sub(r"^threads = (\d+)$", lambda m: f"threads = {min(int(m[1]), cores)}", text, flags=re.M)
    Path(into).write_text(text)


if __name__ == "__main__":
    {f.__name__: f for f in (hold, files, warm, smoke, kernels, form)}[sys.argv[1]](*sys.argv[2:])
