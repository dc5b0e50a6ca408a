"""The CUDA sources: compiled by NVRTC for real architectures, and run by the CPU for their arithmetic."""

import ctypes
import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cython_src.kernels.kernel_testing import EPSILON
from cython_src.networks_for_tests import fill
from gpu.fake_gpu import emulator, traffic
from gpu.nvrtc import compile_for

from cython_src.kernels import kernel_testing
from cython_src.kernels.convolution import test_nhwc
from cython_src.kernels.depthwise import test_nhwc as test_depthwise
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.binding.checks import run_serial
from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import launches as gpu_launches
from forktask.cython_src.kernels.convolution.specs import NCHW16_FORMS
from forktask.cython_src.kernels.linear import grids
from forktask.cython_src.kernels.linear.grids import TILES
from forktask.cython_src.kernels.maps.nhwc import NhwcMap
from forktask.cython_src.lowering.lower import lower
from forktask.cython_src.networks.parts import convolutional_classifier

SMALL = convolutional_classifier("small", (2, 8, 32), (5, 4), 3)
DAY = Path(__file__).resolve().parents[2] / "tools" / "gpu_day"


# --- compiled for GPUs


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("file", "target", "products"),
    [
        *itertools.product(gpu_launches.SOURCE_FILES, ("compute_75", "sm_90"), ("",)),
        *itertools.product(gpu_launches.multiplying(), ("sm_80", "sm_90"), gpu_launches.ARITHMETIC),
        *itertools.product([str(DAY / "persistent.cu")], ("sm_80", "sm_90"), ("",)),
    ],
)
def test_sources_compile_without_warnings(file, target, products):
    """Check that NVRTC makes machine code (sm) or PTX (compute) of every CUDA function and has nothing to say about it;
    that machine code keeps everything in registers, and few enough for three CUDA blocks on a multiprocessor, or two of
    attention."""
    kind = target.partition("_")[0]
    status, log, code = compile_for(file, target, products)
    assert status == 0, log
    spoken = log.strip("\0 \n")
    if kind == "sm":
        assert re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", spoken).count(
            ("0", "0")
        ) == spoken.count("spill stores")
        blocks = 2 if "attention" in file else 3
        assert max(map(int, re.findall(r"Used (\d+) registers", spoken))) <= 65536 // blocks // gpu_launches.THREADS
        spoken = re.sub(r"^ptxas( info +:|  +\.) .*$", "", spoken, flags=re.M).strip()
    assert not spoken, log
    text = (gpu_launches.SOURCE_FOLDER / file).read_text()
    for name in map(str.encode, re.findall(r"^KERNEL(?:_OF|_MANY)?\((\w+)", text, re.M)):
        assert b".text." + name + b"\0" in code if kind == "sm" else b".entry " + name + b"(" in code


@pytest.mark.nvrtc
@pytest.mark.parametrize("target", ["compute_80", "compute_90"])
def test_kernels_wait_before_they_touch_memory(target):
    """Check that from sm_90 on each kernel lets the next one start, and waits for the one before, first of all."""
    _, log, code = compile_for("kernels/optimizer/optimizer.cu", target)
    entries = code.decode().split(".entry ")[1:]
    assert len(entries) == 7, log
    for entry in entries:
        found = re.findall(r"griddepcontrol\.\w+|(?:ld|st|atom|red)\.(?:global|volatile|shared)", entry)
        begins = ["griddepcontrol.launch_dependents", "griddepcontrol.wait"] if target == "compute_90" else []
        assert len(found) > 3 and [f for f in found if "grid" in f] == begins == found[: len(begins)]


