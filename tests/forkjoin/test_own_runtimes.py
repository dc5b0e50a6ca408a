"""Runtimes of the user's own: libraries of the interface outside.h, made of the guide's, and objects of modules."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from own_runtime import GUIDE, QUEUE, build
from programs import run_forktask

import forktask as ft
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.commands.main import main
from forktask.experiments.conformance.cases import CASES, check_model
from forktask.experiments.subjects.models import make_executor, parse_model, read_model

pytestmark = pytest.mark.cc

LOOPS = """
#include "forkjoin/outside.h"
#include <omp.h>
static void *prepare(OutsideRun *run, int *error) { (void)error; return run; }
static int run_all(void *session)
{
    OutsideRun *run = session;
    run->team_size = run->num_threads;
    for (int64_t r = run->first_replay; r < run->first_replay + run->num_replays; r++)
        for (int l = 0; l < run->num_loops; l++)
            for (int b = 0; b < run->loops[l].num_blocks; b++)
                forktask_run_outside(run, &run->loops[l], b, r, 0, 1);
    return 0;
}
static void end(void *session) { (void)session; }
static const OutsideOption options[] = {{"order", "plan", "plan|reverse", "order"}, {"note", "", NULL, NULL}, {0}};
FORKTASK_RUNTIME = {FORKTASK_OUTSIDE_VERSION, FORKTASK_LOOPS, prepare, run_all, end, 1, "2.5", options};
"""


def test_a_library_that_takes_the_closed_graph_sees_the_next_iterations_edges(tmp_path):
    """Check that a runtime without a wait between iterations gets the edges that it needs, and is described so."""
    source = QUEUE.replace("FORKTASK_GRAPH", "FORKTASK_CLOSED_GRAPH").replace(
        "    run->team_size = 1;",
        "    if (run->num_former_predecessors[0] == 0 || run->successor_split[run->num_nodes - 1] "
        "== run->successor_offsets[run->num_nodes])\n        abort();\n    run->team_size = 1;",
    )
    model = parse_model(build(tmp_path, source=source)).model
    assert (model.records, model.closes, model.barrier) == (True, True, "none")
    with make_executor(model.name, 2) as executor:
        executor.prepare(bind(task_bench("no_comm", 2, 2)))
        executor.run(2)


def test_options_of_a_library_stand_in_the_name_and_reach_it(tmp_path):
    """Check the record that a library's options become, and what a wrong one is told."""
    source = LOOPS.replace("return run; }", 'return strcmp(forktask_option(run, "order"), "reverse") ? run : NULL; }')
    name = build(tmp_path, source=source)
    spec = parse_model(f"{name}:order=reverse")
    assert str(spec) == f"{name}:order=reverse" and str(parse_model(f"{name}:order=plan")) == name
    assert spec.model.origin["version"] == "2.5" and spec.model.joins_loops
    with pytest.raises(UsageError, match="option 'order' .* must be one of plan, reverse; got 'sideways'"):
        parse_model(f"{name}:order=sideways")
    with pytest.raises(UsageError, match="may be order, note; got 'colour=1'"):
        parse_model(f"{name}:colour=1")
    bound = bind(task_bench("no_comm", 2, 2))
    with make_executor(name, 2) as executor:
        executor.prepare(bound)
        executor.run(1)
    with make_executor(spec, 2) as executor, pytest.raises(RuntimeError, match="must return a session, got NULL"):
        executor.prepare(bound)


def test_one_file_goes_through_the_commands(tmp_path, monkeypatch):
    """Check compare, trace and metg by a relative path, what rows keep, and a report where the library is gone."""
    build(tmp_path)
    monkeypatch.chdir(tmp_path)
    model = "lib:./libmine.so"
    command = ["compare", "--quick", "--network", "lenet5", "--models", f"serial,{model}", "--threads", "2"]
    assert main([*command, "--out", "result"]) == 0
    rows = [json.loads(line) for line in Path("result/samples.jsonl").read_text().splitlines()]
    ours = [row for row in rows if row.get("model") == model and row["kind"] in ("sample", "profile")]
    assert ours and all(len(row["origin"]["sha256"]) == 64 for row in ours)
    assert {row["origin"]["file"] for row in ours} == {str(tmp_path / "libmine.so")}
    assert {str(row["origin"]) for row in rows if row.get("model") == "serial"} == {"{}"}
    assert main(["trace", "--network", "lenet5", "--models", model, "--threads", "2", "--out", "logs"]) == 0
    assert main(["metg", "--models", model, "--threads", "2", "--quick", "--out", "costs"]) == 0
    Path("libmine.so").unlink()
    report = run_forktask("report", "result", "--all")
    assert report.returncode == 0 and model in report.stdout, report.stderr


