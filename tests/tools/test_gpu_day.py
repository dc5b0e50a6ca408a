"""tools/gpu_day.sh, rehearsed whole: on the fake device, in an environment like that of a bare machine."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import pytest
from builds import share

from forktask.experiments.commands.main import main

ROOT = Path(__file__).parent.parent.parent
# What a bare machine has of the package's requirements and of its tests'.
THERE = "numpy threadpoolctl joblib jinja2 seaborn pandas matplotlib pillow safetensors"
THERE += " hypothesis pytest pytest-timeout pytest-xdist"
STAGES = {
    "1": "install hold warm smoke torch layers gpu_networks kernels limits persistent pdl profile",
    "2": "install hold warm tests before_after hetero sanitizer",
    "3": "install hold warm gpu_networks gpu_batch transfers scaling granularity metg cpu_gpu_batch",
}
TABLES = ("torch", "limits", "before_after")  # the last needs wheels
# Sizes of the forms in the rehearsal, where each step is emulated.
SMALL = {
    "network": '"lenet5"',
    "batch": "4",
    "repeats": "1",
    "target_s": "0.01",
    "warmup_s": "0.01",
    "check_iterations": "2",
    "budget_s": "600",
    "threads": "1",
    "granularity": '["images=16", "images=16,channels=4"]',
    "epochs": "1",
    "data": '"synthetic:16"',
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Python and folder of wheels: of a new environment of Python 3.12 that lacks msgspec and oneTBB; or, where
    that cannot be had, the Python at hand and no wheels."""
    folder = tmp_path_factory.mktemp("machine")
    python = str(folder / "venv" / "bin" / "python")
    for command in (
        ["python3.12", "-m", "venv", str(folder / "venv")],
        [python, "-m", "pip", "install", "--quiet", *THERE.split()],
        [str(ROOT / "tools" / "wheels.sh"), str(folder / "wheels"), python],
    ):
        try:
            # Where pyenv has several, it is told which one is meant.
            done = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, "PYENV_VERSION": "3.12", "PYTHONPATH": ""}
            )
            text = done.stderr.strip()[-300:] if done.returncode else ""
        except OSError as error:
            text = str(error)
        if text:
            warnings.warn(f"rehearsed with {sys.executable} and without wheels: {text}", stacklevel=1)
            return sys.executable, ""
    return python, str(folder / "wheels")


