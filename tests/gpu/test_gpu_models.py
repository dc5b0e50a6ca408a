"""GPU models on the fake device: right results in every order that streams allow, and every dependence enforced."""

import gc
from functools import partial

import numpy as np
import pytest
from gpu.fake_gpu import emulator
from gpu.fake_gpu.device import CaptureError, FakeDevice

from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.cython_src.binding.checks import run_serial
from forktask.cython_src.errors import UsageError
from forktask.cython_src.gpu import bind as gpu_bind
from forktask.cython_src.gpu import blas as gpu_blas
from forktask.cython_src.gpu import launches as gpu_launches
from forktask.cython_src.gpu.bind import GpuBoundPlan, device_bytes, device_storage, freed_with
from forktask.cython_src.gpu.blas import WORKSPACE_BYTES
from forktask.cython_src.gpu.launches import Launch
from forktask.cython_src.lowering.lower import initialise, lower
from forktask.cython_src.networks import resnet18
from forktask.cython_src.networks.parts import convolutional_classifier
from forktask.cython_src.plan.model import READ
from forktask.experiments.subjects.models import parse_model
from forktask.forkjoin.gpu_executor import GpuForkJoinExecutor, GpuStreamExecutor
from forktask.forkjoin.gpu_transfers import GpuHostLoadExecutor
from forktask.tasking.gpu_both import GpuBothExecutor
from forktask.tasking.gpu_executor import GpuTaskGraphExecutor, GpuTaskIterExecutor, GpuTasksExecutor

pytestmark = pytest.mark.cxx

SMALL = convolutional_classifier("small", (2, 8, 32), (5, 4), 3)
RESIDUAL = resnet18.network("small_resnet", 8, 3, width=16, blocks=(1, 1))
MODELS = {
    "forkjoin": (GpuForkJoinExecutor, {}),
    "stream": (GpuStreamExecutor, {}),
    "tasks": (GpuTasksExecutor, {}),
    "tasks, no taskwait": (GpuTasksExecutor, {"taskwait": "none"}),
    "tasks, three streams, no taskwait": (GpuTasksExecutor, {"taskwait": "none", "streams": 3}),
    "taskgraph": (GpuTaskGraphExecutor, {}),
    "taskiter": (GpuTaskIterExecutor, {"unroll": 2}),
    "taskiter, four streams": (GpuTaskIterExecutor, {"unroll": 3, "streams": 4}),
    "stream, launched early": (GpuStreamExecutor, {"launch": "pdl"}),
    "taskiter, launched early": (GpuTaskIterExecutor, {"unroll": 2, "launch": "pdl"}),
}


def small_plan(**options):
    options = {"granularity": "images=2", "layout": "nchw", "conv": "direct", **options}
    return lower(SMALL, batch=4, num_images=12, num_batches=3, num_iterations_logged=8, num_learning_rates=5, **options)


def residual_plan(**options):
    sizes = {"batch": 2, "num_images": 12, "num_batches": 6, "num_iterations_logged": 8, "num_learning_rates": 5}
    return lower(RESIDUAL, **sizes, granularity="images=1", conv="direct", **options)


def fill(bound):
    initialise(bound, 1)
    rng = np.random.default_rng(2)
    images, labels = rng.standard_normal(bound.arrays["dataset.images"].shape), rng.integers(0, 3, 12)
    rates = [0.1, 0.05, 0.02, 0.01, 0.005] if "learning_rates" in bound.arrays else None
    bound.load(images, labels, order=rng.permutation(12), learning_rate=rates)


def persistent(bound):
    return {b.name: bound.arrays[b.name].copy() for b in bound.plan.buffers.values() if b.persistent}


def run(plan, model, seed=0, iterations=5, storage=None, products="cublas", **options):
    executor, settings = MODELS[model]
    device = FakeDevice(seed, **options)
    bound = GpuBoundPlan(plan, device_storage(device, storage) if storage else None, device, products=products)
    fill(bound)
    with executor(**settings) as gpu:
        gpu.prepare(bound)
        gpu.run(2)
        gpu.run(iterations - 2, 2)
    return bound


