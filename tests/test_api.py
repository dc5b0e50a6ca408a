"""`import forktask as ft`: light until used, complete, typed, with objects that one can look at."""

import ast
import copy
import importlib
import inspect
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from experiments.synthetic_results import synthetic_rows, write_rows
from programs import run_python

import forktask as ft
from forktask import kernels, plans, public, runtimes
from forktask.experiments.commands.main import main
from forktask.experiments.training.text import load_text

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("numpy", "pandas", "matplotlib", "seaborn", "joblib", "scipy")
DEEP_IMPORT = re.compile(r"forktask\.(cython_src|forkjoin|tasking|experiments)\b")


def loaded_after(code: str) -> set[str]:
    """Which of `HEAVY` a fresh process has loaded after running some code."""
    program = f"{code}\nimport sys\nprint()\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    return set(run_python(program, check=True, timeout=60).stdout.splitlines()[-1].split())


# --- names ----------------------------------------------------------------------------------------------------------


VERSION = """
from forktask.experiments.commands.main import main
try:
    main(["--version"])
except SystemExit:
    import sys
    assert "msgspec" not in sys.modules
"""


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import forktask; forktask.__version__", set()),
        (VERSION, set()),
        ("from forktask.experiments.machine import environment; environment.collect()", set()),
        ("import forktask.experiments.scaling.plugin", set()),
        ("import forktask as ft; ft.bind(ft.lower('lenet5', batch=16)); ft.compare", {"numpy"}),
        ("import forktask.experiments.sampling.measure, forktask.forkjoin.executor", {"numpy"}),
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_used(code, loaded):
    """Check that the import, the version, the description of a machine (in a measured process: NumPy would bring BLAS
    threads) and pytest's plugin load no library, and plans, runs and measuring NumPy alone."""
    assert loaded_after(code) == loaded


def test_every_public_name_exists_and_is_described():
    """Check that all names of the three modules are there, are listed by dir(), and have a docstring."""
    assert set(public.__all__) <= set(dir(ft))
    for module in (public, plans, kernels, runtimes):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
                assert value.__doc__, name
    assert ft.plans is plans and ft.kernels is kernels


def test_unknown_names_are_attribute_errors():
    """Check that a misspelt name and a dunder name raise AttributeError, and that `import *` gives all names."""
    for name, nearest in (("Dropuot", "Dropout"), ("Relu", "ReLU"), ("Dense", "Linear"), ("__wrapped__", "")):
        with pytest.raises(AttributeError, match=f"{name}'{f'; did you mean {nearest!r}?' if nearest else '$'}"):
            getattr(ft, name)
    assert set(public.ELSEWHERE.values()) <= set(public.__all__)
    names: dict = {}
    exec("from forktask import *", names)
    assert set(public.__all__) <= set(names)