@pytest.fixture
def tools(tmp_path):
    """A copy of the script, whose sweeps are small."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    for form in (tmp_path / "tools" / "gpu_day").glob("*.toml"):
        text = form.read_text()
        for name, value in SMALL.items():
            text = re.sub(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.M)
        form.write_text(text)
    return tmp_path / "tools"


def run(tools, out, **variables):
    """Run the script; returns its exit code, and the rows of its summary."""
    environment = {**os.environ, "ROOT": str(ROOT), "FORKTASK_TEST_BUILDS": str(share()), **variables}
    done = subprocess.run([str(tools / "gpu_day.sh"), str(out)], capture_output=True, text=True, env=environment)
    rows = [line.split(",") for line in (out / "summary.csv").read_text().splitlines()]
    assert rows[0] == ["stage", "exit_code", "seconds"], done.stderr
    return done, {name: (int(code), float(seconds)) for name, code, seconds in rows[1:]}


@pytest.mark.rehearsal
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("call", STAGES)
def test_the_whole_day(call, machine, tools, tmp_path):
    """Check every stage on the emulated GPU: exit codes, what is packed, and that it can be reported elsewhere."""
    python, wheels = machine
    fake, work = f"{python} -P {ROOT / 'tests' / 'gpu' / 'fake_gpu'} -m", tmp_path / "work"
    settings = {"PYTHON": python, "WHEELS": wheels, "RUN": fake, "WORK": str(work), "SCALE": "20", "SMOKE": "4 2"}
    settings |= {"TURNS": "4 0.01 1", "NETWORKS": "lenet5", "WHEELS_BEFORE": wheels}
    done, summary = run(tools, tmp_path / "out", **settings, CALL=call, TEST_PROCESSES="2")
    print(done.stdout)
    logs = {file.name: file.read_text() for file in (work / "logs").iterdir()}
    failed = {name: code for name, (code, _) in summary.items() if code}
    lacks_cupy = {name for name in ("warm", "persistent") if "No module named 'cupy'" in logs.get(name, "")}
    assert {*failed} == lacks_cupy, "".join(logs[name][-2000:] for name in failed)
    assert " ".join(summary) == STAGES[call]
    for text in (done.stderr, *logs.values()):
        assert not re.search(r"gpu_day\.sh: line|environment: line|command not found|unbound variable", text), text
    sweeps = [name for name in summary if (tools / "gpu_day" / f"{name}.toml").exists()]
    archive = tmp_path / "out" / "gpu_day.tar.gz"
    assert archive.stat().st_size < 16 << 20
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        assert {f"./{sweep}/samples.jsonl" for sweep in sweeps} <= {*names} and "./machine.json" in names
        for table in {*TABLES[: None if wheels else 2]} & {*summary}:
            assert b"lenet5," in packed.extractfile(f"./{table}.csv").read()
        assert not [name for name in names if name.endswith((".svg", ".html", ".so"))]
        packed.extractall(tmp_path / "home", filter="data")
    for sweep in sweeps:
        assert main(["report", str(tmp_path / "home" / sweep)]) == 0
    assert "commit" in (work / "machine.json").read_text()


def test_a_stage_ends_at_its_cap(tools, tmp_path):
    """Check that one that hears no SIGINT is killed after 5 s, that others go on, and that all is packed."""
    text = (tools / "gpu_day.sh").read_text()
    (tools / "gpu_day.sh").write_text(re.sub(r"^(warm|smoke) \d+$", r"\1 1", text, flags=re.M))
    stand_in = tmp_path / "stand_in"
    deaf, slow = 'test "$2" = files && { trap "" INT; sleep 60; }', 'test "$2" = smoke && sleep 60'
    stand_in.write_text(f"#!/bin/sh\n{deaf}\n{slow}\nexit 0\n")
    stand_in.chmod(0o755)
    stages = "warm smoke 5"  # the fifth is torch
    settings = {"PYTHON": "true", "RUN": str(stand_in), "WORK": str(tmp_path / "work"), "STAGES": stages}
    done, summary = run(tools, tmp_path / "out", **settings)
    assert [code for code, _ in summary.values()] == [0, 0, 137, 124, 0] and done.returncode == 1
    assert list(summary) == ["install", "hold", "warm", "smoke", "torch"]
    assert 6 <= summary["warm"][1] < 60 and summary["smoke"][1] < 60 and done.stderr == ""
    with tarfile.open(tmp_path / "out" / "gpu_day.tar.gz") as packed:
        assert {"./summary.csv", "./logs/warm"} <= {*packed.getnames()}


@pytest.mark.torch
def test_layers_of_pytorch_are_those_of_our_networks(monkeypatch):
    """Check the convolutions and products that are timed: twelve in three passes, and eight; and their operations, by
    PyTorch's own count."""
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.syspath_prepend(ROOT / "tools" / "gpu_day")
    layers = importlib.import_module("layers")
    names = []
    for channels_last in (False, True):
        for network, layer, multiply_adds, call in layers.calls(2, "cpu", channels_last):
            with FlopCounterMode(display=False) as counted:
                call()
            pairs = re.fullmatch(
                r"layers.\d.conv2.weight_gradient", layer
            )  # of channels, which depthwise ones have not
            assert pairs or counted.get_total_flops() == 2 * multiply_adds, (network, layer)
            names.append((network, layer))
    assert len({*names}) == 12 * 3 + 8 == len(names) / 2
    assert ("resnet18", "layer1.0.conv1.weight_gradient") in names