@pytest.fixture(scope="module")
def expected():
    """Persistent buffers after five steps on one stream, and of the CPU's kernels."""
    cpu = bind(small_plan())
    fill(cpu)
    run_serial(cpu, 5)
    return persistent(run(small_plan(), "stream")), cpu.arrays


def assert_same_bits(arrays, other):
    for name in arrays:
        assert arrays[name].tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("model", MODELS)
def test_models_agree_bit_for_bit(model, expected):
    """Check five steps, in two runs, under every model: one stream's bits, and the CPU's numbers within rounding."""
    same, cpu = expected
    for seed in (1, 2):
        assert_same_bits(persistent(run(small_plan(), model, seed)), same)
    for name, array in same.items():
        if array.dtype == np.float32:
            error = np.linalg.norm(array - cpu[name]) / (np.linalg.norm(cpu[name]) + 1e-30)
            assert error < 1e-4, name


@pytest.mark.parametrize(
    "options",
    [
        {"weight_gradients": "chain"},
        {"memory": "shared"},
        {"fusion": "none", "layout": "nchw16", "granularity": "auto"},
    ],
)
def test_other_plans_agree_too(options):
    """Check chained gradients, shared memory and unfused loops under a model that overlaps iterations."""
    same = persistent(run(small_plan(**options), "stream"))
    assert_same_bits(persistent(run(small_plan(**options), "taskiter, four streams", 3)), same)


@pytest.mark.parametrize("model", ["stream", "taskiter, four streams", "both"])
@pytest.mark.parametrize(
    ("plan", "options", "saved"),
    [
        (small_plan, {"memory": "shared"}, 2),
        (small_plan, {"optimizer": "adamw", "clip_norm": 0.1, "granularity": "device"}, 10),
        (residual_plan, {}, 29),
        (residual_plan, {"phase": "evaluate"}, 10),
    ],
)
def test_loops_launched_together_leave_the_same_bits(plan, options, saved, model, monkeypatch):
    """Check updates, sums and packings of parameters of unequal sizes against a launch for each on one stream: with as
    many CUDA blocks as those have, and with few; and how many launches that saves."""
    monkeypatch.setitem(MODELS, "both", (GpuBothExecutor, {"host": 0}))
    together = run(plan(**options), model, 1, 3)
    monkeypatch.setattr(gpu_bind, "MAX_TILES", 3)
    few = run(plan(**options), model, 1, 3)
    monkeypatch.setattr(gpu_bind, "TOGETHER", ())
    alone = run(plan(**options), "stream", 1, 3)
    assert len(alone.groups) - len(together.groups) == len(alone.groups) - len(few.groups) == saved
    assert_same_bits(persistent(together), persistent(alone))
    assert_same_bits(persistent(few), persistent(alone))


def test_a_failure_in_a_joint_launch_names_its_task(monkeypatch):
    """Check that a block that fails in the third of the loops of a launch is named."""
    defect = "velocity[e] = g =", "if (a.first_task == 23) fail(a, 5); velocity[e] = g ="
    monkeypatch.setattr(emulator, "launch", partial(emulator.launch, defect=defect))
    with pytest.raises(BlockFailure, match=r"conv1.update\[0\] failed in iteration 0 with status 5"):
        run(small_plan(), "taskiter")


@pytest.mark.parametrize("products", ["tf32", "3xtf32"])
def test_models_agree_in_tf32(products):
    """Check that one stream and several give the same bits on tensor cores, and that older GPUs are refused."""
    bounds = [run(residual_plan(), model, 1, 2, products=products) for model in ("stream", "taskiter, four streams")]
    assert_same_bits(*map(persistent, bounds))
    assert products in bounds[0].instruction_set
    device = FakeDevice()
    device.has_tf32 = False
    with pytest.raises(UsageError, match=f"products '{products}' must run on a GPU of architecture sm_80 or newer"):
        GpuBoundPlan(residual_plan(), None, device, products=products)


