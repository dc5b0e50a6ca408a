"""Arguments of a wrong type: whatever users call answers in one sentence."""

import copy
import inspect
import math
import pickle
import signal
import traceback
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from experiments.synthetic_results import synthetic_rows, write_rows

import forktask as ft
from forktask import kernels, plans, public
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_functions import KINDS
from forktask.experiments.sweep.runner import SweepRunner

WRONG = [None, "x", 3, -1, 0.5, [], [None], object()]
SOME_WRONG = [None, "", math.nan, 10**22, object()]
LONGEST_S = 30  # of a call
IMAGE = (3, 8, 8)
LAYERS = (ft.Conv2d("conv", 4, 3, 1), ft.GlobalAvgPool("pool"), ft.Linear("fc", 4), ft.SoftmaxCrossEntropy())
# What a parameter of a name may be, wherever it comes; others keep their default.
SAMPLES = {
    **dict.fromkeys(("threads", "iterations", "max_iterations", "grainsize"), 1),
    **dict.fromkeys(("factor", "groups", "channels", "num_tasks"), 1),
    **dict.fromkeys(("out_channels", "out_features", "features", "num_classes", "sequence", "total"), 4),
    **dict.fromkeys(("heads", "size"), 2),
    **dict.fromkeys(("vocabulary", "positions"), 8),
    **dict.fromkeys(("num_joins", "loop", "task"), 0),
    **dict.fromkeys(("array", "stop", "view"), np.zeros(4)),
    **dict.fromkeys(("train", "valid", "test", "labels", "successor_split", "num_intra"), np.zeros(1, np.int32)),
    **dict.fromkeys(("num_cross", "events", "successors"), np.zeros(1, np.int32)),
    **dict.fromkeys(("kernel", "function"), print),
    **{name: {} for name in ("about", "loops", "buffers", "operands", "values")},
    "result": None,
    **dict.fromkeys(("losses", "low", "high", "elapsed_s"), 1.0),
    **dict.fromkeys(("bounds", "index"), (0,)),
    **dict.fromkeys(("name", "description", "where", "path", "out", "results", "buffer"), "stored"),
    "network": ft.Network("n", IMAGE, LAYERS),
    "inputs": ("pool", "fc"),
    "embedding": "e",
    "input_shape": IMAGE,
    "layers": LAYERS,
    "spec": "synthetic:16",
    "head": ft.TiedHead("head", "e"),
    **dict.fromkeys(("model", "reference"), "serial"),
    "arrays": {"a": np.zeros(2, np.float32)},
    "condition": bool,
    "form": "chain",
    "shape": (2, 2),
    "phase": "forward",
    "seconds": 1.0,
    "class_names": ("a",),
    "edges": np.zeros((3, 0)),
    "images": np.zeros((1, *IMAGE), np.float32),
    "box": ((0, 1),),
    "declared": dict.fromkeys(KINDS, ()),
    "accesses": (),
    "blocks": [plans.Block((0,), ())],
    "successor_offsets": np.zeros(2, np.int32),
    "closed": False,
    "value": "full",
    "cases": [],
    "rows": [],
    **dict.fromkeys(("title", "text", "table", "error"), "stored"),
    "charts": {},
    "data": (np.zeros((2, *IMAGE), np.float32), np.zeros(2, np.int32)),
    "n": 1,
    "verdict": "same",
}


def network(tokens=False):
    """A network that is quickly lowered."""
    return ft.get_network("gpt2_tiny") if tokens else SAMPLES["network"]


def plan():
    return ft.lower(network(), batch=2)


def prepared():
    """An executor with a plan."""
    runner = ft.executor("serial")
    runner.prepare(ft.bind(plan()))
    return runner


def graph():
    """A graph of one task."""
    made = ft.UserGraph("g")
    made.task(lambda x: None, updates=made.array("x", np.zeros(4)))
    return made


def builder():
    made = plans.PlanBuilder("p")
    made.buffer("x", (4,), role="temporary")
    return made


@cache
def comparison_in(folder):
    return ft.Comparison(write_rows(folder / "stored", list(synthetic_rows(batches=(64,)))))


def comparison():
    return comparison_in(Path.cwd())


def samples():
    """Name of what users call -> (a function that makes it, its arguments beside `SAMPLES`)."""
    result = {}
    for module in (public, plans, kernels):
        for name in module.__all__:
            value = getattr(module, name)
            elsewhere = (ft.BoundPlan, ft.from_torch, ft.check_against_torch)  # the last two need PyTorch
            elsewhere += (ft.info,)  # what they take would be measured
            made_here = value in elsewhere or (inspect.isclass(value) and issubclass(value, BaseException))
            if callable(value) and not made_here:
                result[f"{module.__name__}.{name}"] = value
    return result


