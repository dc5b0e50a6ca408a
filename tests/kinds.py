"""Kinds of tests that need more than a plain installation has, each with a marker of its name."""

import ctypes
import glob
import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from made_up_node import emulator

LONG = bool(os.environ.get("FORKTASK_LONG_TESTS"))


class Kind(NamedTuple):
    """A kind of tests.

    Parameters
    ----------
    need : str
        What its tests need and how it is had; the reason of their skips.
    is_available : callable
    """

    need: str
    is_available: Callable[[], bool]


def libomp() -> str | None:
    """Path of LLVM's OpenMP runtime."""
    return next(iter(sorted(glob.glob("/usr/lib/*/libomp.so.5") + glob.glob("/usr/lib/llvm-*/lib/libomp.so"))), None)


def models_of_this_process() -> list[str]:
    """Models of the CPU that run in a process into which nothing was preloaded."""
    from forktask.experiments.machine.build_info import BUILD
    from forktask.experiments.subjects.models import MODELS, built_models, parse_model, process_environment

    libomp = BUILD["compiler"] == "clang"  # its only OpenMP library
    names = [name for name in built_models() if not (libomp and "runtime" in MODELS[name].fields)]
    return [name for name in names if not process_environment(parse_model(name))]


def forms_of_models(*options: str, has: Callable = lambda model: True, of_outside: bool = False) -> list[str]:
    """Models of this process for which `has` holds; and each with one of these options at another value, 2 where it is
    any number; those of outside runtimes only if `of_outside`. Tests of what all models must do take them from here."""
    from forktask.experiments.subjects.models import MODELS

    models = [model for name in models_of_this_process() if has(model := MODELS[name])]
    return [model.name for model in models] + [
        f"{model.name}{':region=persistent' * (value == 'needed')}:{name}={value}"
        for model in models
        for name, field in model.fields.items()
        for value in field.choices or (2,)
        if name in options and value != field.default and (of_outside or not model.is_reference)
    ]


def threads_of(model: str, threads: int) -> int:
    """So many threads, or as many as the model can have."""
    from forktask.experiments.subjects.models import parse_model

    return min(threads, parse_model(model).model.max_threads or threads)


def nvrtc() -> str | None:
    """Path of the CUDA run-time compiler of NVIDIA's wheel."""
    return next(iter(_nvidia_files("libnvrtc.so.*")), None)


def load_nvrtc() -> ctypes.CDLL:
    """Load that compiler, after its built-in functions: loaded by path, it may not find them itself."""
    for path in _nvidia_files("libnvrtc-builtins.so.*"):
        if Path(path).parent == Path(nvrtc()).parent:
            ctypes.CDLL(path)
    return ctypes.CDLL(nvrtc())


def _nvidia_files(pattern: str) -> list[str]:
    folders = {Path(sysconfig.get_path(which)) / "nvidia" for which in ("purelib", "platlib")}
    return sorted(str(path) for folder in folders for path in folder.glob(f"**/{pattern}"))


def relacy_folders() -> list[Path]:
    """Folders that hold `relacy/relacy.hpp`."""
    folders = [Path(name) for name in ("/usr/include", "/usr/local/include", os.environ.get("RELACY_INCLUDE", ""))]
    return [folder for folder in folders if (folder / "relacy" / "relacy.hpp").exists()]


def compute_sanitizer() -> str | None:
    """Path of NVIDIA's compute-sanitizer."""
    return shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


def is_quiet() -> bool:
    """Whether threads of no other process wait for a CPU: less than a tenth of the time, as this process sleeps."""
    pressure = Path("/proc/pressure/cpu")
    if not pressure.exists():
        return True

    def waited_s() -> float:
        return int(pressure.read_text().split("total=")[1].split()[0]) * 1e-6

    before, start = waited_s(), time.monotonic()
    time.sleep(1)
    return waited_s() - before < 0.1 * (time.monotonic() - start)


@cache
def has_gpu() -> bool:
    """Whether CuPy finds a GPU."""
    from forktask.cython_src.errors import UsageError
    from forktask.cython_src.gpu.device import default_gpu

    try:
        default_gpu()
    except UsageError:
        return False
    return True


@cache
def has_thread_sanitizer() -> bool:
    """Whether the C compiler links programs with -fsanitize=thread."""
    if shutil.which("cc") is None:
        return False
    command = ["cc", "-fsanitize=thread", "-x", "c", "-", "-o", "/dev/null"]
    program = "int main(void) { return 0; }"
    return subprocess.run(command, input=program, capture_output=True, text=True).returncode == 0