@pytest.mark.parametrize("words", [["compare", "--network", "lenet5"], ["metg", "--pattern", "trivial"]])
def test_a_rebuilt_library_does_not_go_on_in_the_folder_of_another(tmp_path, monkeypatch, capsys, words):
    """Check that times of two libraries of one name are not joined."""
    build(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = [*words, "--quick", "--models", "serial,lib:./libmine.so", "--threads", "2"]
    assert main([*command, "--out", "result"]) == 0
    path = Path("result/samples.jsonl")
    path.write_text(re.sub(r'"sha256":\s*"\w{64}"', '"sha256":"' + "0" * 64 + '"', path.read_text()))
    assert main([*command, "--out", "result"]) == 2
    assert "must be of one file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, words",
    [
        ("lib:", "must name the file of a shared library"),
        ("lib:./none.so", "found no file .*none.so.; build it first"),
        ("lib:./text.so", "must be a shared library that can be loaded, got: .*(too short|invalid ELF)"),
        ("lib:./bare.so", "must have the symbol forktask_runtime .*found none; build it with forkjoin/outside.h"),
        ("lib:./old.so", "must have interface 1, got 77; build it with"),
        ("nowhere:MODEL", "module 'nowhere' must be importable"),
        ("objects.py:NUMBER", "must be an ExecutionModel of forktask.runtimes, got int"),
        ("objects.py:NONE", "must have a function 'NONE', found none"),
    ],
)
def test_what_is_no_model_is_refused_in_one_sentence(tmp_path, monkeypatch, capsys, text, words):
    """Check that a file that is missing, no library, without the symbol or of another interface is refused, exit 2."""
    (tmp_path / "text.so").write_text("text")
    (tmp_path / "objects.py").write_text("NUMBER = 3\n")
    version = "const int forktask_runtime[64] = {77};\n"
    for name, source in (("bare", "int x;\n"), ("old", version)):
        subprocess.run(
            ["cc", "-shared", "-xc", "-", "-o", tmp_path / f"{name}.so"], input=source, text=True, check=True
        )
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--quick", "--models", f"serial,{text}", "--threads", "1"]) == 2
    assert re.search(words, capsys.readouterr().err)


