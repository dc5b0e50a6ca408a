"""Model specs."""

import pytest
from kinds import forms_of_models

from forktask.cython_src.binding import execution_model
from forktask.cython_src.binding.bind import bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.task_bench import task_bench
from forktask.experiments.subjects import models
from forktask.experiments.subjects.models import (
    MODELS,
    built_models,
    make_executor,
    parse_model,
    parse_models,
    process_environment,
    runnable,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("serial", "serial"),
        ("forkjoin:region=loop", "forkjoin"),
        ("forkjoin:chunk_size=1:schedule=dynamic", "forkjoin:schedule=dynamic:chunk_size=1"),
        ("forkjoin:region=persistent:schedule=static:chunk_size=0", "forkjoin:region=persistent"),
        ("forkjoin:again=1:region=persistent", "forkjoin:region=persistent:again=1"),
    ],
)
def test_equal_models_have_one_canonical_spec(text, canonical):
    """Check that the order of options and defaults that are spelt out make no other model."""
    assert str(parse_model(text)) == canonical
    assert parse_model(canonical) == parse_model(text)


def test_the_reference_is_fork_join_in_all_its_forms(monkeypatch):
    """Check that both regions take part with static, dynamic and guided schedules, the latter with several chunks, and
    under each OpenMP library that is found; persistent regions with a tree, and static shares by place and with needed
    barriers alone; a form named besides counts once."""
    monkeypatch.setattr(models.glob, "glob", lambda pattern: [])
    alone = parse_models(["serial", "reference", "forkjoin:region=persistent"])
    assert len(alone) == 1 + 2 * (1 + 2 * 3) + 3 + 3 and {spec.name for spec in alone} == {"serial", "forkjoin"}
    result = {tuple(spec.option(name) for name in ("region", "schedule", "chunk_size")) for spec in alone[1:]}
    assert {("loop", "static", 0), ("persistent", "dynamic", 2), ("loop", "guided", 8)} <= result
    assert not any(schedule == "static" and chunk for _, schedule, chunk in result)
    monkeypatch.setattr(models.glob, "glob", lambda pattern: ["/usr/lib/libomp.so.5"])
    both = parse_models(["reference"])
    assert len(both) == 2 * (len(alone) - 1) + 1  # and libomp's distributed barrier
    (dist,) = (spec for spec in both if spec.option("join") == "dist")
    assert {"LD_PRELOAD", "KMP_PLAIN_BARRIER_PATTERN"} < process_environment(dist).keys()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("openmp", ["openmp", "serial", "forkjoin"]),
        ("forkjoin:regoin=loop", ["regoin", "region", "chunk_size"]),
        ("forkjoin:region=static", ["static", "loop, persistent"]),
        ("forkjoin:join=tree", ["join=tree", "region=persistent"]),
        ("forkjoin:region=persistent:join=dist", ["join=dist", "runtime=libomp"]),
        ("forkjoin:order=place", ["order=place", "region=persistent"]),
        ("forkjoin:region=persistent:schedule=guided:barrier=needed", ["barrier=needed", "schedule=static"]),
        ("forkjoin:chunk_size=-1", ["-1", "whole number"]),
        ("forkjoin:persistent", ["persistent", "option=value"]),
        ("forkjoin:region=loop:region=persistent", ["twice"]),
        ("forkjoin:again=two", ["again=two"]),
        ("serial:region=loop", ["none", "region=loop"]),
        ("", ["''", "serial"]),
    ],
)
def test_what_is_wrong_and_what_is_known_is_said(text, names):
    """Check that each error names the value received and what would do."""
    with pytest.raises(UsageError) as error:
        parse_model(text)
    assert all(name in str(error.value) for name in names)


def test_a_model_that_was_not_built_is_refused_with_a_remedy(monkeypatch):
    """Check that what to install is said, and what there is."""
    monkeypatch.setattr(type(MODELS["serial"]), "is_built", property(lambda model: model.name != "starpu"))
    text = r"^forktask must be built with the library of model 'starpu', and was built without; install the library "
    with pytest.raises(UsageError, match=text + r"\(.*\), then forktask again, or take one of serial, forkjoin"):
        parse_models(["starpu"])


def test_a_model_given_twice_counts_once():
    """Check that duplicates vanish, also in another spelling, and that none is refused."""
    assert [str(s) for s in parse_models(["forkjoin", "serial", "forkjoin:region=loop"])] == ["forkjoin", "serial"]
    with pytest.raises(UsageError, match="at least one model"):
        parse_models([])


@pytest.mark.parametrize("name", forms_of_models())
def test_every_value_of_the_table_is_taken(name):
    """Check that executors accept each word that a spec may give them (the OpenMP runtime is chosen earlier)."""
    for option, field in MODELS[name].fields.items():
        if option in ("runtime", "profile", "program"):  # chosen before the process starts; paths
            continue
        for value in field.choices or (str(max(field.limits.ge or 0, 2)),):  # with the options that it needs
            needed = {"slots": ":unroll=2", **dict.fromkeys(("join", "order"), ":region=persistent")}.get(option, "")
            needed += ":runtime=libomp" * (value == "dist") + ":region=persistent" * (value == "needed")
            make_executor(f"{name}:{option}={value}{needed}", 1).close()


def test_another_openmp_runtime_is_preloaded(monkeypatch):
    """Check what a process on libomp must start with, and the messages where there is none, or another is loaded."""
    assert process_environment(parse_model("openmp_tasks")) == process_environment(parse_model("forkjoin")) == {}
    monkeypatch.setattr("forktask.experiments.subjects.models.glob.glob", lambda pattern: ["libomp.so.5"])
    for name in ("openmp_tasks", "forkjoin:region=persistent"):
        assert process_environment(parse_model(f"{name}:runtime=libomp")) == {"LD_PRELOAD": "libomp.so.5"}
        with make_executor(f"{name}:runtime=libomp", 1) as executor, pytest.raises(UsageError, match="LD_PRELOAD"):
            executor.prepare(bind(task_bench("no_comm", 2, 2)))
    monkeypatch.setattr("forktask.experiments.subjects.models.glob.glob", lambda pattern: [])
    with pytest.raises(UsageError, match="libomp5"):
        process_environment(parse_model("openmp_tasks:runtime=libomp"))


def test_a_model_whose_library_cannot_be_loaded_is_not_there(monkeypatch):
    """Check that a package built beside a library works where the library is absent, and says so of the model alone."""

    def refuse(name):
        raise OSError("libtbb.so.12: cannot open shared object file")

    monkeypatch.setattr(execution_model.ctypes, "CDLL", refuse)
    execution_model.load_library.cache_clear()
    try:
        assert "tbb" not in built_models() and "serial" in built_models()
        with pytest.raises(UsageError, match="install the library .forkjoin.README.md., then forktask again"):
            runnable("tbb")
    finally:
        execution_model.load_library.cache_clear()


def test_outside_stands_for_the_runtimes_of_others_that_are_here(monkeypatch):
    """Check that it names the built ones alone, in each construct, next to models that are named, and joblib not."""
    monkeypatch.setattr(type(MODELS["serial"]), "is_built", property(lambda model: model.name not in ("tbb", "ompss2")))
    result = [str(spec) for spec in parse_models(["taskiter", "outside"])]
    assert result == ["taskiter", "openmp_tasks", "taskflow", "starpu", "starpu:construct=tags"]
