"""PyTorch, and llm.c for GPT-2, on the same network and threads, in turns with forktask's models."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec

from ...cython_src.errors import UsageError, check_choice
from ...cython_src.lowering.lower import lower
from ...cython_src.lowering.options import PlanOptions, describe, plan_options
from ...cython_src.networks.layers import Network
from ...cython_src.networks.registry import get_network
from ...cython_src.plan.model import Plan
from ...cython_src.records import Record, about
from ...cython_src.typed_text import MOST_SECONDS
from ..analysis.agreement import LOSS_TOLERANCES, differences, disagreement
from ..analysis.estimates import Estimate, Estimates
from ..machine.environment import collect
from ..plan_check.checking import check_together
from ..results.turns import GroupTurns, mostly_in, quiet_times
from ..sampling.child import SAMPLE_COMMAND
from ..sampling.generation import LEAST_ROUNDS, Contestant, Generation, contestant_of, measure_generation
from ..sampling.schedule import Job, Schedule
from ..subjects.memory import check_some_fit
from ..subjects.models import check_threads, counts_for, options_for, parse_model
from ..tables import Column, text_table
from ..tables.columns import USABLE, count_column, text_column
from ..tables.numbers import interval, moved_text, plural
from ..tables.progress import format_seconds
from .llmc_worker import BATCH, SEQUENCE, sizes_of

TORCH_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.peers.torch_worker")
LLMC_COMMAND = (sys.executable, "-P", "-m", "forktask.experiments.peers.llmc_worker")
# eager          PyTorch's default; attention of tokens as a product, a masked softmax and a product
# channels_last  channels of images in the innermost dimension
# sdpa           attention of tokens through scaled_dot_product_attention
# compile        compiled by torch.compile; attention of tokens as in sdpa
MODES = ("eager", "channels_last", "sdpa", "compile")
MODES_OF_IMAGES = ("eager", "channels_last", "compile")
MODES_OF_TOKENS = ("eager", "sdpa", "compile")
TORCH = "torch "  # beginning of the names of PyTorch's modes among the contestants
LLMC = "llm.c"
INTERRUPTED = "interrupted"
WARMUP_S = 1.0  # longest warm-up of forktask's models before they are timed
TIME_LIMIT_S = 300.0  # of a process, where no budget says how long it may take


class PeersSettings(Record, frozen=True):
    """Settings of the comparison with other programs."""

    llmc: Annotated[str, about("llm.c's train_gpt2, built for the processor, to measure beside")] = ""
    repeats: Annotated[int, about("processes of each", least=1, below=100_001)] = 5
    seconds: Annotated[float, about("timed in each process", above=0, below=MOST_SECONDS)] = 0.6
    rounds: Annotated[
        int, about("turns of each process, at least, however long its steps are", least=1, below=1001)
    ] = LEAST_ROUNDS
    seed: Annotated[int, about("of weights and data", least=0)] = 0
    check: Annotated[bool, about("check the plan of a network of one's own, once, before it is measured")] = True


def compare_with_torch(
    network: str,
    options: PlanOptions,
    settings: PeersSettings,
    *,
    models: Sequence[str],
    modes: Sequence[str] | None,
    threads: Sequence[int],
    budget_s: float | None,
    device: str,
) -> dict[str, Any]:
    """Measure PyTorch and forktask's models in turns, in each repetition in fresh processes.

    Ctrl-C and the end of the budget stop it: the result then holds what was measured until then, and says so.

    Parameters
    ----------
    models : sequence of str
        Specs of models of the device.
    modes : sequence of str or None
        Modes of PyTorch, some of `modes_of` the network; None: all of these.
    budget_s : float or None
        No repetition begins that would end later, and no process goes on for longer.
    device : {"cpu", "gpu"}

    Returns
    -------
    dict
        The result of `summarise`, the conditions, failures and raw samples; "stopped": empty, "interrupted", or that
        the budget is spent.

    Raises
    ------
    UsageError
        No PyTorch, an impossible mode, model or number of threads, no program of llm.c, answers that differ, or an
        unsound plan.
    KeyboardInterrupt
        Before the first sample.
    """
    spec = get_network(network)
    modes = modes_of(spec) if modes is None else tuple(modes)
    _check_torch(spec, modes, device)
    llmc = _check_llmc(settings.llmc, spec, options, device) if settings.llmc else ""
    specs = [parse_model(part) for part in models]
    ours = [(str(spec), count) for spec in specs for count in counts_for(spec, threads)]
    theirs = [(f"{TORCH}{mode}", count) for count in threads for mode in modes]
    contestants = [*theirs, *((LLMC, count) for count in threads if llmc), *ours]
    for count in threads:
        check_threads(count)
    check_some_fit([(network, options)])
    # The plan of forktask's models, for the table; measuring processes lower it again.
    plan = lower(network, options.with_changes(**options_for(specs[0], options.conv, options.granularity)))
    checked = check_together([{"network": network, **options.as_dict()}], ours, settings.check)
    conditions = {"network": network, **options.as_dict()}
    job = {
        "kind": "sample",
        "plan": conditions,
        "seed": settings.seed,
        "check_iterations": len(LOSS_TOLERANCES),
        "warmup_s": WARMUP_S,
        "device": device,
        "llmc": llmc,
    }
    samples, groups, failures, stopped = _measure(contestants, job, plan, settings, budget_s)
    if stopped == INTERRUPTED and not samples:
        raise KeyboardInterrupt
    for key, message in wrong_modes(samples).items():
        failures[_key_text(key)] = message
        del samples[key]
    return {
        **summarise(samples, groups),
        "convolutions": convolution_forms(plan, device),
        **conditions,
        "flops": plan.flops,
        "environment": collect(),
        "check": checked,
        "failures": failures,
        "stopped": stopped,
        "repeats": settings.repeats,
        "samples": {_key_text(key): values for key, values in samples.items()},
        "rounds": [
            {"repetition": each.generation, "group": each.group, **msgspec.to_builtins(each.rounds)} for each in groups
        ],
    }


def modes_of(network: Network) -> tuple[str, ...]:
    """Return the modes that have a meaning for a network."""
    return MODES_OF_TOKENS if network.tokens else MODES_OF_IMAGES


def check_modes(network: Network, modes: tuple[str, ...]) -> None:
    """Raise `UsageError` for a mode that PyTorch has not, or that has no meaning for a network."""
    for mode in modes:
        check_choice("a PyTorch mode", mode, MODES)
        if mode not in modes_of(network):
            kind = "tokens" if network.tokens else "images"
            raise UsageError(
                f"PyTorch's mode {mode!r} has no meaning for networks of {kind}, such as {network.name!r}; choose from "
                f"{', '.join(modes_of(network))}"
            )


def _check_torch(network: Network, modes: Sequence[str], device: str) -> None:
    """Raise `UsageError` if PyTorch has no such modes of a network, is not there, or does not see the GPU."""
    check_modes(network, modes)
    if modes and importlib.util.find_spec("torch") is None:
        raise UsageError(
            "peers needs PyTorch, which is not installed; run: pip install torch, or leave PyTorch out with --modes ,"
        )
    if device == "gpu":
        import torch

        if not torch.cuda.is_available():
            raise UsageError(
                f"PyTorch must see the GPU too, and torch {torch.__version__} does not; install a CUDA build of PyTorch"
            )


def _check_llmc(program: str, network: Network, options: PlanOptions, device: str) -> str:
    """Return the path of a program of llm.c.

    Raises
    ------
    UsageError
        No such program, or a comparison for which it was not written.
    """
    sizes_of(network)
    if device == "gpu":
        raise UsageError("llm.c's program of --llmc runs on the processor, got --device gpu; leave one out")
    wanted = {"batch": BATCH, "sequence": SEQUENCE, "phase": "train", "optimizer": "adamw"}
    for name, value in wanted.items():
        if getattr(options, name) != value:
            raise UsageError(
                f"{name} must be {value}, all that llm.c's program does, got {getattr(options, name)}; use --{name} "
                f"{value}"
            )
    path = shutil.which(program)
    if path is None:
        raise UsageError(f"--llmc must name a program that can be run, got {program!r}; run make train_gpt2 in llm.c")
    return os.path.abspath(path)


def _is_torch(name: str) -> bool:
    """Return whether a contestant is a mode of PyTorch."""
    return name.startswith(TORCH)


def _is_peer(name: str) -> bool:
    """Return whether a contestant is none of forktask's models."""
    return _is_torch(name) or name == LLMC