def test_epilogues_of_the_library_are_asked_for_and_refused():
    """Check that a model's option reaches the plan, and the sentences where it cannot."""
    device = FakeDevice()
    plan, option = small_plan(), parse_model("gpu_stream:epilogues=cublaslt").binding.epilogues
    assert "epilogues=cublaslt" in GpuBoundPlan(plan, None, device, epilogues=option).instruction_set
    with pytest.raises(
        UsageError, match=r"^epilogues=cublaslt must have products=cublas or tf32, got 'own'; leave one"
    ):
        GpuBoundPlan(plan, None, device, "own", option)
    device.has_blas_lt = False
    with pytest.raises(
        UsageError, match=r"^epilogues=cublaslt must have .* libcublasLt, which cannot be loaded; install"
    ):
        GpuBoundPlan(plan, None, device, epilogues=option)


@pytest.mark.parametrize("kind", ["pinned", "managed"])
def test_other_host_memory_gives_the_same(kind, expected):
    """Check page-locked and managed memory; managed memory needs no copies of ours."""
    bound = run(small_plan(), "tasks, no taskwait", 4, storage=kind)
    assert_same_bits(persistent(bound), expected[0])
    assert (bound.copies["device"][0] == 0) == (kind == "managed")


@pytest.mark.parametrize("kind", ["pageable", "pinned"])
@pytest.mark.parametrize("copies", ["synchronous", "prefetch"])
def test_input_loaded_by_the_host_gives_the_same(copies, kind, expected):
    """Check copies of the input in every step, waited for or ahead of time, from pageable and page-locked memory."""
    for seed in range(3):
        device = FakeDevice(seed)
        bound = GpuBoundPlan(small_plan(), device_storage(device, kind), device)
        fill(bound)
        with GpuHostLoadExecutor(copies=copies) as executor:
            executor.prepare(bound)
            executor.run(2)
            copied = bound.copies["device"][0]
            executor.run(3, 2)
            assert bound.copies["device"][0] - copied == 3 * 2  # images and labels, nothing else
            assert_same_bits(persistent(bound), expected[0])


def test_host_load_overlaps_only_with_prefetch():
    """Check that with prefetch a copy may run while the step before computes, and that without it never does."""
    for copies in ("synchronous", "prefetch"):
        device = FakeDevice(1, execute=False)
        bound = GpuBoundPlan(small_plan(), device_storage(device, "pinned"), device)
        fill(bound)
        with GpuHostLoadExecutor(copies=copies) as executor:
            executor.prepare(bound)
            device.log.clear()
            executor.run(4)
        transfers = [o for o in device.log if o.label[0] == "to_device" and o.label[1] > 8]
        launches = [o for o in device.log if o.label[0] == "launch"]
        free = [
            (t.number, o.number)
            for t in transfers
            for o in launches
            if not (t.before >> o.number & 1 or o.before >> t.number & 1)
        ]
        assert bool(free) == (copies == "prefetch")


def launches_in_order(bound):
    """(operation, loop, first block, blocks, replay) of every launch of a plan's loop, in the order of the log; a loop
    may have several."""
    groups = {address: loops for loops, address in bound._bounds_address.items()}
    seen = {}
    for operation in bound.device.log:
        if operation.label[0] == "launch" and operation.label[1] != "advance_counter":
            args, rows, _ = operation.label[2:]
            loops, block = groups[int(args["bounds"])], int(args["first_block"])
            key = loops, block, operation.label[1]
            seen[key] = replay = seen.get(key, -1) + 1
            for loop in loops:
                yield operation, loop, block, rows if len(loops) == 1 else bound.plan.loops[loop].num_blocks, replay