def test_pages_and_examples_use_the_public_names_only():
    """Check that no code block, sentence or example imports from a room of the package."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    examples = list((ROOT / "experiments" / "examples").glob("*.py"))
    assert len(examples) > 7 and len(pages) > 7
    result = []
    for path in (*pages, *examples):
        for line in path.read_text().splitlines():
            # What is run as a program is a command, not an import.
            if DEEP_IMPORT.search(re.sub(r"python -m forktask\.[\w.]+", "", line)):
                result.append(f"{path.name}: {line.strip()}")
    assert not result


def test_the_reference_page_lists_every_name():
    """Check that the page of the interface names all public names, each in the table of its module, and no other."""
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    tables = re.split(r"^\| names of `([\w.]+)` \|.*$", text, flags=re.MULTILINE)[1:]
    for module, table in zip(tables[::2], tables[1::2], strict=True):
        listed = {
            name
            for row in table.splitlines()
            if row.startswith("| `")
            for name in re.findall(r"`(\w+)", row.split("|")[1].replace("after=", ""))
        }
        names = set(importlib.import_module(module if module != "forktask" else "forktask.public").__all__)
        assert listed == names - {"plans", "kernels", "runtimes"}, module


def test_stubs_are_those_of_the_extensions():
    """Check that py.typed is installed, and that stubs and extensions have the same public names and parameters."""
    package = Path(ft.get_include())
    assert (package / "py.typed").exists()
    for name in ("cython_src.binding.bind", "cython_src.plan.dependences"):
        module = importlib.import_module(f"forktask.{name}")
        stub = ast.parse((package / f"{name.replace('.', '/')}.pyi").read_text())
        for node in stub.body:
            if isinstance(node, ast.FunctionDef):
                wanted = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
                assert list(inspect.signature(getattr(module, node.name)).parameters) == wanted, node.name
            elif isinstance(node, ast.ClassDef):
                declared = {n.name for n in node.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"}
                declared |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
                own = vars(getattr(module, node.name))
                made = {n for n, value in own.items() if n[0] != "_" and not isinstance(value, property)}
                missing = made - declared - set(getattr(module, node.name).__dict__.get("__dataclass_fields__", ()))
                assert not missing, f"{node.name} has {missing}, which the stub lacks"


def test_headers_are_where_get_include_says():
    """Check that the folder of `get_include` holds the header of kernels."""
    assert (Path(ft.get_include()) / "cython_src" / "kernels" / "interface" / "block_kernel.h").exists()


# --- running --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bound():
    """A small network, bound, with random data."""
    return ft.run("lenet5", model="serial", batch=16, iterations=3).bound


def test_a_run_says_what_it_was(bound):
    """Check iterations, time and mean loss of a run, where it wraps around the log too, and of one of no iteration."""
    with ft.executor("forkjoin:schedule=static", threads=2) as executor:
        assert executor.model == "forkjoin" and executor.threads == 2
        executor.prepare(bound)
        length = len(bound.arrays["losses"])
        done = executor.run(4, first_iteration=length - 2)
        expected = np.mean(bound.arrays["losses"][[length - 2, length - 1, 0, 1]], dtype=np.float64)
        assert done.mean_loss == pytest.approx(expected)
        assert re.fullmatch(r"<forkjoin on 2 threads: 4 iterations in \S+ s, mean loss \S+>", repr(done))
        assert executor.run(0).mean_loss is None
        with pytest.raises(ft.UsageError, match="event_capacity, got 0"):
            executor.events()


# --- comparing ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A short sweep of two models; of the few turns of a quick one, noise may hide a step."""
    folder = tmp_path_factory.mktemp("comparison") / "out"
    short = {"repeats": 1, "target_s": 0.1, "least_rounds": 7, "warmup_s": 0.05, "check_iterations": 4}
    return ft.compare("lenet5", batch=8, models=["serial", "taskiter"], threads=1, out=folder, **short)


@pytest.mark.parametrize("given, arguments", [({}, []), ({"repeats": 3}, ["--repeats", "3"])])
def test_a_comparison_has_the_defaults_of_the_command(given, arguments, monkeypatch, tmp_path):
    """Check that a call measures what the command with the same arguments measures."""
    from forktask.experiments.commands.compare import configuration_of
    from forktask.experiments.commands.main import make_parser
    from forktask.experiments.sweep import comparison

    measured = []

    def measure_comparison(configuration, *rest, **options):
        measured.append(configuration)
        raise ft.UsageError("that is all")

    monkeypatch.setattr(comparison, "measure_comparison", measure_comparison)
    with pytest.raises(ft.UsageError, match="that is all"):
        ft.compare("lenet5", out=tmp_path / "out", **given)
    expected = configuration_of(make_parser().parse_args(["compare", "--network", "lenet5", *arguments]))
    assert measured[0].measure == expected.measure and measured[0].grid == expected.grid


