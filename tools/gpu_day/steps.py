"""What stages of tools/gpu_day.sh do in Python: `python -m steps NAME ...`, with this folder in PYTHONPATH.

hold                      open the device and keep it open
files                     print each file of CUDA functions, and FILE@PRODUCTS for each other arithmetic
warm FILE                 compile and load one of these; CuPy keeps the result on disk
smoke BATCH STEPS         every model of a GPU leaves the same bits, and the processor's numbers within rounding
networks BATCH SECONDS TURNS MODEL,... NETWORK ...
                          steps of models, also of PyTorch, in turns of one process: median, least and most; a model may
                          have variables before it, as "FORKTASK_GPU_PART_TERMS=64 gpu_stream"
"""

import os
import sys
import time
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np

from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.gpu import launches
from forktask.experiments.analysis.agreement import first_disagreement
from forktask.experiments.sampling.timing import Stepper
from forktask.experiments.subjects import models
from forktask.experiments.subjects.subject import answer, build

ROUNDING = 1e-3  # of losses after a few steps
CHECKED = 3  # losses of networks


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


@contextmanager
def prepared(name, network, batch):
    """A model's executor, prepared with a plan of the network."""
    spec = models.runnable(name)
    plan = {"network": network, "batch": int(batch), "conv": "direct"}
    bound = build({"model": spec, "threads": 1, "cpus": None, "plan": plan, "seed": 1}, spec)
    with models.make_executor(spec, 1) as executor:
        executor.prepare(bound)
        yield executor
    if spec.binds_on_gpu:
        bound.close()


def smoke(batch, steps):
    def run(name):
        with prepared(name, "cifar10_cnn", batch) as executor:
            executor.run(int(steps))
            names = [*executor.bound.plan.attributes["parameters"], "losses"]
            return executor.about, {name: np.array(executor.bound.arrays[name]) for name in names}

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


def networks(batch, seconds, turns, listed, *names):
    print("network,model,us,least_us,most_us,turns")
    wrong = 0
    for network in names:
        first, steppers = [], {}
        with ExitStack() as stack:
            for name in listed.split(","):
                *variables, model = name.split()
                try:
                    with patch.dict(os.environ, dict(variable.split("=") for variable in variables)):
                        executor = stack.enter_context(prepared(model, network, batch))
                except UsageError as error:
                    print(f"{network}: skipped: {name}: {error}", file=sys.stderr)
                    continue
                steppers[name] = Stepper(executor)
                steppers[name].run(CHECKED)
                executor.collect()
                losses = answer(executor.bound, CHECKED)
                first = first or losses
                if said := first_disagreement(first, losses):
                    wrong += 1
                    print(f"{network}: {name} {said}", file=sys.stderr)
            times = {name: [] for name in steppers}
            for _ in range(int(turns)):
                for name, stepper in steppers.items():
                    times[name] += stepper.pass_times(float(seconds), 1)
        for name, own in times.items():
            middle, least, most = (1e6 * f(own) for f in (np.median, min, max))
            print(f"{network},{name},{middle:.1f},{least:.1f},{most:.1f},{turns}", flush=True)
    if wrong:
        sys.exit(f"{wrong} models have other losses than the first")


if __name__ == "__main__":
    {f.__name__: f for f in (hold, files, warm, smoke, networks)}[sys.argv[1]](*sys.argv[2:])