def assert_conflicts_are_ordered(bound, iterations):
    """Every two tasks that touch a cell, one of them writing, must be ordered as in the plan, by streams and events."""
    table, first = bound.plan.accesses, [loop.first_task for loop in bound.plan.loops]
    operations = {}  # the first and the last of each task and replay
    for operation, loop, block, rows, replay in launches_in_order(bound):
        for k in range(block, block + rows):
            start, _ = operations.get((first[loop] + k, replay), (operation, operation))
            operations[first[loop] + k, replay] = start, operation
    assert len(operations) == bound.num_tasks * iterations
    touched = {}
    checked = 0
    for replay in range(iterations):
        for task in range(bound.num_tasks):
            for access in range(table.task_offsets[task], table.task_offsets[task + 1]):
                cells = table.list_cells[slice(*table.list_offsets[table.access_list[access] + np.arange(2)])]
                for cell in cells.tolist():
                    touched.setdefault(cell, []).append((task, replay, table.access_kind[access] != READ))
    pairs = set()
    for touches in touched.values():
        for i, (task, replay, writes) in enumerate(touches):
            for other, former, wrote in reversed(touches[:i]):
                if (writes or wrote) and (other, former) != (task, replay):
                    pairs.add((other, former, task, replay))
                if wrote:
                    break
    for other, former, task, replay in pairs:
        before, after = operations[other, former][1], operations[task, replay][0]
        checked += 1
        assert after.before >> before.number & 1, (
            f"{bound.plan.task_name(task)} of replay {replay} is not ordered after "
            f"{bound.plan.task_name(other)} of replay {former}"
        )
    return checked


@pytest.mark.parametrize("model", MODELS)
def test_every_conflict_is_ordered(model):
    """Check by brute force over cells, not by the dependence analysis, that events and streams order all conflicts."""
    bound = run(small_plan(weight_gradients="chain"), model, execute=False, products="own")
    assert assert_conflicts_are_ordered(bound, 5) > 400


@pytest.mark.parametrize("model", ["tasks, three streams, no taskwait", "taskiter, four streams"])
def test_every_conflict_of_a_residual_network_is_ordered(model):
    """Check the same for loops of several launches: statistics after convolutions."""
    bound = run(residual_plan(), model, 3, execute=False, products="own")
    assert any(len(launches) > 1 for launches in bound.launches)
    assert assert_conflicts_are_ordered(bound, 5) > 400


def test_a_dependence_left_out_is_noticed(monkeypatch):
    """Check that the test above fails when a wait is forgotten (negative control)."""
    from forktask.tasking import gpu_executor

    whole = gpu_executor.map_to_streams

    def one_wait_less(graph, streams):
        program = whole(graph, streams)
        step = next(step for step in program.steps if step.waits)
        step.waits.pop()
        return program

    monkeypatch.setattr(gpu_executor, "map_to_streams", one_wait_less)
    bound = run(small_plan(), "tasks, three streams, no taskwait", execute=False, products="own")
    with pytest.raises(AssertionError, match="is not ordered after"):
        assert_conflicts_are_ordered(bound, 5)


@pytest.mark.parametrize("model", ["stream", "stream, launched early", "taskiter, launched early"])
def test_kernels_are_launched_early_only_behind_kernels(model, monkeypatch):
    """Check that with launch=pdl exactly those launches do not wait that follow a kernel on their stream, not those
    behind a product, an event or another graph; and that else none does."""
    monkeypatch.setattr(gpu_blas, "FILLING", 0)
    bound = run(small_plan(granularity="auto"), model, execute=False)
    launches = [operation for operation in bound.device.log if operation.label[0] == "launch"]
    behind = [[before.label[0] for before in launch.dependences[:1]] == ["launch"] for launch in launches]
    early = [launch.label[4] for launch in launches]
    assert early == [after and "early" in model for after in behind]
    assert 0.3 < sum(behind) / len(behind) < 1 and bound.device.counts["multiply"]


def test_a_kernel_that_does_not_wait_is_noticed(monkeypatch):
    """Check that launch=pdl leaves tasks unordered where kernels do not wait themselves (negative control), and the
    sentence where a GPU cannot do it."""
    whole, wait = gpu_launches.source, 'asm volatile("griddepcontrol.wait;" ::: "memory");'
    monkeypatch.setattr(gpu_launches, "source", lambda *files, **options: whole(*files, **options).replace(wait, ""))
    for model in ("stream, launched early", "taskiter, launched early"):
        bound = run(small_plan(), model, execute=False, products="own")
        with pytest.raises(AssertionError, match="is not ordered after"):
            assert_conflicts_are_ordered(bound, 5)
    bound.device.has_pdl = False
    with pytest.raises(UsageError, match=r"^launch=pdl must run on .* sm_90 or newer .*, fake device is emulated; use"):
        GpuTaskGraphExecutor(launch="pdl").prepare(bound)


