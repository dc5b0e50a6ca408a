"""`import forktask as ft`: light until used, complete, typed, with objects that one can look at."""

import ast
import html
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import forktask as ft
from forktask import kernels, plans, public
from forktask.cython_src.arguments import checked_call

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("numpy", "pandas", "matplotlib", "seaborn", "joblib", "scipy")
DEEP_IMPORT = re.compile(r"forktask\.(cython_src|forkjoin|tasking|experiments)\b")


def loaded_after(code: str) -> set[str]:
    """Which of `HEAVY` a fresh process has loaded after running some code."""
    program = f"{code}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


# --- names ----------------------------------------------------------------------------------------------------------


def test_import_loads_nothing_heavy():
    """Check that the import alone loads no library, and that plans and runs load NumPy alone."""
    assert loaded_after("import forktask; forktask.__version__") == set()
    assert loaded_after("import forktask as ft; ft.bind(ft.lower('lenet5', batch=16)); ft.compare") == {"numpy"}


def test_every_public_name_exists_and_is_described():
    """Check that all names of the three modules are there, are listed by dir(), and have a docstring."""
    assert set(public.__all__) <= set(dir(ft))
    for module in (public, plans, kernels):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
                assert value.__doc__, name
    assert ft.plans is plans and ft.kernels is kernels


def test_unknown_names_are_attribute_errors():
    """Check that a misspelt name and a dunder name raise AttributeError, and that `import *` gives all names."""
    for name, nearest in (
        ("Convolutoin", "Convolution"),
        ("Relu", "ReLU"),
        ("Conv2d", "Convolution"),
        ("Dense", "FullyConnected"),
        ("__wrapped__", ""),
    ):
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
    found = []
    for path in (*pages, *examples):
        for line in path.read_text().splitlines():
            # What is run as a program is a command, not an import.
            if DEEP_IMPORT.search(re.sub(r"python -m forktask\.[\w.]+", "", line)):
                found.append(f"{path.name}: {line.strip()}")
    assert not found


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
        assert listed == names - {"plans", "kernels"}, module


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