def test_a_comparison_has_table_samples_figures_and_report(comparison):
    """Check that the table is summary.csv, that figures are drawn, and that a notebook and a terminal show it."""
    import pandas as pd
    from matplotlib.figure import Figure

    written = pd.read_csv(comparison.folder / "summary.csv")
    assert list(written.columns) == list(comparison.table.columns)
    assert sorted(comparison.table["model"]) == ["serial", "taskiter"]
    first = ["network", "batch", "model", "threads", "generations", "rounds", "time_s", "low_s", "high_s", "speedup"]
    assert list(comparison.table.columns)[: len(first)] == first
    assert len(comparison.samples) == 2
    assert "speedup" in comparison.figures
    assert isinstance(comparison.figure("speedup", column="single"), Figure)
    assert comparison.caption()
    assert comparison.write_report().read_text().startswith("<!")
    assert re.fullmatch(r"<Comparison of 2 models on lenet5 at batch 8: 2 samples in .*>", repr(comparison))
    assert "taskiter" in comparison._repr_html_() and "taskiter" in str(comparison)
    again = ft.Comparison(comparison.folder)
    assert again.table.equals(comparison.table)
    with pytest.raises(ft.UsageError, match="figure"):
        again.figure("spedup")
    (plan,) = set(comparison.table["plan_id"])
    assert again.figure(plan=plan[:4]) and again.caption(plan=plan[:4]) == again.caption()
    with pytest.raises(ft.UsageError, match="plan must begin"):
        again.figure(plan="zz")
    with pytest.raises(ft.UsageError, match="factorial needs"):
        again.caption("factorial")


def test_without_a_serial_run_another_figure_is_the_default(tmp_path):
    """Check figure, numbers and caption of forms of fork-join and tasks alone."""
    rows = [row for row in synthetic_rows(repeats=12) if row.get("model") != "serial"]
    result = ft.Comparison(write_rows(tmp_path, rows))
    assert result.caption() == result.caption(result.figures[0]) and len(result.figure_data())
    assert result.figure().axes


def test_a_trace_has_logs_tables_and_figures(tmp_path):
    """Check that a trace is what the command leaves, with a table of losses and both pictures, and can be diagnosed."""
    from matplotlib.figure import Figure

    short = {"seconds": 0.01, "threads": 1, "profile": False}
    trace = ft.trace("lenet5", batch=8, models=["serial", "taskiter"], out=tmp_path / "out", **short)
    assert [log.about["model"] for log in trace.logs] == list(trace.table["model"]) == ["serial", "taskiter"]
    assert set(trace.layers["model"]) == {"serial", "taskiter"} and (trace.table["useful_s"] > 0).all()
    for name in trace.figures:
        assert isinstance(trace.figure(name), Figure) and trace.caption(name)
    with pytest.raises(ft.UsageError, match="gnatt"):
        trace.figure("gnatt")
    for wrong in ({"column": "triple"}, {"iterations": 0}):
        with pytest.raises(ft.UsageError, match=next(iter(wrong))):
            trace.figure(**wrong)
    assert "taskiter" in str(trace) and "taskiter" in trace._repr_html_()
    assert len(ft.diagnose(trace).data["cases"]) == 3  # the plan, and each log
    assert ft.Trace(trace.folder).table.equals(trace.table)


def test_a_run_leaves_the_weights_that_samples_hold(comparison):
    """Check that `run` with the sweep's seed, blocks and number of iterations has the weights of its samples."""
    run = ft.run("lenet5", model="taskiter", threads=2, batch=8, iterations=4, granularity="threads=1")
    assert {ft.weights_hash(run.bound)} == set(comparison.samples["weights_hash"])


def test_a_ratio_is_that_of_the_tables(tmp_path):
    """Check the value against the table, whose interval spans the one to this form of fork-join, for the models' own
    numbers of threads, and that a model that was not measured is refused."""
    from forktask.experiments.analysis.speeds import speed_table

    comparison = ft.Comparison(write_rows(tmp_path, synthetic_rows(repeats=12)))
    rows = speed_table(comparison._sweep)
    (row,) = rows[(rows["model"].map(str) == "taskiter") & (rows["threads"] == 2)].to_dict("records")
    result = comparison.ratio("taskiter", str(row["reference"]), threads=2)
    assert (result.value, result.n) == (row["ratio"], row["generations"]) and result.verdict
    assert row["ratio_low"] <= result.low < result.high <= row["ratio_high"]
    assert comparison.ratio("serial", "taskiter").value > 0  # serial has one thread, whatever the other has
    for wrong in (
        {"model": "torch", "reference": "serial"},
        {"model": "taskiter", "reference": "serial", "threads": 64},
    ):
        with pytest.raises(ft.UsageError, match="a ratio is of models that were measured"):
            comparison.ratio(**wrong)
    assert comparison.caption("forest").startswith("cifar10_cnn. Measured on ")
    of_batches = ft.Comparison(ROOT / "results" / "xeon_2_cores" / "batch_size")
    with pytest.raises(
        ft.UsageError, match="plan must say of which of 6 plans a ratio is, got none; take .*: batch 8;"
    ):
        of_batches.ratio("taskiter", "tasks")
    plan = of_batches.table["plan_id"].iloc[0][:6]
    assert 0.9 < of_batches.ratio("taskiter", "tasks", plan=plan).value < 1.1