BAD = {
    "crashes in prepare": (("run->team_size = 1;", "abort();"), "killed by SIGABRT"),
    "starts too few": (("run->team_size = 1;", "run->team_size = 1; run->num_threads = 1;"), "threads but started 1"),
    "does not say": (("run->team_size = 1;", "run->team_size = -1; return s;"), "did not set team_size"),
    "other bits": (("s->replay = run->first_replay + i", "s->replay = 0"), "weights|losses|must"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_runtime_that_fails_is_a_row_and_nothing_else_is_lost(tmp_path, kind):
    """Check that its process dies or is refused alone: the row says why, and the other models are measured."""
    change, words = BAD[kind]
    if kind == "starts too few":
        change = ("i < run->num_threads; i++)\n        if", "i < 1; i++)\n        if")
        model = build(
            tmp_path,
            change,
            (
                "while (__atomic_load_n(&run->team_size, __ATOMIC_RELAXED) < run->num_threads)\n        sched_yield();",
                "",
            ),
            ("for (int i = 1; i < s->run->num_threads; i++)", "for (int i = 1; i < 1; i++)"),
        )
    else:
        model = build(tmp_path, change)
    out = tmp_path / "result"
    command = ["compare", "--quick", "--network", "lenet5", "--threads", "2"]
    main([*command, "--models", f"serial,{model}", "--out", str(out)])
    rows = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    (failure,) = [row for row in rows if row["kind"] == "failure" and row["measuring"] == "sample"]
    assert failure["model"] == model and re.search(words, failure["message"])
    assert [row["model"] for row in rows if row["kind"] == "sample"] == ["serial"]


def test_a_run_that_never_ends_is_a_row(tmp_path, capsys):
    """Check that the time limit ends it: a lost successor lets the caller wait for ever."""
    model = build(tmp_path, ("s->left--;", "s->left -= node != 0;"))
    (tmp_path / "sweep.toml").write_text(
        f'title = "t"\n[grid]\nnetwork = ["lenet5"]\nmodels = ["serial", "{model}"]\nthreads = [2]\nbatch = [4]\n'
        f"[measure]\ntime_limit_s = 5\n"
    )
    main(["run", str(tmp_path / "sweep.toml"), "--quick", "--out", str(tmp_path / "result")])
    rows = [json.loads(line) for line in (tmp_path / "result" / "samples.jsonl").read_text().splitlines()]
    assert {row["reason"] for row in rows if row["kind"] == "failure"} == {"timeout"}


def test_an_object_of_a_module_is_a_model_under_its_own_name(tmp_path, monkeypatch):
    """Check a class in Python: it runs, its options are a record, and the name holds the place where it is found."""
    (tmp_path / "objects.py").write_text(
        "from forktask.cython_src.binding.execution_model import ExecutionModel\n"
        "from forktask.forkjoin.models import ForkJoinOptions\n"
        'MINE = ExecutionModel("serial", ".forkjoin.executor:ForkJoinExecutor", ForkJoinOptions)\n'
    )
    monkeypatch.chdir(tmp_path)
    spec = parse_model("objects.py:MINE:region=persistent")
    assert (spec.name, spec.option("region")) == ("objects.py:MINE", "persistent")
    bound = bind(task_bench("fft", 8, 6))
    with make_executor(spec, 2) as executor:
        executor.prepare(bound)
        executor.run(3)
        assert executor.model == "objects.py:MINE"


POOL = re.search(r'^text = """(.*?)^"""', GUIDE, re.MULTILINE | re.DOTALL)[1]


def test_the_guides_class_in_python_conforms(tmp_path, monkeypatch):
    """Check it by the kit, as any model; Ctrl-C may interrupt a lock of Python's own queue, which then raises."""
    (tmp_path / "pool.py").write_text(POOL)
    monkeypatch.chdir(tmp_path)
    rows = list(check_model(parse_model("pool.py:POOL"), (2,)))
    assert len(rows) == len(CASES)
    assert [row["fault"] for row in rows if row["fault"] and row["case"] != "Ctrl-C"] == []


def test_two_packages_with_one_name_are_refused(monkeypatch):
    """Check that an entry point is found, needs a dot in its name, and never stands for one of two."""
    from importlib.metadata import EntryPoint

    from forktask.experiments.subjects import own_models

    module = "forktask.forkjoin.models"
    installed = [EntryPoint(name, f"{module}:TBB", "forktask.models") for name in ("a.queue", "bare", "b.q", "b.q")]

    def entry_points(group, name):
        return [entry for entry in installed if (entry.group, entry.name) == (group, name)]

    monkeypatch.setattr(own_models, "entry_points", entry_points)
    assert own_models.own_model("a.queue").name == "a.queue"
    for name in ("bare", "b.q"):
        with pytest.raises(UsageError, match="must have a name with a dot that no other has"):
            own_models.own_model(name)


@pytest.mark.parametrize("text", ["lib:./gone.so", "lib:./gone.so:order=reverse", "gone.py:MODEL:n=3", "package.queue"])
def test_names_of_models_that_are_not_here_are_read(text):
    """Check that rows of such models can be reported on."""
    assert str(read_model(text)) == text


def test_layouts_belong_to_the_interfaces_number(tmp_path):
    """Check that no record changed its size or order without another number: libraries are built against both."""
    program = (
        '#include "forkjoin/outside.h"\n#include <stdio.h>\n'
        'int main(void) { printf("%d %zu %zu %zu %zu %zu %zu %zu %zu", FORKTASK_OUTSIDE_VERSION, '
        "sizeof(OutsideRun), sizeof(OutsideLibrary), sizeof(WorkerState), sizeof(LoopRecord), "
        "sizeof(ThreadState), sizeof(SignalPoll), offsetof(OutsideRun, options), offsetof(WorkerState, failed_task)); }"
    )
    command = ["cc", "-xc", "-", f"-I{ft.get_include()}", "-o", str(tmp_path / "sizes")]
    subprocess.run(command, input=program, text=True, check=True)
    sizes = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout
    assert sizes == "1 264 56 128 56 1040 40 256 112"