WITH_SETTINGS = ("evaluate", "lower", "metg", "train")  # whose `**` is tested too
METHODS = {
    "Network": network,
    "Executor": prepared,
    "UserGraph": graph,
    "Storage": ft.Storage,
    "BoundPlan": lambda: ft.bind(plan()),
    "Comparison": comparison,
    "Dataset": lambda: ft.load_data("synthetic:16"),
    "TaskArray": lambda: graph().arrays["x"],
    "PlanBuilder": builder,
    "Plan": plan,
    "PlanOptions": ft.PlanOptions,
    "TaskGraph": lambda: plans.record_graph(plan().accesses),
}
OWN = {
    "public.bind": lambda: {"plan": plan()},
    "public.lower": lambda: {"batch": 2},
    "public.initialise": lambda: {"bound": ft.bind(plan())},
    "public.weights_hash": lambda: {"bound": ft.bind(plan())},
    "public.Run": lambda: {"bound": ft.bind(plan())},
    "public.Executor": lambda: {"runner": ft.executor("serial")._runner},
    "public.Comparison": lambda: {"folder": "stored"},
    "public.Trace": lambda: {"folder": "stored"},
    "public.Region": lambda: {"array": graph().arrays["x"]},
    "public.TaskArray": lambda: {"graph": graph()},
    "public.fit": lambda: {"batch": 2, "model": "serial"},
    "public.Ratio": lambda: {"value": 1.0},
    "public.evaluate": lambda: {"weights": "stored", "data": "digits"},
    "public.train": lambda: {"data": "digits"},
    "public.run": lambda: {"batch": 2},
    "public.compare": lambda: {"batch": 2, "models": "serial", "threads": 1, "repeats": 1},
    "public.trace": lambda: {"batch": 2, "models": "serial"},
    "public.get_network": lambda: {"name": "lenet5"},
    "public.task": lambda: {"reads": "x"},
    "plans.check_accesses": lambda: {"plan": plan()},
    "plans.check_orders": lambda: {"bound": ft.bind(plan()), "num_orders": 1},
    "plans.find_unused_reads": lambda: {"plan": plan()},
    "plans.span_in_tasks": lambda: {"graph": plans.record_graph(plan().accesses)},
    "plans.record_graph": lambda: {"access_table": plan().accesses},
    "plans.BlockLoop": lambda: {"attributes": {}},
    "plans.Access": lambda: {"kind": 0},
    "plans.Plan": lambda: {"loops": (), "accesses": plan().accesses},
    "Executor.prepare": lambda: {"bound": ft.bind(plan())},
    "PlanBuilder.buffer": lambda: {"name": "y"},
    "PlanBuilder.loop": lambda: {"operands": {"x": "x"}},
    "PlanBuilder.shape": lambda: {"name": "x"},
    "Storage.arrays_for": lambda: {"plan": plan()},
}


def cases():
    """(name, callable maker) of each function, constructor and method."""
    for name, value in samples().items():
        yield name, lambda value=value: value
    for kind, make in METHODS.items():
        owner = getattr(plans, kind, None) or getattr(ft, kind)
        for name in dir(owner):
            if (
                not name.startswith("_")
                and (kind != "BoundPlan" or name == "view")
                and callable(inspect.getattr_static(owner, name))
            ):
                yield f"{kind}.{name}", lambda make=make, name=name: getattr(make(), name)


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch, tmp_path):
    """Let no comparison measure, nothing be written but here, and no call last for ever."""

    def refuse(*arguments):
        raise UsageError("measured")

    def end(*arguments):
        raise TimeoutError("a call that does not end")

    monkeypatch.setattr(SweepRunner, "run", refuse)
    monkeypatch.setattr("forktask.experiments.metg.metg.measure_in_process", refuse)
    for name in ("train", "evaluate"):
        monkeypatch.setattr(f"forktask.experiments.training.{name}.{name}", refuse)
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGALRM, end)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ft.metg(widht=3), "got 'widht'"),
        (lambda: ft.Dropout("d", 1.0), "rate.* got 1.0"),
        (lambda: ft.Conv2d("c", 0), "out_channels.* got 0"),
        (lambda: ft.ReLU(""), "name.* got ''"),
        (lambda: ft.Add("a", ("b",)), r"inputs.* got \('b',\)"),
        (lambda: plans.PlanBuilder("p").unrolled(0), "factor.* got 0"),
        (lambda: ft.metg([]), "must have one at least"),
        (lambda: ft.metg(network="lenet5", steps=4), "--steps is an option of Task Bench graphs"),
        (lambda: ft.metg("trivial", radix=2), "--radix is for the patterns"),
        (lambda: ft.info().figure("x"), "there is none"),
        (lambda: ft.executor("taskiter", threads=2, cpus=[0, 0, 0]), "for each of 2 threads"),
        (lambda: ft.run("lenet5", batch=2, algorithms="weights:16x256x256x8x8=direct"), "of these plans"),
        (lambda: comparison().ratio("taskiter", "forkjoin", plan=""), "exactly one plan's id"),
        (lambda: copy.copy(prepared()), "copied or pickled"),
        (lambda: pickle.dumps(ft.executor("serial")), "copied or pickled"),
        (lambda: ft.fit("lenet5", ft.load_data("digits"), learning_rate=math.nan), "learning_rate of fit"),
        (lambda: ft.simulate("stored", seed=-1), "seed of simulate"),
    ],
)
def test_the_sentence_names_what_is_wrong(call, sentence):
    """Check wrong types and ranges that once were taken, or ended in another exception."""
    with pytest.raises(UsageError, match=f"\\A[^\n]*{sentence}[^\n]*\\Z"):
        call()