def test_captured_graphs_are_captured_once():
    """Check the reuse: 1 + 4 steps at unroll 2 are 3 launches of graphs, and nothing else is launched in a run."""
    device = FakeDevice(1)
    bound = GpuBoundPlan(small_plan(), None, device)
    fill(bound)
    executor = GpuTaskIterExecutor(unroll=2)
    executor.prepare(bound)
    launches = device.counts["launch"]
    per_step = sum(isinstance(how, Launch) for loops in bound.groups for how in bound.launches_for(loops))
    assert launches == 3 * per_step + 2  # two graphs, each with its counter
    executor.run(1)
    executor.run(4, 1)
    assert device.counts["launch"] == launches
    assert device.counts["launch_graph"] == 3


def test_failure_names_task_and_iteration():
    """Check that a block that fails on the device raises, and that the executor works afterwards."""
    device = FakeDevice()
    bound = GpuBoundPlan(small_plan(), None, device)
    fill(bound)
    good = bound.arrays["dataset.labels"].copy()
    bound.arrays["dataset.labels"][bound.arrays["batch_order"][1]] = 99
    with GpuTaskGraphExecutor() as executor:
        executor.prepare(bound)
        with pytest.raises(BlockFailure, match=r"softmax\[0\] failed in iteration 1 with status 3"):
            executor.run(3)
        bound.arrays["dataset.labels"][...] = good
        executor.run(1)


def test_two_plans_share_the_parameters_on_the_device():
    """Check that an evaluation plan on the same storage sees what training left on the device, without copies."""
    device = FakeDevice()
    storage = device_storage(device, "pageable")
    train = GpuBoundPlan(small_plan(), storage, device)
    fill(train)
    test = GpuBoundPlan(
        lower(SMALL, batch=4, phase="evaluate", prefix="test.", num_images=4, num_iterations_logged=8, layout="nchw"),
        storage,
        device,
    )
    test.arrays["test.dataset.images"][...] = train.arrays["dataset.images"][:4]
    test.arrays["test.dataset.labels"][...] = train.arrays["dataset.labels"][:4]
    test.arrays["test.batch_order"][...] = np.arange(4)
    trainer, tester = GpuStreamExecutor(), GpuStreamExecutor()
    trainer.prepare(train)
    tester.prepare(test)
    losses = []
    for epoch in range(3):
        tester.run(1)
        losses.append(float(test.arrays["test.losses"][0]))
        trainer.run(3, 3 * epoch)
    assert len(set(losses)) == 3
    sizes = [b.size_bytes for b in test.plan.buffers.values() if b.role == "parameter"]
    assert train.copies["device"][1] < sum(b.size_bytes for b in train.plan.buffers.values()) + 3 * sum(sizes)
    assert test.copies["host"][0] == 3  # the losses, each time; nothing else was looked at


def test_a_capture_that_fails_says_why_and_is_over(expected):
    """Check that the cause arrives, and that the same executor captures and runs the plan afterwards."""
    device, refused = FakeDevice(), []
    launch = device.launch

    def refuse_once(prepared, rows, stream, early=False):
        if stream.capture is not None and not refused:
            refused.append(prepared)
            raise OSError("the cause")
        launch(prepared, rows, stream, early)

    device.launch = refuse_once
    bound = GpuBoundPlan(small_plan(), None, device)
    fill(bound)
    with GpuTaskIterExecutor(unroll=2) as executor:
        with pytest.raises(OSError, match="the cause"):
            executor.prepare(bound)
        device.synchronize()
        executor.prepare(bound)
        executor.run(5)
    assert_same_bits(persistent(bound), expected[0])


def test_no_garbage_is_collected_within_a_capture():
    """Check that memory which Python gives back whenever it likes never ends a capture."""
    device = FakeDevice()
    begin_capture, threshold = device.begin_capture, gc.get_threshold()

    def with_garbage(stream):
        owner = FakeDevice()  # anything that may be part of a circle
        owner.itself = owner
        freed_with(owner, device, device.allocate(8))
        begin_capture(stream)

    device.begin_capture = with_garbage
    bound = GpuBoundPlan(small_plan(), None, device)
    try:
        gc.set_threshold(5)
        GpuTaskGraphExecutor().prepare(bound)
    finally:
        gc.set_threshold(*threshold)
    assert gc.isenabled()