def has_malloc_counter() -> bool:
    """Whether the library that counts calls of malloc was built."""
    from forktask.experiments.scaling.exact import counter_library

    return counter_library() is not None


def _has_module(name: str) -> Callable[[], bool]:
    return lambda: find_spec(name) is not None


def _is_built(model: str) -> Callable[[], bool]:
    def found() -> bool:
        from forktask.experiments.subjects.models import MODELS

        return MODELS[model].is_built

    return found


KINDS = {
    "cc": Kind("needs the C compiler cc (Debian: gcc)", lambda: shutil.which("cc") is not None),
    "cxx": Kind("needs the C++ compiler g++ (Debian: g++)", lambda: shutil.which("g++") is not None),
    "tsan": Kind("needs a C compiler with -fsanitize=thread (Debian: gcc)", has_thread_sanitizer),
    "malloc_count": Kind("needs the counter of allocations, which builds on glibc", has_malloc_counter),
    "relacy": Kind(
        "needs Relacy (Debian: relacy-dev, or RELACY_INCLUDE names the folder that holds relacy/)",
        lambda: shutil.which("g++") is not None and bool(relacy_folders()),
    ),
    "libomp": Kind("needs LLVM's OpenMP runtime (Debian: libomp-dev)", lambda: libomp() is not None),
    "tbb": Kind("needs oneTBB and a build with a C++ compiler (Debian: g++)", _is_built("tbb")),
    "taskflow": Kind(
        "needs a build with Taskflow's headers (CPLUS_INCLUDE_PATH names their folder)", _is_built("taskflow")
    ),
    "starpu": Kind("needs a build with StarPU (Debian: libstarpu-dev)", _is_built("starpu")),
    "ompss2": Kind(
        "needs a build with nOS-V and NODES (PKG_CONFIG_PATH, CPATH and LIBRARY_PATH name their folders)",
        _is_built("ompss2"),
    ),
    "stranger": Kind(
        "needs an installation from a fresh clone (make stranger)", lambda: bool(os.environ.get("FORKTASK_FRESH_CLONE"))
    ),
    "two_cpus": Kind("needs two CPUs", lambda: len(os.sched_getaffinity(0)) >= 2),
    "quiet": Kind("needs a quiet machine: threads of other processes wait for CPUs", is_quiet),
    "browser": Kind(
        "needs Chromium's driver (Debian: chromium-driver) and selenium (pip install selenium)",
        lambda: shutil.which("chromedriver") is not None and find_spec("selenium") is not None,
    ),
    "slurm": Kind(
        "needs Slurm's daemons and root (Debian: munge slurm-client slurmctld slurmd)",
        lambda: os.geteuid() == 0 and all(map(shutil.which, ("munged", "sbatch", "slurmctld", "slurmd"))),
    ),
    "simplejpeg": Kind("needs simplejpeg (pip install simplejpeg)", _has_module("simplejpeg")),
    "torch": Kind("needs PyTorch (pip install torch)", _has_module("torch")),
    "jax": Kind("needs JAX (pip install jax)", _has_module("jax")),
    "zoo": Kind(
        "needs torchvision and transformers (pip install torchvision transformers)",
        lambda: all(find_spec(name) is not None for name in ("torch", "torchvision", "transformers")),
    ),
    "tokenizers": Kind("needs tokenizers (pip install tokenizers)", _has_module("tokenizers")),
    "nbclient": Kind(
        "needs nbclient and ipykernel (pip install nbclient ipykernel)",
        lambda: find_spec("nbclient") is not None and find_spec("ipykernel") is not None,
    ),
    "dask": Kind("needs Dask's distributed (pip install distributed)", _has_module("distributed")),
    "numba": Kind("needs Numba (pip install numba)", _has_module("numba")),
    "nvrtc": Kind("needs NVRTC (pip install nvidia-cuda-nvrtc-cu12)", lambda: nvrtc() is not None),
    "cupy": Kind("needs CuPy (pip install cupy-cuda12x)", _has_module("cupy")),
    "rehearsal": Kind(
        "needs g++ (Debian: g++), and minutes: tools/gpu_day.sh on the emulated GPU",
        lambda: shutil.which("g++") is not None,
    ),
    "made_up_node": Kind(
        "needs QEMU, a static busybox and a kernel in /boot, and minutes (Debian: qemu-system-x86 busybox-static "
        "linux-image-amd64)",
        emulator.is_available,
    ),
    "gpu": Kind("needs an NVIDIA GPU and CuPy (make test-gpu)", has_gpu),
    "compute_sanitizer": Kind(
        "needs a GPU and NVIDIA's compute-sanitizer", lambda: has_gpu() and compute_sanitizer() is not None
    ),
}