def test_what_fits_is_taken():
    """Check numbers of NumPy, lists for tuples, and whole numbers for others."""
    assert ft.Conv2d("c", np.int64(4)) == ft.Conv2d("c", 4)
    assert type(ft.Conv2d("c", np.int64(4)).out_channels) is int
    assert ft.Add("a", ["b", "c"]) == ft.Add("a", ("b", "c"))
    assert ft.Dropout("d", 0).rate == 0
    assert ft.Network("n", list(IMAGE), list(LAYERS)) == ft.Network("n", IMAGE, LAYERS)


def test_a_network_of_few_classes_gets_labels_of_its_own():
    """Check random labels of a network with fewer classes than the shipped ones."""
    assert ft.run(network(), model="serial", batch=8, iterations=2).mean_loss > 0


@pytest.mark.parametrize(("name", "make"), [pytest.param(*case, id=case[0]) for case in cases()])
def test_a_wrong_type_is_one_sentence(name, make):
    """Check each parameter with values of other types: they are taken, or refused in a sentence."""
    parameters = inspect.signature(make()).parameters.values()
    own = OWN.get(name.removeprefix("forktask."), dict)()
    single = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    given = {**{p.name: SAMPLES[p.name] for p in single if p.name in SAMPLES}, **own}
    inspect.signature(make()).bind(**given)  # or nothing below is a test
    failures = []
    settings = make().settings if name.removeprefix("forktask.public.") in WITH_SETTINGS else ()
    for parameter in [*(parameter.name for parameter in single), *settings]:
        for value in SOME_WRONG if parameter in settings else WRONG + SOME_WRONG:
            signal.alarm(LONGEST_S)
            try:
                made = make()(**{**given, parameter: value})
                if hasattr(made, "close"):
                    made.close()
            except UsageError as error:
                assert "\n" not in str(error)
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                if not (isinstance(error, TypeError) and len(frames) == 1):
                    failures.append(f"{name}({parameter}={value!r}): {type(error).__name__}: {error} at {frames[-1]}")
            finally:
                signal.alarm(0)
    assert not failures, "\n".join(failures)


LONE = "a\ud800b"


@pytest.mark.parametrize(
    "use",
    [
        lambda path, name: ft.write_safetensors(path, {name: np.ones(2)}),
        lambda path, name: ft.write_safetensors(path, {"a": np.ones(2)}, {"key": name}),
        lambda path, name: ft.write_safetensors(path.with_name(name), {"a": np.ones(2)}),
        lambda path, name: ft.Network(name, IMAGE, LAYERS),
        lambda path, name: ft.Linear(name, 4),
        lambda path, name: ft.Embedding("e", 4, positions=name),
        lambda path, name: ft.Positions("e", types=name),
        lambda path, name: ft.UserGraph(name),
        lambda path, name: ft.UserGraph("g").array(name, np.ones(4)),
        lambda path, name: plans.PlanBuilder(name),
        lambda path, name: plans.PlanBuilder("p").buffer(name, (3,)),
    ],
)
def test_names_can_be_written(use, tmp_path):
    """Check that a lone surrogate, which no file can hold, is refused where the name is given, and others are taken."""
    with pytest.raises(UsageError, match=r"\A.*ud800.*\Z"):
        use(tmp_path / "x.safetensors", LONE)
    assert not [*tmp_path.iterdir()]
    use(tmp_path / "x.safetensors", "stra\u00dfe \u4e2d \U0001f600")


def test_sentences_name_what_is_wrong(tmp_path):
    """Check a mapping of another type of values, layers that need one buffer, and a file that cannot be read."""
    with pytest.raises(UsageError, match=r"must be a mapping of a text to values of type ndarray, got \{'a'"):
        ft.write_safetensors(tmp_path / "x", {"a": [1.0]})
    with pytest.raises(UsageError, match=r"\A/proc/self/mem cannot be read \(Input/output error\); name a"):
        ft.read_safetensors("/proc/self/mem")
    builder = plans.PlanBuilder("p")
    builder.buffer("c", (3,))
    with pytest.raises(UsageError, match=r"'c' must have one use, got activation of float32 \(3,\) and log of int32"):
        builder.buffer("c", (4,), "int32", "log")
