"""Model specs."""

import inspect
import os
from importlib import import_module

import pytest

from forktask.cython_src.errors import UsageError
from forktask.experiments.sampling.models import (
    MODELS,
    built_models,
    check_threads,
    make_executor,
    parse_model,
    parse_models,
    process_environment,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("serial", "serial"),
        ("forkjoin:region=loop", "forkjoin"),
        ("forkjoin:chunk_size=1:schedule=dynamic", "forkjoin:schedule=dynamic:chunk_size=1"),
        ("forkjoin:region=persistent:schedule=static:chunk_size=0", "forkjoin:region=persistent"),
    ],
)
def test_equal_models_have_one_canonical_spec(text, canonical):
    """Check that the order of options and defaults that are spelt out make no other model."""
    assert str(parse_model(text)) == canonical
    assert parse_model(canonical) == parse_model(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("openmp", ["openmp", "serial", "forkjoin"]),
        ("forkjoin:regoin=loop", ["regoin", "region", "chunk_size"]),
        ("forkjoin:region=static", ["static", "loop, persistent"]),
        ("forkjoin:chunk_size=-1", ["-1", "whole number"]),
        ("forkjoin:persistent", ["persistent", "option=value"]),
        ("forkjoin:region=loop:region=persistent", ["twice"]),
        ("serial:region=loop", ["none", "region=loop"]),
        ("", ["''", "serial"]),
    ],
)
def test_what_is_wrong_and_what_is_known_is_said(text, names):
    """Check that each error names the value received and what would do."""
    with pytest.raises(UsageError) as error:
        parse_model(text)
    assert all(name in str(error.value) for name in names)


def test_a_model_given_twice_counts_once():
    """Check that duplicates vanish, also in another spelling, and that none is refused."""
    assert [str(s) for s in parse_models(["forkjoin", "serial", "forkjoin:region=loop"])] == ["forkjoin", "serial"]
    with pytest.raises(UsageError, match="at least one model"):
        parse_models([])


@pytest.mark.parametrize("name", built_models() + built_models("gpu"))
def test_the_table_says_what_the_executors_take(name):
    """Check that options and defaults of the table are those of each executor's constructor."""
    model = MODELS[name]
    module = import_module(f"forktask{model.module}")
    own = {
        parameter.name: parameter.default
        for ancestor in getattr(module, model.class_name).__mro__
        if "__init__" in vars(ancestor) and ancestor is not object
        for parameter in inspect.signature(ancestor).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    for option, known in model.options.items():
        if option == "profile":  # a folder, read for the executor's durations
            assert own["durations_s"] is None
        else:
            assert own[option] == known.default
    assert (
        set(own) - {"durations_s", "num_threads", "cpus", "event_capacity", "spin_ns", "watchdog_s", *model.options}
        == set()
    )


def test_more_threads_than_cores_must_be_wanted():
    """Check the limits on the number of threads."""
    assert check_threads(2, available=2) == 2
    assert check_threads(3, available=2, oversubscribe=True) == 3
    with pytest.raises(UsageError, match="--oversubscribe"):
        check_threads(3, available=2)
    with pytest.raises(UsageError, match="at least 1"):
        check_threads(0, available=2, oversubscribe=True)
    with pytest.raises(UsageError, match="must run on one thread"):
        make_executor("serial", 2)


def test_executors_get_their_options():
    """Check that a spec reaches the executor."""
    with make_executor("forkjoin:schedule=dynamic:region=persistent", 2) as executor:
        assert (executor.model, executor.num_threads) == ("forkjoin", 2)
        assert (executor.schedule, executor.region) == ("dynamic", "persistent")


@pytest.mark.parametrize("name", built_models())
def test_every_value_of_the_table_is_taken(name):
    """Check that executors accept each word that a spec may give them (the OpenMP runtime is chosen earlier)."""
    for option, known in MODELS[name].options.items():
        if option in ("runtime", "profile"):  # chosen before the process starts; a folder
            continue
        for value in known.values or (str(max(known.minimum, 2)),):
            unroll = ":unroll=2" if option == "slots" else ""  # of what there are no more than
            cpus = [min(os.sched_getaffinity(0))] if value == "swap" else None  # only pinned threads swap
            make_executor(f"{name}:{option}={value}{unroll}", 1, cpus=cpus).close()


def test_another_openmp_runtime_is_preloaded(monkeypatch):
    """Check what a process of openmp_tasks on libomp must start with, and the message where there is none."""
    assert process_environment(parse_model("openmp_tasks")) == {}
    monkeypatch.setattr("forktask.experiments.sampling.models.glob.glob", lambda pattern: ["libomp.so.5"])
    assert process_environment(parse_model("openmp_tasks:runtime=libomp")) == {"LD_PRELOAD": "libomp.so.5"}
    monkeypatch.setattr("forktask.experiments.sampling.models.glob.glob", lambda pattern: [])
    with pytest.raises(UsageError, match="libomp5"):
        process_environment(parse_model("openmp_tasks:runtime=libomp"))