def evaluated(folder):
    """An evaluation of the weights that a training left."""
    chosen = {"network": "lenet5", "data": "synthetic:64", "model": "serial", "threads": 1}
    ft.train(**chosen, epochs=1, out=folder / "trained")
    weights = folder / "trained" / "parameters-seed-0.safetensors"
    result = ft.evaluate(weights, **chosen, conv=["if", "pad"], batch=4, passes=2, out=folder / "evaluation")
    assert list(result.table["conv"]) == ["if", "pad"]
    return result


@pytest.mark.parametrize(
    ("make", "columns", "figures", "printed"),
    [
        (
            lambda folder: ft.metg(threads=1, models="serial", width=2, steps=2, quick=True, out=folder / "metg"),
            {"pattern", "model", "metg_s", "empty_task_s"},
            ["stencil_1d"],
            "stencil_1d, 2 x 2 tasks per iteration",
        ),
        (lambda folder: ft.info(), {"topic", "text"}, [], "for measuring"),
        (
            lambda folder: ft.train(
                ft.get_network("lenet5"), "synthetic:64", epochs=2, model="serial", threads=1, out=folder / "run"
            ),
            {"epoch", "time_s", "epoch_time_s", "valid_loss", "usable"},
            ["accuracy"],
            "test accuracy",
        ),
        (
            evaluated,
            {"conv", "accuracy", "time_s", "Conv2d", "Linear", "SoftmaxCrossEntropy"},
            [],
            "lenet5 on 6 samples of synthetic:64, batch 4, serial on 1 thread: median of 2 passes",
        ),
    ],
    ids=["metg", "info", "train", "evaluate"],
)
def test_each_command_is_a_function_with_a_table(make, columns, figures, printed, tmp_path, monkeypatch):
    """Check table, figures, captions and text of each, and that another figure or setting is refused."""
    monkeypatch.chdir(tmp_path)
    result = make(tmp_path)
    assert columns <= set(result.table.columns) and len(result.table) and result.figures == figures
    assert printed in str(result) and "<table>" in result._repr_html_() and "rows>" in repr(result)
    import matplotlib.pyplot as plt

    for name in figures:
        assert result.figure(name, column="single").get_size_inches()[0] == pytest.approx(3.3)
        assert result.figure().axes and len(result.caption(name).split()) > 10
        assert len(result.figure_data(name)) and "serial" in set(result.figure_data(name)["model"])
        mine = plt.figure().add_subplot()
        assert result.figure(name, ax=mine) is mine.figure and mine.get_ylabel()
    with pytest.raises(ft.UsageError, match="name of figure"):
        result.figure("nope")


def test_a_command_prints_what_its_function_returns(comparison, tmp_path, capsys):
    """Check text and JSON of commands against the results of the functions, with the same arguments."""
    folder, found = comparison.folder, ft.diagnose(comparison)
    capsys.readouterr()
    assert main(["diagnose", str(folder)]) == 0 and capsys.readouterr().out == f"{found}\n"
    assert main(["diagnose", str(folder), "--json"]) == 0 and json.loads(capsys.readouterr().out) == found.data
    lines, trained = [], {"network": "lenet5", "data": "synthetic:64", "model": "serial", "threads": 1, "batch": 8}
    first = ft.train(**trained, epochs=1, out=tmp_path / "t", progress=lines.append)
    assert any("epoch   1/1" in line for line in lines) and first.data["title"] == first._title
    assert len(ft.train(out=tmp_path / "t", resume=True, epochs=2).table) == 2, "the network is that of the folder"
    machine = tmp_path / "machine.toml"
    ft.info(machine=machine)
    assert "cores" in machine.read_text()


