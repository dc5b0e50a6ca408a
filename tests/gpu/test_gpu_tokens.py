"""CUDA kernels of networks of tokens: run by the CPU, they pass the tests of the CPU's kernels."""

import ctypes

import pytest
from cython_src.tokens_for_tests import fill
from gpu.fake_gpu import emulator
from gpu.fake_gpu.device import FakeDevice
from gpu.test_gpu_models import assert_conflicts_are_ordered
from gpu.test_gpu_networks import make_plan, steps

from cython_src.kernels import kernel_testing
from cython_src.kernels.attention import test_attention
from cython_src.kernels.elementwise import test_rows as test_elements
from cython_src.kernels.embedding import test_embedding
from cython_src.kernels.linear import test_linear
from cython_src.kernels.loss import test_loss
from cython_src.kernels.norm import test_rows as test_norm
from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.cython_src.binding.checks import run_serial
from forktask.cython_src.gpu import blas as gpu_blas
from forktask.cython_src.gpu import device as gpu_device
from forktask.cython_src.gpu.bind import GpuBoundPlan, device_bytes
from forktask.cython_src.kernels.linear import grids
from forktask.experiments.subjects.models import make_executor, storage_for


@pytest.fixture
def form(request, monkeypatch):
    """A CUDA form in place of the CPU's instruction sets."""
    for module in (kernel_testing, test_attention, test_embedding, test_linear, test_loss):
        monkeypatch.setattr(module, "INSTRUCTION_SETS", (request.param,))


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("form", "tile", "threads"),
    [("cuda", 0, 0), ("cuda", 1, 0), ("cuda", 2, 0), ("cuda", 0, 2000), ("cuda", 2, 2000), ("cublas", 0, 0)],
    indirect=["form"],
)
@pytest.mark.parametrize(
    "test",
    [
        test_linear.test_forward_equals_numpy_form,
        test_linear.test_data_gradient_equals_numpy_form,
        test_linear.test_weight_gradient_equals_numpy_form,
    ],
)
def test_linear_layers_of_any_shape(test, tile, threads, form, monkeypatch):
    """Check the kernels of linear layers with each size of tile, and with sums of which CUDA blocks have parts, against
    the NumPy forms in float64."""
    monkeypatch.setattr(grids, "blocks_wanted", lambda: threads / 128)
    monkeypatch.setattr(grids, "PART_TERMS", grids.STEP)
    monkeypatch.setattr(grids, "TILES", grids.TILES[tile:])
    test()


@pytest.mark.cxx
@pytest.mark.parametrize("form", ["cuda"], indirect=True)
@pytest.mark.parametrize(
    "test",
    [
        test_attention.test_kernels_equal_numpy_forms,
        lambda: [test_attention.test_bits_do_not_depend_on_the_cut("cuda", causal) for causal in (0, 1)],
        lambda: test_attention.test_large_scores_do_not_overflow("cuda"),
        test_norm.test_forward_equals_numpy_form,
        test_norm.test_backward_equals_numpy_form,
        test_loss.test_kernels_equal_numpy_forms,
        lambda: test_linear.test_gelu_and_its_derivative("cuda"),
        test_linear.test_bits_do_not_depend_on_the_cut,
        *(
            lambda case=case, n=n: test_elements.test_layers_equal_numpy_forms(*case, n)
            for case in test_elements.KERNELS
            for n in (1, 83)
        ),
        *(lambda n=n, p=p: test_embedding.test_forward_is_exact(n, p) for n in (1, 20) for p in (True, False)),
        *(
            lambda n=n, rows=rows, adds=adds: test_embedding.test_token_gradient_adds_rows_in_order(n, rows, adds)
            for n, rows in ((1, 21), (20, 21), (3, 5000))
            for adds in (0, 1)
        ),
        test_embedding.test_position_gradient_adds_samples_in_order,
        *(
            lambda types=types: test_embedding.test_positions_and_types_are_added("cpu", "cuda", types)
            for types in (0, 1)
        ),
        lambda: test_embedding.test_neighbours_are_those_of_the_sample("cpu", "cuda"),
        test_norm.test_no_norm_equals_numpy_forms,
        *(
            lambda n=n, share=share: test_loss.test_ignored_rows_have_neither_loss_nor_gradient(n, share)
            for n in (1, 7)
            for share in (0.0, 0.4, 1.0)
        ),
    ],
)
def test_kernels_pass_the_tests_of_the_cpus(test, form):
    """Check shapes, cuts and extremes of all other kernels."""
    test()


@pytest.mark.cxx
def test_what_is_out_of_range_stops_the_run():
    """Check the status of samples, tokens and targets that do not exist."""
    plan = emulator.with_cuda_kernels(make_plan("gpt2", granularity="images=1"))
    for name, value, failure in (
        ("batch_order", 5, r"load\[\d\] failed in iteration 0 with status 2"),
        ("batch_order", -1, r"load\[\d\] failed in iteration 0 with status 2"),
        ("dataset.tokens", 37, r"wte\[\d\] failed in iteration 0 with status 3"),
        ("dataset.tokens", -1, r"wte\[\d\] failed in iteration 0 with status 3"),
    ):
        bound = bind(plan)
        fill(bound)
        bound.arrays[name].flat[:] = value
        with pytest.raises(BlockFailure, match=failure):
            run_serial(bound, 1)
    for token in (-1, 40):
        test_loss.test_targets_outside_the_vocabulary_stop_the_run(("cpu", "cuda"), token)