def rounded_to_tf32(array):
    """Nearest numbers with 10 bits of mantissa, ties away from zero."""
    return ((array.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32)


@pytest.mark.cxx
@pytest.mark.parametrize("products", gpu_launches.ARITHMETIC)
def test_products_on_tensor_cores_round_their_factors(products, monkeypatch):
    """Check a product whose numbers lie in every place of a tile, for each tile: with TF32 that of the rounded factors,
    with three products that of the factors."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal((rows, 21)).astype(np.float32) for rows in (140, 70))
    factors = [a.astype(float) if products == "3xtf32" else rounded_to_tf32(a).astype(float) for a in (x, w)]
    attributes = {"inputs": 21, "outputs": 70, "output_pitch": 70, "activation": 0}
    bounds = {"r0": 0, "r1": 140, "c0": 0, "c1": 70}
    tiles = set()
    monkeypatch.setattr(grids, "blocks_wanted", lambda: 0)
    for first in range(len(TILES)):
        monkeypatch.setattr(grids, "TILES", TILES[first:])
        got = np.full((140, 70), np.nan, np.float32)
        operands = {"input": x, "weight": w, "output": got}
        emulator.emulated("linear_forward", 3, products=products).reference(operands, attributes, bounds, 0)
        tiles.add(got.tobytes())
        error = abs(got - factors[0] @ factors[1].T) / (abs(factors[0]) @ abs(factors[1]).T)
        assert error.max() < 4 * EPSILON
    assert len(tiles) == 1  # results do not depend on the tile


def test_what_has_no_cuda_form_is_refused():
    """Check the sentences for unknown kernels, forms and lanes."""
    bounds = np.array([[0, 1]], np.int32)
    with pytest.raises(UsageError, match="no CUDA form"):
        gpu_launches.launches_of("test_hash", {}, bounds)
    with pytest.raises(
        UsageError, match="'pad' of kernel 'conv_relu_pool' has no CUDA form.*, or with phase 'forward'"
    ):
        gpu_launches.launches_of("conv_relu_pool", {"algorithm": NCHW16_FORMS.index("pad")}, bounds)
    with pytest.raises(UsageError, match="algorithm 'winograd2' of kernel 'nhwc_conv_forward' has no CUDA form"):
        gpu_launches.launches_of("nhwc_conv_forward", {"algorithm": 1}, bounds)
    with pytest.raises(UsageError, match="lanes of 'fc_forward' must divide 128"):
        gpu_launches.launches_of("fc_forward", {"lanes": 3}, bounds)
    with pytest.raises(
        UsageError, match="window of a depthwise convolution must have a kernel of at most 19 .*, got 20;"
    ):
        gpu_launches.launches_of("nhwc_depthwise_forward", {"kernel": 20, "stride": 1}, bounds)
    with pytest.raises(UsageError, match="kernel 'task_bench_1' has no CUDA form; use the CPU"):
        gpu_launches.launches_of("task_bench_1", {"kernel": 2}, bounds)


# --- run by the CPU


def two_steps(plan, target="cpu"):
    bound = bind(plan, target=target)
    fill(bound)
    run_serial(bound, 2)
    return bound


@pytest.mark.cxx
@pytest.mark.parametrize(
    "defect",
    [
        (
            "        __syncthreads();\n        if (!active)\n            continue;",
            "        if (!active)\n            continue;",
        ),
        ("        __syncthreads();\n        float quarter = 0;", "        float quarter = 0;"),
        ("        __syncthreads();\n        if (strip < half)", "        if (strip < half)"),
    ],
)
def test_a_missing_barrier_shows(defect):
    """Check that the emulation finds barriers that were taken out (negative control)."""
    plan = lower(SMALL, batch=2, num_images=3, num_iterations_logged=4, layout="nchw")
    right = two_steps(emulator.with_cuda_kernels(plan)).arrays
    wrong = two_steps(emulator.with_cuda_kernels(plan, 1, defect=defect)).arrays
    assert any(right[name].tobytes() != wrong[name].tobytes() for name in plan.buffers)


@pytest.mark.cxx
@pytest.mark.parametrize(
    "defect",
    [
        ("    if (threadIdx.x == 0) {\n        a.loss_log", "    if (threadIdx.x == 77) {\n        a.loss_log"),
        ("    if (threadIdx.x == 0)\n        a.squares", "    if (threadIdx.x == 77)\n        a.squares"),
    ],
)
def test_every_thread_has_the_sum(defect):
    """Check that any thread may read what a CUDA block has added up: compute-sanitizer reports a read that is too
    early, though nobody uses its value."""
    options = {"optimizer": "adamw", "eps": 0.01, "clip_norm": 1.0, "layout": "nchw"}
    plan = lower(SMALL, batch=2, num_images=3, num_iterations_logged=4, **options)
    right = two_steps(emulator.with_cuda_kernels(plan)).arrays
    for seed in range(4):
        other = two_steps(emulator.with_cuda_kernels(plan, seed, defect=defect)).arrays
        assert all(right[name].tobytes() == other[name].tobytes() for name in plan.buffers)


@pytest.mark.cxx
def test_a_barrier_that_some_threads_miss_is_refused():
    """Check that divergence at a barrier is an error of the emulation (negative control)."""
    defect = ("    if (o0 >= b.c1)", "    if (o0 >= b.c1 || threadIdx.x == 5)")
    plan = lower(SMALL, batch=2, num_images=3, num_iterations_logged=4, layout="nchw")
    with pytest.raises(RuntimeError) as failure:
        two_steps(emulator.with_cuda_kernels(plan, defect=defect))
    assert "while others wait at a barrier" in str(failure.value.__cause__)


@pytest.mark.cxx
def test_bad_labels_and_indices_fail():
    """Check that kernels that meet a label or an index out of range report status, task and iteration."""
    plan = emulator.with_cuda_kernels(lower(SMALL, batch=3, num_images=4, num_iterations_logged=4, layout="nchw"))
    for name, loop in (("dataset.labels", "softmax"), ("batch_order", "load")):
        bound = bind(plan)
        fill(bound)
        bound.arrays[name].flat[:] = 77
        with pytest.raises(RuntimeError, match=rf"{loop}\[0\] failed in iteration 0 with status"):
            run_serial(bound, 1)


@pytest.mark.cxx
@pytest.mark.parametrize("parts", [False, True])
def test_convolutions_of_any_geometry(parts, monkeypatch):
    """Check packing, forward pass and both gradients, with every size of tile, and with sums of which CUDA blocks have
    parts, against the NumPy forms in float64."""
    launched, launch = set(), emulator.launch

    def note(symbol, args, *rest):
        if not parts or args["parts"] > 1:
            launched.add(symbol.rpartition("_")[0] if parts else symbol)
        launch(symbol, args, *rest)

    monkeypatch.setattr(emulator, "launch", note)
    monkeypatch.setattr(kernel_testing, "INSTRUCTION_SETS", ("cuda",))
    monkeypatch.setattr(grids, "blocks_wanted", lambda: 16 if parts else 0)
    monkeypatch.setattr(grids, "PART_TERMS", grids.STEP)
    for first in range(len(TILES)):
        monkeypatch.setattr(grids, "TILES", TILES[first:])
        # The last one has channels enough for every tile.
        for case in (*map(test_nhwc.random_case, range(12)), test_nhwc.Case(1, 1, 36, 72, 7, 7, 1, 1, 0, 1)):
            test_nhwc.check_case(case, "direct")
    tiles = [""] if parts else [f"_{m}x{n}" for m, n in TILES]
    products = "forward", "backward_data", "backward_weights"
    assert {f"nhwc_conv_{name}{tile}" for name in products for tile in tiles} <= launched


@pytest.mark.cxx
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2), (7, 3), (19, 4)])
def test_depthwise_convolutions_in_tiles(kernel, stride, monkeypatch):
    """Check maps of several tiles, of eight rows or fewer, against the NumPy forms in float64."""
    monkeypatch.setattr(kernel_testing, "INSTRUCTION_SETS", ("cuda",))
    window = {"kernel": kernel, "stride": stride, "padding": kernel // 2}
    large = NhwcMap("large", 2, 70, 23, 19, 1)
    small = replace(large, name="small", height=-(-23 // stride), width=-(-19 // stride))
    check = test_depthwise.test_depthwise.hypothesis.inner_test
    check((large, small, window, int(kernel == 5), np.random.default_rng(kernel)), True, False, 1)


@pytest.mark.cxx
def test_memory_and_products_of_a_launch_are_counted(monkeypatch):
    """Check a product of 128 x 64 numbers: eight CUDA blocks read 64 rows of one factor and 16 of the other,
    of which each thread copies four times and once four numbers, after it has read the block's bounds."""
    device = traffic.CountingDevice()

    def launch(symbol, args, tiles, rows, shared_bytes, *_):
        device.launch((symbol, tiles, shared_bytes, args), rows, None)

    monkeypatch.setattr(emulator, "launch", launch)
    monkeypatch.setattr(traffic, "GROUPS", 2)  # all are alike
    arrays = {}
    for name, shape in {"input": (128, 32), "weight": (64, 32), "output": (128, 64)}.items():
        numbers = (ctypes.c_float * (shape[0] * shape[1])).from_address(device.allocate(4 * shape[0] * shape[1]))
        arrays[name] = np.frombuffer(numbers, np.float32).reshape(shape)
    attributes = {"inputs": 32, "outputs": 64, "output_pitch": 64, "activation": 0}
    bounds = {"r0": 0, "r1": 128, "c0": 0, "c1": 64}
    emulator.emulated("linear_forward", products="own").reference(arrays, attributes, bounds, 0)
    assert device.counted == [(4 * (8 * (64 + 16) * 32 + 128 * 64), 2 * 128 * 64 * 32, 8, 1 + 4 + 1)]


@pytest.mark.cxx
def test_gradients_through_a_norm_and_a_depthwise_convolution(monkeypatch):
    """Check windows of any geometry, and maps of several tiles, against the NumPy forms in float64."""
    monkeypatch.setattr(kernel_testing, "INSTRUCTION_SETS", ("cuda",))
    test_depthwise.test_norm_backward()
    for stride, before in itertools.product((1, 2), (False, True)):
        large = NhwcMap("large", 2, 20, 37, 70)
        small = replace(large, name="small", height=-(-37 // stride), width=-(-70 // stride))
        window = {"kernel": 3, "stride": stride, "padding": 1}
        test_depthwise.check_norm_backward(large, small, window, before, 2, np.random.default_rng(stride))