def _contestant(key: tuple[str, int], job: Mapping[str, Any], plan: Plan, limit_s: float) -> Contestant:
    """Return the process that measures a mode of PyTorch, llm.c or a model on a number of threads."""
    name, count = key
    return contestant_of(
        _key_text(key),
        "serial" if _is_peer(name) else name,
        count,
        limit_s=limit_s,
        # theirs beside ours, with temporaries
        planned_bytes=sum(plan.memory_bytes().values()) * (3 if _is_peer(name) else 1),
        command=TORCH_COMMAND if _is_torch(name) else LLMC_COMMAND if name == LLMC else SAMPLE_COMMAND,
        mode=name.removeprefix(TORCH) if _is_torch(name) else None,
        **job,
    )


def _key_text(key: tuple[str, int]) -> str:
    return f"{key[0]} @ {key[1]}"


def _measure(
    contestants: Sequence[tuple[str, int]],
    job: Mapping[str, Any],
    plan: Plan,
    settings: PeersSettings,
    budget_s: float | None,
) -> tuple[dict[tuple[str, int], dict[int, dict]], list[GroupTurns], dict[str, str], str]:
    """Measure all contestants in turns, in each repetition in fresh processes.

    Returns
    -------
    samples, groups, failures, stopped
        As in the result of `compare_with_torch`, samples by contestant and repetition; the groups that took turns, with
        (contestant, threads) as points.
    """
    samples: dict[tuple[str, int], dict[int, dict]] = {c: {} for c in contestants}
    groups: list[GroupTurns] = []
    failures: dict[str, str] = {}
    budget_spent = f"the budget of {format_seconds(budget_s)} is spent" if budget_s is not None else ""
    stopped = ""

    def keep(row: tuple[tuple[str, int], int, Mapping[str, Any]]) -> None:
        nonlocal stopped
        key, repetition, answer = row
        if "failure" not in answer:
            samples[key][repetition] = dict(answer)
        elif answer["failure"] == "timeout" and budget_spent:
            stopped = budget_spent
        else:
            failures[_key_text(key)] = f"{answer['failure']}: {answer['message'].splitlines()[0]}"

    schedule = Schedule("measuring", keep, budget_s=math.inf if budget_s is None else budget_s)

    def generation(repetition: int) -> Iterator[tuple[tuple[str, int], int, Mapping[str, Any]]]:
        limit_s = TIME_LIMIT_S if budget_s is None else max(budget_s - schedule.spent_s, 0.0)
        alive = {_key_text(key): key for key in contestants if _key_text(key) not in failures}
        processes = [_contestant(key, job, plan, limit_s) for key in alive.values()]
        most = max((key for key in alive.values() if not _is_peer(key[0])), key=lambda key: key[1], default=("", 0))
        seed = f"{job['seed']}/{repetition}"
        measured = measure_generation(Generation(processes, _key_text(most), settings.seconds, settings.rounds, seed))
        for number, group in enumerate(measured):
            turns = {alive[name]: own for name, own in group.turns().items()}
            groups.append(GroupTurns(repetition, number, group.rounds, turns))
            for name, answer in group.answers.items():
                yield alive[name], repetition, answer

    def jobs() -> Iterator[Job]:
        nonlocal stopped
        for repetition in range(settings.repeats):
            if stopped or not schedule.with_room({None: schedule.took.get(None, 0.0)}):
                stopped = budget_spent
                return
            said = plural(len(contestants), "contestant")
            yield Job(f"repetition {repetition + 1} of {settings.repeats}", said, partial(generation, repetition))

    try:
        schedule.run(jobs(), settings.repeats)
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    if stopped:
        for key, rows in samples.items():
            if not rows:
                failures.setdefault(_key_text(key), stopped)
    return {c: rows for c, rows in samples.items() if rows}, groups, failures, stopped