HEAD = (ft.GlobalPool("pool"), ft.FullyConnected("fc", 10), ft.Softmax())
IMAGE = (3, 8, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ft.Network("n", input=IMAGE, layers=HEAD), "got 'input'; did you mean 'input_shape'"),
        (lambda: ft.Network("n", IMAGE), "missing a required argument: 'layers'"),
        (lambda: ft.Network(IMAGE, HEAD, ()), r"name of Network must be a text.*got \(3, 8, 8\)"),
        (lambda: ft.Network("n", (784,), HEAD), r"got \(784,\); a vector is an image of shape \(784, 1, 1\)"),
        (lambda: ft.Network("n", 784, HEAD), "got 784; give .channels, height, width"),
        (lambda: ft.Network("n", (3, 0, 8), HEAD), r"got \(3, 0, 8\)"),
        (lambda: ft.Network("n", IMAGE, ()), "must be at least one, got none"),
        (lambda: ft.Network("n", IMAGE, ft.Softmax()), "layers of Network must be a list"),
        (lambda: ft.Network("n", IMAGE, (ft.ReLU, *HEAD)), "list layers such as"),
        (lambda: ft.Network("n", IMAGE, (ft.Dropout(0.5), *HEAD)), "name of Dropout must be a text.*got 0.5"),
        (lambda: ft.Convolution("c", 8, kernel_size=3), "got 'kernel_size'; did you mean 'kernel'"),
        (lambda: ft.Convolution(8), "missing a required argument: 'out_channels'"),
        (lambda: ft.Tokens(10), "arguments of Tokens.*'positions'"),
        (lambda: ft.lower(ft.Network("n", IMAGE, HEAD[1:]), batch=2, optimiser="adam"), "did you mean 'optimizer'"),
        (lambda: ft.lower(IMAGE), "network of lower must be a text or of type Network"),
        (lambda: ft.PlanOptions(optimiser="adam"), "did you mean 'optimizer'"),
        (lambda: ft.bind(ft.Network("n", IMAGE, HEAD)), "plan of bind must be of type Plan.*call bind"),
        (lambda: ft.bind(ft.lower("lenet5"), "here"), "storage of bind must be of type Storage or None, got 'here'"),
        (lambda: ft.initialise(ft.lower("lenet5")), r"call initialise\(bind\(plan\)\)"),
        (lambda: ft.executor("serial", threads=1), "did you mean 'num_threads'"),
        (lambda: ft.executor("serial").prepare(), "arguments of prepare are bound; missing"),
        (lambda: ft.run("lenet5", threads=2), "did you mean 'num_threads'"),
        (lambda: ft.run("lenet5", batch_size=2), "did you mean 'batch'"),
        (lambda: ft.UserGraph(reductions=2), "arguments of UserGraph.*did you mean 'reduction_groups'"),
        (lambda: ft.UserGraph().run(1, num_threads=2), "did you mean 'threads'"),
        (lambda: ft.UserGraph().task(print, read=()), "did you mean 'reads'"),
        (lambda: ft.task(read="x"), "did you mean 'reads'"),
        (lambda: ft.task("x"), "too many positional arguments"),
    ],
)
def test_wrong_arguments_are_one_sentence(call, message):
    """Check that a wrong argument of what users call is refused in a sentence, with the nearest name."""
    with pytest.raises(ft.UsageError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_type_error_of_the_users_own_comes_through():
    """Check that a TypeError inside of a well-formed call is not taken for a wrong argument."""

    def failing(*values):
        raise TypeError("own")

    call = checked_call(lambda value: failing(value), "call")
    with pytest.raises(TypeError, match="own") as caught:
        call(1)
    assert not isinstance(caught.value, ft.UsageError)


# --- running --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bound():
    """A small network, bound, with random data."""
    return ft.run("lenet5", model="serial", batch=16, iterations=3).bound


def test_all_models_leave_the_same_weights_and_losses():
    """Check that `run` gives equal hashes and mean losses under three models."""
    runs = [
        ft.run("lenet5", model=m, num_threads=n, batch=16) for m, n in (("serial", 1), ("forkjoin", 2), ("tasks", 2))
    ]
    assert len({(ft.weights_hash(run.bound), run.mean_loss) for run in runs}) == 1
    assert all(run.iterations == 20 and run.seconds > 0 for run in runs)
    assert ft.weights_hash(ft.run("lenet5", model="serial", batch=16, seed=2).bound) != ft.weights_hash(runs[0].bound)


def test_a_run_says_what_it_was(bound):
    """Check iterations, time and mean loss of a run, where it wraps around the log too, and of one of no iteration."""
    with ft.executor("forkjoin:schedule=static", num_threads=2) as executor:
        assert executor.model == "forkjoin" and executor.num_threads == 2
        executor.prepare(bound)
        length = len(bound.arrays["losses"])
        done = executor.run(4, first_iteration=length - 2)
        expected = np.mean(bound.arrays["losses"][[length - 2, length - 1, 0, 1]], dtype=np.float64)
        assert done.mean_loss == pytest.approx(expected)
        assert re.fullmatch(
            r"<forkjoin on 2 threads: 4 iterations in \S+ s \(\S+ ms each\), mean loss \S+>", repr(done)
        )
        assert executor.run(0).mean_loss is None
        with pytest.raises(ft.UsageError, match="event_capacity, got 0"):
            executor.events()


def test_executors_log_events_and_refuse_what_is_no_bound_plan(bound):
    """Check the event log through the executor, its default number of threads, and the message for an unbound plan."""
    with ft.executor("serial", event_capacity=1000) as executor:
        assert executor.num_threads == 1
        with pytest.raises(ft.UsageError, match="prepare"):
            executor.run(1)
        with pytest.raises(ft.UsageError, match="bind"):
            executor.prepare(bound.plan)
        executor.prepare(bound)
        executor.run(1)
        assert len(executor.events()) == bound.plan.num_tasks


def test_a_run_can_end_by_a_decision():
    """Check `run_while` through the executor: the decision of iteration 3 ends the run after 3 + 1."""
    graph = ft.UserGraph()
    stop = graph.array("stop", np.zeros(8, np.int32))

    def decide(stop, iteration):
        stop[iteration % 8] = iteration == 3

    graph.task(decide, updates=stop, args=(ft.ITERATION,))
    with ft.executor("taskgraph", num_threads=2) as executor:
        executor.prepare(graph.bind())
        assert executor.run_while(stop.view, max_iterations=100, lookahead=1) == 5


def test_representations_are_short(bound):
    """Check that what a notebook shows of large objects fits a line and names them."""
    resnet = ft.lower("resnet18", batch=16)
    graph = ft.UserGraph("g")
    array = graph.array("x", np.zeros((4, 4)))
    graph.task(print, updates=array[0:2, 1])
    objects = {
        "resnet18 train b16": resnet,
        "load": resnet.loops[0],
        "accesses": resnet.accesses,
        "closed graph": plans.record_graph(resnet.accesses),
        "68 layers on images of 3 x 32 x 32": ft.get_network("resnet18"),
        "PlanOptions(batch=16, memory='shared')": ft.PlanOptions(batch=16, memory="shared"),
        "PlanOptions()": ft.PlanOptions(),
        "1797 images of 3 x 32 x 32, 10 classes": ft.load_data("digits"),
        "storage": bound.storage,
        "bound to cpu": bound,
        "1 tasks on 1 arrays": graph,
        "float64, shape (4, 4)": array,
        "x[0:2, 1:2]": array[0:2, 1],
        "x[...]": array[...],
        "builder of plan 'p'": plans.PlanBuilder("p"),
    }
    for part, value in objects.items():
        assert part in repr(value) and len(repr(value)) < 120 and "\n" not in repr(value)
    for model in ("serial", "joblib", "tasks", "taskiter"):
        with ft.executor(model, num_threads=1) as executor:
            assert repr(executor) == f"<{model} on 1 thread>"
            executor.prepare(bound)
            assert repr(executor) == f"<{model} on 1 thread, prepared for 'lenet5 train b16'>"


def test_notebooks_show_the_line_and_a_table(bound):
    """Check that each object's HTML has its short representation and a row for each of its parts."""
    network = ft.get_network("lenet5")
    graph = plans.record_graph(bound.plan.accesses)
    own = ft.UserGraph("<own>")
    x = own.array("x", np.zeros(2))
    for i in range(2):
        own.task(np.sqrt, reads=x[0], writes=x[1], name=f"root{i}")
    phases = {loop.phase for loop in bound.plan.loops}
    with ft.executor("serial") as executor:
        empty = executor._repr_html_()
        executor.prepare(bound)
        objects = [(executor, 1), (executor.run(2), 1), (executor.run(0), 1), (bound, len(phases))]
        objects += [(bound.plan, len(phases)), (network, len(network.layers)), (graph, 2), (own, 2)]
        for value, rows in objects:
            shown = value._repr_html_()
            assert html.escape(repr(value)) in shown and len(shown) < 3000
            assert shown.count("<tr>") == 1 + rows, shown
        assert "lenet5" not in empty and "lenet5" in executor._repr_html_()
    total = re.findall(r"<td>([\d,]+)</td></tr>", network._repr_html_())
    assert sum(int(n.replace(",", "")) for n in total) == network.num_parameters
    assert sum(int(n) for n in re.findall(r"<td>(\d+)</td></tr>", graph._repr_html_())) == graph.num_edges


def test_a_graph_of_ones_own_says_what_its_run_was():
    """Check that UserGraph.run returns a run without a loss."""
    with ft.UserGraph() as graph:
        x = graph.array("x", np.zeros(1))

        def add(x):
            x += 1

        graph.task(add, updates=x)
        assert graph.run(3, model="forkjoin", threads=1).iterations == 3
        assert graph.taskiter(2, threads=1).mean_loss is None
    assert x.view[0] == 5


# --- comparing ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A quick sweep of two models."""
    folder = tmp_path_factory.mktemp("comparison") / "out"
    return ft.compare("lenet5", batch=8, models=["serial", "taskiter"], threads=1, quick=True, out=folder)


def test_a_comparison_has_table_samples_figures_and_report(comparison):
    """Check that the table is summary.csv, that figures are drawn, and that a notebook and a terminal show it."""
    import pandas as pd
    from matplotlib.figure import Figure

    written = pd.read_csv(comparison.folder / "summary.csv")
    assert list(written.columns) == list(comparison.table.columns)
    assert sorted(comparison.table["model"]) == ["serial", "taskiter"]
    first = ["network", "batch", "model", "threads", "generations", "rounds", "median_s", "low_s", "high_s", "speedup"]
    assert list(comparison.table.columns)[: len(first)] == first
    assert len(comparison.samples) == 2
    assert "speedup" in comparison.figures
    assert isinstance(comparison.figure("speedup", column="single"), Figure)
    assert comparison.caption()
    assert comparison.report.read_text().startswith("<!")
    assert re.fullmatch(r"<Comparison of 2 models on lenet5 at batch 8: 2 samples in .*>", repr(comparison))
    assert "taskiter" in comparison._repr_html_() and "taskiter" in str(comparison)
    again = ft.Comparison(comparison.folder)
    assert again.table.equals(comparison.table)
    with pytest.raises(ft.UsageError, match="figure"):
        again.figure("spedup")


def test_results_are_simulated_and_diagnosed(comparison):
    """Check both on a comparison and on its folder: tables, figure, caption, and the text of the command line."""
    from matplotlib.figure import Figure

    simulation = ft.simulate(comparison, threads=[2, 4], models="taskiter")
    assert list(simulation.table["threads"]) == [2, 4] and set(simulation.table["model"]) == {"taskiter"}
    assert isinstance(simulation.figure(column="single"), Figure) and simulation.caption
    assert simulation.title in str(simulation) and simulation.title in repr(simulation)
    assert ft.simulate(comparison.folder, threads=2, models="taskiter").table.equals(simulation.table[:1])
    diagnosis = ft.diagnose(comparison.folder)
    assert simulation.title in str(diagnosis)
    assert len(diagnosis.table) == sum(len(case["findings"]) for case in diagnosis.cases)
    for shown in (simulation, diagnosis):
        assert shown._repr_html_().startswith("<p>")
    for wrong in ({"threads": 0}, {"models": "taskitter"}, {"plan": "no plan"}, {"machine": "none.toml"}):
        with pytest.raises(ft.UsageError, match=str(*wrong.values())):
            ft.simulate(comparison, **wrong)
    with pytest.raises(ft.UsageError, match="needs event logs"):
        ft.Trace(comparison.folder)


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
    assert "taskiter" in str(trace) and "taskiter" in trace._repr_html_() and trace.report.exists()
    assert len(ft.diagnose(trace).cases) == 3  # the plan, and each log
    assert ft.Trace(trace.folder).table.equals(trace.table)


def test_titles_call_a_network_what_its_maker_did(tmp_path):
    """Check that a network given as an object is named in titles, not the file that measuring processes read."""
    network = ft.Network("mine", IMAGE, HEAD)
    mine = ft.compare(network, batch=2, models="serial", threads=1, quick=True, profile=False, out=tmp_path / "out")
    assert "mine at batch" in repr(mine)
    assert re.search(r"^mine, batch \d+, train", str(mine), re.MULTILINE)


def test_a_run_leaves_the_weights_that_samples_hold(comparison):
    """Check that `run` with the sweep's seed and number of iterations has the weights of its samples."""
    run = ft.run("lenet5", model="taskiter", num_threads=2, batch=8, iterations=4)
    assert {ft.weights_hash(run.bound)} == set(comparison.samples["weights_hash"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"reepats": 3}, "did you mean 'repeats'"),
        ({"batch": "16"}, "batch.*whole number"),
        ({"network": "resnet"}, "network must be one of"),
        ({"models": "taskitter"}, "no model is called 'taskitter'"),
        ({"models": "gpu_taskiter"}, "--device gpu"),
    ],
)
def test_compare_refuses_what_it_cannot_measure(given, message, tmp_path):
    """Check that bad arguments of `compare` are one sentence, before anything is measured or written."""
    with pytest.raises(ft.UsageError, match=message):
        ft.compare(**{"threads": 1, **given}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


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


def test_task_functions_refuse_wrong_declarations():
    """Check the sentences for unknown, repeated and missing names, starred parameters and mixed arguments."""

    def one(x):
        pass

    def starred(*x):
        pass

    for function, declared, message in (
        (one, {"reads": "y"}, "got 'y'"),
        (one, {"reads": "x", "writes": "x"}, "'x' twice"),
        (one, {}, "must declare an access"),
        (starred, {"reads": "x"}, "positional"),
    ):
        with pytest.raises(ft.UsageError, match=message):
            ft.task(**declared)(function)
    with pytest.raises(ft.UsageError, match="operation"):
        ft.task(reduction="x", operation="mean")
    graph = ft.UserGraph()
    x = graph.array("x", np.zeros(8))
    with pytest.raises(ft.UsageError, match="'right' of task 'blend' must be a region"):
        blend(x[0:2], x[2:4], 0.5, np.zeros(2))
    with pytest.raises(ft.UsageError, match="its own graph"):
        blend(x[0:2], x[2:4], 0.5, ft.UserGraph().array("z", np.zeros(2)))