def test_a_device_is_that_of_the_command(tmp_path):
    """Check that models of another device are left out or refused, as by `--device`."""
    with pytest.raises(ft.UsageError, match="device of .* must be one of 'cpu', 'gpu' or None, got 'tpu'"):
        ft.train("lenet5", device="tpu", out=tmp_path / "out")
    with pytest.raises(ft.UsageError, match="GPU"):
        ft.train("lenet5", device="gpu", out=tmp_path / "out")
    with pytest.raises(ft.UsageError, match="models of the CPU, got gpu_taskiter"):
        ft.metg(models="gpu_taskiter", out=tmp_path / "out")


# --- data -----------------------------------------------------------------------------------------------------------


def test_data_are_loaded_as_arrays_would_be():
    """Check images with labels, order and rate; tokens with and without one more; and what does not fit."""
    network = ft.get_network("lenet5")
    images = np.random.default_rng(1).standard_normal((6, *network.input_shape)).astype(np.float32)
    bound = ft.bind(ft.lower(network, batch=2, num_images=6, num_batches=2))
    bound.load(images, np.arange(6), order=[5, 4, 3, 2, 1], learning_rate=0.5)
    assert np.array_equal(bound.arrays["dataset.images"], images) and bound.arrays["learning_rates"].tolist() == [0.5]
    assert bound.arrays["batch_order"].tolist() == [[5, 4], [3, 2]]
    assert bound.arrays["dataset.labels"].tolist() == [*range(6)]
    text = ft.bind(ft.lower("gpt2_tiny", batch=1, sequence=4, num_images=2))
    text.load(np.arange(8).reshape(2, 4))
    assert text.arrays["dataset.tokens"].tolist() == [*range(8), 0]
    text.load(np.arange(9))
    assert text.arrays["dataset.tokens"].tolist() == [*range(9)]
    for arguments, sentence in (
        (
            (images[:5], np.arange(6)),
            "images of plan 'lenet5 train b2' must have shape (6, 1, 32, 32), got (5, 1, 32, 32)",
        ),
        ((images,), "takes labels, got none; add them"),
        ((images, np.arange(5)), "labels of plan 'lenet5 train b2' must be 6, got 5"),
        ((images, np.arange(5, 11)), "labels must be whole numbers in [0, 9], got int64 from 5 to 10"),
        ((images, np.zeros(6)), "labels must be whole numbers in [0, 9], got float64"),
    ):
        with pytest.raises(ft.UsageError) as refused:
            bound.load(*arguments)
        assert sentence in str(refused.value)
    for order, sentence in (
        ([6, 0, 1, 2], "order must be whole numbers in [0, 5]"),
        ([1], "order must name 4 samples"),
    ):
        with pytest.raises(ft.UsageError) as refused:
            bound.load(images, np.arange(6), order=order)
        assert sentence in str(refused.value)
    with pytest.raises(ft.UsageError, match="takes no labels, got some"):
        text.load(np.arange(8), np.arange(8))
    with pytest.raises(ft.UsageError, match="learning_rate is for plans that train"):
        ft.bind(ft.lower(network, batch=2, phase="forward")).load(images[:2], [0, 1], learning_rate=1.0)


def test_a_network_is_fitted_in_one_call():
    """Check that two epochs of the digits lower the loss, that pairs of arrays do as data do, and that initial weights
    may be given."""
    digits = ft.load_data("digits")
    run = ft.fit("cifar10_cnn", digits, epochs=2, batch=32, model="serial", check=False)
    assert len(run.losses) == run.iterations == 2 * 39 and run.elapsed_s > 0
    assert run.losses[-10:].mean() < 0.5 * run.losses[:10].mean()
    network = digits.fit(ft.get_network("cifar10_cnn"))
    names = run.bound.plan.attributes["parameters"]
    weights = {name: run.bound.view(name).copy() for name in names}
    again = ft.fit(network, (digits.images[:64], digits.labels[:64]), batch=32, model="serial", weights=weights)
    assert again.iterations == 2 and again.losses[0] < 0.5 * run.losses[0]
    with pytest.raises(ft.UsageError, match=r"fit\(\) needs the images of a batch, 65, got 64"):
        ft.fit(network, (digits.images[:64], digits.labels[:64]), batch=65)


# --- task functions -------------------------------------------------------------------------------------------------