@pytest.mark.cxx
@pytest.mark.parametrize("products", ["own", "tf32"])
@pytest.mark.parametrize(
    "defect",
    [
        ("await_copies<1>();", ";"),
        ("await_copies<1>();", "await_copies<2>();"),
        ("commit_copies();", ";"),
        ("__syncthreads(); /* `current`", "; /* `current`"),
    ],
)
def test_a_step_that_is_not_there_shows(defect, products):
    """Check that the emulation finds a product that does not wait for the copies of its step (negative control)."""
    plan = make_plan("gpt2")
    right = steps(emulator.with_cuda_kernels(plan, products=products), count=1)
    wrong = steps(emulator.with_cuda_kernels(plan, 1, defect=defect, products=products), count=1)
    assert any(right[name].tobytes() != wrong[name].tobytes() for name in plan.buffers)


def test_parts_of_sums_count_as_memory(monkeypatch):
    """Check that a plan that just fits is refused, before anything is allocated, where its sums have parts."""
    plan = make_plan("gpt2")
    tables = 20 << 10  # of loops that are launched together
    small = {"execute": False, "memory_bytes": device_bytes(plan) + tables}
    GpuBoundPlan(plan, None, FakeDevice(**small), products="own")
    monkeypatch.setattr(grids, "PART_TERMS", grids.STEP)
    with pytest.raises(MemoryError, match="the plan needs .* of the memory of the GPU"):
        GpuBoundPlan(plan, None, FakeDevice(**small), products="own")


@pytest.mark.cxx
@pytest.mark.parametrize("defect", [("", ""), (" ^ (i * CHUNKS / 8 % CHUNKS)", "")])
def test_warps_load_matrices_without_bank_conflicts(defect, monkeypatch):
    """Check that what a warp loads at once for tensor cores lies in different banks, in tiles of 128 x 64 and in those
    of attention, and that the emulation counts where it does not (negative control)."""
    monkeypatch.setattr(grids, "blocks_wanted", lambda: 0)
    conflicts = ctypes.c_ulonglong.in_dll(emulator.library(defect, "tf32"), "bank_conflicts")
    before = conflicts.value
    steps(emulator.with_cuda_kernels(make_plan("gpt2"), defect=defect, products="tf32"), count=1)
    assert (conflicts.value > before) == bool(defect[0])


MODELS = {
    "forkjoin": "gpu_forkjoin",
    "tasks, three streams": "gpu_tasks:taskwait=none:streams=3",
    "taskgraph": "gpu_taskgraph",
    "taskiter": "gpu_taskiter:unroll=2",
    "prefetch": "gpu_hostload:memory=pinned",
}


def run_model(plan, model, count=3, **options):
    bound = GpuBoundPlan(plan, storage_for(model) if "memory" in model else None, options.pop("device"), **options)
    fill(bound)
    with make_executor(model, 1) as executor:
        executor.prepare(bound)
        executor.run(count)
    return bound


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("network", "products", "epilogues"),
    [
        *(("gpt2", name, "kernel") for name in ("cublas", "tf32", "3xtf32")),
        ("gpt2", "cublas", "cublaslt"),
        ("mobilebert", "cublas", "kernel"),
    ],
)
def test_models_agree_bit_for_bit(network, products, epilogues, monkeypatch):
    """Check that launches of blocks, several streams, captured graphs and input from the host leave the bits of one
    stream, whatever multiplies, with sums of which CUDA blocks have parts."""
    monkeypatch.setattr(gpu_blas, "FILLING", 0)
    monkeypatch.setattr(grids, "PART_TERMS", grids.STEP)
    plan = make_plan(network, granularity="images=1,heads=2", clip_norm=1.0)
    result = {}
    for seed, model in enumerate(("gpu_stream", *MODELS.values())):
        device = FakeDevice(seed)
        monkeypatch.setattr(gpu_device, "default_gpu", lambda device=device: device)
        bound = run_model(plan, model, device=device, products=products, epilogues=epilogues)
        result[model] = {b.name: bound.arrays[b.name].copy() for b in plan.buffers.values() if b.persistent}
    for name, array in result.pop("gpu_stream").items():
        for model, arrays in result.items():
            assert arrays[name].tobytes() == array.tobytes(), (model, name)


def test_an_epilogue_that_the_library_lacks_is_left_to_a_kernel(monkeypatch):
    """Check that bias gradients are summed by a kernel where only these are not to be had."""
    monkeypatch.setattr(gpu_blas, "FILLING", 0)
    device = FakeDevice()
    device.lacks_epilogues = (gpu_blas.SUM_OF_LEFT,)
    bound = GpuBoundPlan(make_plan("gpt2"), None, device, epilogues="cublaslt")
    functions = {getattr(how, "symbol", "") for launches in bound.launches for how in launches}
    assert {"linear_output", "linear_data_gradient", "linear_bias_gradient"} & functions == {"linear_bias_gradient"}


@pytest.mark.parametrize("model", ["tasks, three streams", "taskiter"])
def test_every_conflict_is_ordered(model):
    """Check by brute force over cells that streams and events order all tasks of GPT-2 that touch the same cell."""
    plan = make_plan("gpt2", granularity="images=1,heads=2", clip_norm=1.0)
    bound = run_model(plan, MODELS[model], device=FakeDevice(3, execute=False), products="own")
    assert assert_conflicts_are_ordered(bound, 3) > 400