def convolution_forms(plan: Plan, device: str) -> dict[str, int]:
    """Count the passes of convolutions (forward, data gradient, weight gradient) by algorithm."""
    taken = dict(plan.attributes.get("convolutions", {}))
    if device == "gpu":
        weights = [loop.name for loop in plan.loops if loop.kernel == "nhwc_conv_backward_weights"]
        taken |= dict.fromkeys(weights, "direct")
    return dict(Counter(taken.values()))


def wrong_modes(samples: Mapping[tuple[str, int], Mapping[int, Mapping]]) -> dict[tuple[str, int], str]:
    """Say how the answers of PyTorch's modes differ from those of its first mode, for those that do.

    torch.compile 2.13, for one, sends no gradient through LeNet-5's pooling on a CPU: such a mode is no peer.
    """
    of_torch = {key: next(iter(rows.values()))["answer"] for key, rows in samples.items() if _is_torch(key[0])}
    if not of_torch:
        return {}
    (first, _), answer = next(iter(of_torch.items()))
    wrong = {key: disagreement(answer, other) for key, other in of_torch.items()}
    return {key: f"wrong answers: beside {first}'s, this mode's {text}" for key, text in wrong.items() if text}


def summarise(samples: Mapping[tuple[str, int], Mapping[int, Mapping]], groups: Iterable[GroupTurns]) -> dict[str, Any]:
    """Return typical times and, for forktask's models, ratios to PyTorch's fastest mode.

    Parameters
    ----------
    samples : mapping
        Rows by contestant and threads, then repetition.
    groups : iterable of GroupTurns
        Their turns; those of contestants without samples count for nothing.

    Raises
    ------
    UsageError
        Losses or probabilities of two contestants differ by more than rounding: then no time is reported.
    """
    # llm.c's process has compared its losses with ours: it trains with a learning rate and a batch of its own.
    answered = {key: rows for key, rows in samples.items() if key[0] != LLMC}
    reference_name, reference = next(
        ((key, next(iter(rows.values()))["answer"]) for key, rows in answered.items()), (None, [])
    )
    difference = 0.0
    for (name, count), rows in answered.items():
        for row in rows.values():
            if wrong := disagreement(reference, row["answer"]):
                raise UsageError(
                    f"answers must agree before times are compared, but beside {reference_name[0]}'s that of {name} on "
                    f"{count} threads {wrong}; this is a fault of the program"
                )
            difference = max(difference, *differences(reference, row["answer"]))
    quiet = quiet_times(groups)
    measured = {key: own for key, own in quiet.times.items() if key in samples}
    times, disturbed = Estimates(measured, quiet.loud), mostly_in(measured, quiet.disturbed)
    rows = []
    for name, count in measured:
        row = {
            "name": name,
            "threads": count,
            **_with_interval("step_time_s", times.time((name, count))),
            "samples": len(samples[name, count]),
            "usable": (name, count) not in disturbed,
        }
        modes = [key for key in measured if _is_torch(key[0]) and key[1] == count]
        if not _is_peer(name) and modes:
            ratio = times.ratio_to_fastest((name, count), modes).inverse()
            row.update(peer=times.fastest(modes)[0])
            row.update(_with_interval("speedup", ratio))
        if not _is_peer(name) and (LLMC, count) in measured:
            ratio = times.ratio((LLMC, count), (name, count))
            row.update(_with_interval("llmc_speedup", ratio))
        rows.append(row)
    rows.sort(key=lambda row: (row["threads"], not _is_peer(row["name"]), row["step_time_s"]))
    return {"rows": rows, "moved": [*quiet.moved.values()], "largest_difference": difference}