@ft.task(reads=["left", "right"], writes="out")
def blend(out, left, weight, right):
    """Weighted mean."""
    out[...] = weight * left + (1 - weight) * right


def test_a_task_function_records_and_runs():
    """Check that a call with regions records a task with its accesses, and a call with arrays runs at once."""
    values, means = np.arange(8.0), np.zeros(4)
    with ft.UserGraph() as graph:
        x, y = graph.array("x", values), graph.array("y", means)
        for i in graph.taskloop(4, grainsize=2):
            assert blend(y[i], x[i], 0.25, right=x[i.start + 4 : i.stop + 4]) is None
        assert not means.any()
        (loop,) = graph.plan().loops
        assert loop.name == "blend.0" and loop.num_blocks == 2
        assert [plans.ACCESS_KINDS[a.kind] for a in loop.blocks[0].accesses] == ["read", "read", "write"]
        assert plans.check_accesses(graph.plan(), "cpu") > 0
        graph.run(1, threads=1)
    expected = np.zeros(4)
    blend(expected, values[:4], 0.25, values[4:])
    assert np.array_equal(means, expected) and means.any()
    assert blend.__doc__ == "Weighted mean." and "reads=('left', 'right')" in repr(blend)


def test_plans_and_data_are_compared_and_kept_by_identity():
    """Check equality, hash, membership, copies and pickles of what users hold: identity, values, or one sentence."""
    lowered, other = (ft.lower("lenet5", batch=4) for _ in range(2))
    text, again = (load_text("synthetic:20", ft.get_network("gpt2_tiny"), 8) for _ in range(2))
    data = ft.load_data("synthetic:20")
    graph = ft.plans.record_graph(lowered.accesses)
    for one, second in ((lowered, other), (lowered.loops[0], other.loops[0]), (text, again), (data, text)):
        assert one == one and one != second and one in [second, one] and len({one, second, one}) == 2
    for one in (lowered, lowered.loops[0], ft.bind(lowered), ft.run("lenet5", batch=1, iterations=1, model="serial")):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            if copied is not copy.copy or not isinstance(one, ft.Run):
                with pytest.raises(ft.UsageError, match="must not hold functions or pointers, got .*; call "):
                    copied(one)
    for one in (data, text, graph, lowered.accesses, ft.get_network("lenet5")):
        for same in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
            assert repr(same) == repr(one) and {same, one, one} >= {same}


def test_the_way_to_continue_can_be_pasted(monkeypatch, tmp_path):
    """Check that the call that an interrupted comparison names makes the same configuration, whatever was chosen."""
    from forktask.experiments.sweep import comparison as measuring

    calls = []

    class Interrupted(Exception):
        pass

    def also(*arguments, **options):
        calls.append(arguments)
        raise Interrupted

    from forktask.experiments.metg import metg as metg_module

    monkeypatch.setattr(metg_module, "measure_metg", also)
    for function, chosen in (
        (ft.metg, {"pattern": ["fft", "no_comm"], "models": "taskiter", "threads": 2, "width": 4, "quick": True}),
        (ft.metg, {"network": "lenet5", "batch": np.int64(8), "threads": "cores"}),
    ):
        with pytest.raises(Interrupted):
            function(**chosen, out=tmp_path / "r")
        with pytest.raises(Interrupted):
            eval(calls[-1][-1], {"forktask": ft})
        assert calls[-1] == calls[-2]

    def measure(configuration, folder, call, quick):
        calls.append((configuration, folder, quick, call))
        raise Interrupted

    monkeypatch.setattr(measuring, "measure_comparison", measure)
    given = {"batch": np.int64(16), "models": ["forkjoin", "taskiter"], "threads": (1, 2)}
    given |= {"betas": [(0.8, 0.9), (0.9, 0.999)], "target_s": np.float64(0.1), "quick": True}
    for chosen in ({}, given, {"network": ["lenet5", "cifar10_cnn"], "threads": 2, "repeats": 3, "momentum": 0.0}):
        for action in (
            lambda chosen=chosen: ft.compare(**chosen, out=tmp_path / "r"),
            lambda: eval(calls[-1][-1], {"forktask": ft}),
        ):
            with pytest.raises(Interrupted):
                action()
        assert calls[-1] == calls[-2]