def test_products_are_run_on_each_stream_before_a_capture(monkeypatch):
    """Check that the library's choice of a kernel lies before it, that no result of a plan is touched by that, and that
    the device refuses a capture without it (negative control)."""
    monkeypatch.setattr(gpu_blas, "FILLING", 0)
    plan = small_plan(granularity="auto")
    device = FakeDevice(1)
    bound = GpuBoundPlan(plan, None, device)
    fill(bound)
    with GpuStreamExecutor() as executor:
        executor.prepare(bound)
        executor.run(3)
    before = {name: bound.arrays[name].copy() for name in plan.buffers}
    free, workspaces = device.free_bytes(), device.num_workspaces
    with GpuTaskIterExecutor() as executor:
        executor.prepare(bound)
        assert device.counts["multiply"]
        assert_same_bits({name: bound.arrays[name] for name in before}, before)
    assert device.free_bytes() == free - WORKSPACE_BYTES * (device.num_workspaces - workspaces)
    bound = GpuBoundPlan(plan, None, FakeDevice(1))
    bound.prepare = lambda streams=(): None
    with pytest.raises(CaptureError, match="was not chosen before"), GpuTaskIterExecutor() as executor:
        executor.prepare(bound)


def test_managed_memory_is_refused_where_it_could_hang_a_device():
    """Check the limit of half the free memory, and a device that cannot share pages while it works."""
    plan, device = small_plan(), FakeDevice(execute=False)
    needed = device_bytes(plan, device_storage(device, "managed"))
    assert needed == device_bytes(plan)
    device.memory_bytes = 2 * needed - 2
    with pytest.raises(MemoryError, match="of managed memory, of which it may take half"):
        GpuBoundPlan(plan, device_storage(device, "managed"), device, products="own")
    GpuBoundPlan(plan, device_storage(device, "pinned"), device, products="own")
    device.memory_bytes = 4 * needed
    first = GpuBoundPlan(plan, device_storage(device, "managed"), device, products="own")
    assert device_bytes(plan, first.storage) < needed  # what it has is there
    device.shares_memory = False
    with pytest.raises(UsageError, match=r"concurrentManagedAccess is 0\); use memory=pinned"):
        device_storage(device, "managed")


def test_images_that_the_host_writes_into_managed_memory(expected):
    """Check that the host loads each batch where the device reads it, without copies, and never ahead."""
    device = FakeDevice(3)
    bound = GpuBoundPlan(small_plan(), device_storage(device, "managed"), device)
    fill(bound)
    with GpuHostLoadExecutor(copies="synchronous") as executor:
        executor.prepare(bound)
        executor.run(5)
    assert_same_bits(persistent(bound), expected[0])
    assert bound.copies["device"][0] == 0
    with pytest.raises(UsageError, match="one slot for input in managed memory"):
        GpuHostLoadExecutor().prepare(bound)


def test_six_products_are_refused():
    """Check the sentence about a plan's option that has no CUDA form."""
    plan = lower("gpt2_small", batch=1, sequence=8, products="bf16x6")
    with pytest.raises(UsageError, match="a plan for a GPU must have products 'float32', got 'bf16x6'"):
        GpuBoundPlan(plan, None, FakeDevice())


def test_a_guess_from_the_environment_is_taken_and_named(monkeypatch):
    """Check that launches follow, what rows of such a run say, and what is refused."""
    usual = GpuBoundPlan(residual_plan(), device=FakeDevice())
    monkeypatch.setenv("FORKTASK_GPU_PART_TERMS", "16")
    other = GpuBoundPlan(usual.plan, device=FakeDevice())
    assert other.instruction_set == f"{usual.instruction_set}, FORKTASK_GPU_PART_TERMS=16"
    assert other.launches != usual.launches
    monkeypatch.setenv("FORKTASK_GPU_PART_TERMS", "few")
    with pytest.raises(UsageError, match=r"FORKTASK_GPU_PART_TERMS must be a whole number .*, got 'few'; unset it"):
        GpuBoundPlan(usual.plan, device=FakeDevice())
