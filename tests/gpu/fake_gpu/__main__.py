"""Any command of forktask with the fake device as its GPU: `python -P tests/gpu/fake_gpu compare --device gpu`.

FORKTASK_EMULATED_BYTES in the environment limits its memory.
`-m MODULE` runs a measuring process instead, which reads its job from standard input, or another module.
"""

import os
import runpy
import shlex
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[0] = str(HERE.parent.parent)  # in place of this folder, whose modules belong to the package below


def take_fake_device() -> None:
    """Make the fake device the process's GPU, before any module has looked the real one up."""
    from gpu.fake_gpu.device import FakeDevice

    from forktask.cython_src.gpu import device as gpu_device

    limit = os.environ.get("FORKTASK_EMULATED_BYTES")
    fake = FakeDevice(clock=time.monotonic, **({"memory_bytes": int(limit)} if limit else {}))
    gpu_device.default_gpu = lambda: fake
    gpu_device.count_gpus = lambda: 1


def give_to_children(folder: str) -> None:
    """Let measuring processes, which commands start as `sys.executable -P -m forktask...`, come here."""
    python, here = shlex.quote(sys.executable), shlex.quote(str(HERE))
    stand_in = Path(folder) / "python"
    stand_in.write_text(
        f'#!/bin/sh\ncase "$1 $2 $3" in\n'
        f'"-P -m forktask."*) shift; exec {python} -P {here} "$@" ;;\n'
        f'*) exec {python} "$@" ;;\nesac\n'
    )
    stand_in.chmod(0o755)
    sys.executable = str(stand_in)


if sys.argv[1:3] == ["-m", "forktask"]:
    del sys.argv[1:3]
if sys.argv[1:2] == ["-m"]:
    take_fake_device()
    module = sys.argv[2]
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
else:
    from gpu.fake_gpu import emulator

    emulator.library()  # compiled here once: measuring processes load the same file
    with tempfile.TemporaryDirectory() as folder:
        give_to_children(folder)
        take_fake_device()
        from forktask.experiments.commands.main import main

        code = main()
    sys.stdout.flush()
    sys.exit(code)