def _with_interval(name: str, ratio: Estimate) -> dict[str, float]:
    """Return a ratio and, where more than one repetition was compared, the ends of its interval."""
    ends = {f"{name}_low": ratio.low, f"{name}_high": ratio.high} if math.isfinite(ratio.low) else {}
    return {name: ratio.value, **ends}


def ratios_of(row: Mapping[str, Any]) -> dict[str, Estimate]:
    """Return the ratios of peers' times to that of a row's model, by peer."""
    peers = {"speedup": row.get("peer"), "llmc_speedup": LLMC}
    ends = ("", "_low", "_high")
    return {
        peer: Estimate(*(row.get(f"{name}{end}", math.nan) for end in ends), row["samples"])
        for name, peer in peers.items()
        if name in row
    }


def _said_ratios(row: Mapping[str, Any]) -> str:
    said = ((f"{ratio.value:.2f}", interval(ratio.low, ratio.high), peer) for peer, ratio in ratios_of(row).items())
    return "; ".join(" ".join(filter(None, (value, ends, f"({peer})"))) for value, ends, peer in said)


COLUMNS = (
    count_column("threads"),
    text_column("name", "contestant"),
    count_column("samples", "runs"),
    Column("ms a step", lambda row: f"{row['step_time_s'] * 1e3:.3f}", True),
    Column("+-", lambda row: _half_width_ms(row), True),
    Column("faster than PyTorch's best mode", _said_ratios),
    USABLE,
)


def _half_width_ms(row: Mapping[str, Any]) -> str:
    known = "step_time_s_low" in row
    return f"{(row['step_time_s_high'] - row['step_time_s_low']) / 2 * 1e3:.3f}" if known else ""


def about_text(result: Mapping[str, Any]) -> str:
    """Say what was compared, and where."""
    others = describe(plan_options(result), leave_out=("batch", "phase"))
    plan = f"{result['network']}, batch {result['batch']}, {result['phase']}{', ' + others if others else ''}"
    return f"{plan}, on {result['environment']['cpu']['model']}"


def as_text(result: Mapping[str, Any]) -> str:
    """Format the result of `compare_with_torch` for a terminal."""
    passes = ", ".join(f"{form} in {n} passes" for form, n in result["convolutions"].items())
    lines = [
        about_text(result),
        *([f"our convolutions: {passes}"] if passes else []),
        f"answers of the first steps agree within {result['largest_difference']:.1e} (relative)",
        "",
        *text_table(COLUMNS, result["rows"]),
        "",
    ]
    if any(row["name"] == LLMC for row in result["rows"]):
        lines.append(
            f"{LLMC}: by its own clock, AdamW without decay or clipping; its first losses were compared with ours of "
            "the same steps"
        )
    lines.append("factors are quotients of the times; brackets: 95 % interval of the ratios paired by repetition")
    if result["moved"]:
        lines.append(moved_text(result["moved"], len(result["rounds"]), "generation"))
    if result["stopped"]:
        lines.append(f"{result['stopped']}: each contestant was to have {result['repeats']} runs")
    by_message: dict[str, list[str]] = {}
    for name, message in result["failures"].items():
        by_message.setdefault(message, []).append(name)
    lines.extend(f"not measured: {', '.join(names)}: {message}" for message, names in by_message.items())
    return "\n".join(lines)
