"""Misuse of executors: every model answers each one alike, at once, and goes on as if it had not happened."""

import itertools
import os
import signal
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from kinds import forms_of_models

from forktask.cython_src.binding.bind import BlockFailure, bind
from forktask.cython_src.errors import UsageError
from forktask.cython_src.graphs.user_graph import TaskRecorder
from forktask.experiments.subjects.models import make_executor, parse_model
from forktask.forkjoin.executor import JoblibExecutor, _Seats

pytestmark = pytest.mark.timeout(60)
SPECS = forms_of_models("region", "placement", "unroll")
FORKJOIN_SCHEDULES = [
    f"forkjoin:region={region}:schedule={schedule}"
    for region in ("loop", "persistent")
    for schedule in ("static:chunk_size=2", "dynamic", "guided")
]
WAIT_S = 20  # for what comes at once; a hang becomes a failure


class Case:
    """A graph of two counters under one model; `kernel` is called in each of its blocks."""

    pause_s = 0.01  # how long `in_handler` stays in a kernel

    def __init__(self, spec):
        self.spec = spec
        self.kernel = lambda: None
        self.executor = self.make()
        self.bound = self.bind()

    def make(self, num_threads=None, **options):
        """An executor that was not prepared."""
        model = parse_model(self.spec).model
        executor = make_executor(self.spec, model.max_threads or 2)
        if num_threads is None and not options:
            return executor
        executor.close()
        number = (model.max_threads or 2) if num_threads is None else num_threads
        return type(executor)(None if number == "none" else number, **options)

    def bind(self, storage=None):
        def count(region):
            self.kernel()
            region += 1

        recorder = TaskRecorder()
        counters = recorder.array("counters", np.zeros(2))
        for k in range(2):
            recorder.task(count, updates=[counters[k : k + 1]])
        return bind(recorder.plan(), storage)

    def check(self):
        """The executor runs the plan as if nothing had happened."""
        self.bound.arrays["counters"][:] = 0
        self.prepared().run(7)
        assert self.bound.arrays["counters"].tolist() == [7, 7]

    def prepared(self):
        self.executor.prepare(self.bound)
        return self.executor

    @contextmanager
    def running(self):
        """The executor while another thread runs it."""
        entered, leave = threading.Event(), threading.Event()
        failures = []

        def kernel():
            entered.set()
            assert leave.wait(WAIT_S)

        def run():
            try:
                self.executor.run(1)
            except BaseException as error:
                failures.append(error)

        self.kernel = kernel
        executor = self.prepared()
        thread = threading.Thread(target=run, name="first")
        thread.start()
        try:
            assert entered.wait(WAIT_S)
            yield executor
        finally:
            leave.set()
            thread.join(WAIT_S)
            self.kernel = lambda: None
        assert not thread.is_alive() and not failures

    def from_kernel(self, call):
        """Run, with a call in each block; returns what the failed run says."""
        self.kernel = call
        try:
            self.prepared().run(1)
        finally:
            self.kernel = lambda: None

    def close_after(self, call):
        self.prepared()
        self.executor.close()
        call()

    def in_fork(self, call):
        """Make a call in a forked process, and raise what it raised there."""
        self.prepared().run(1)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                call()
                os.write(writing, b"nothing was raised")
            except UsageError as error:
                os.write(writing, f"refused: {error}".encode())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            text = pipe.read().decode()
        os.waitpid(child, 0)
        if text.startswith("refused: "):
            raise UsageError(text.removeprefix("refused: "))

    def in_handler(self, call):
        """Make a call in a signal handler while the main thread runs the executor."""
        former = signal.signal(signal.SIGALRM, lambda *arguments: call())
        pause = threading.Event()
        self.kernel = lambda: pause.wait(self.pause_s)
        try:
            self.prepared()
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            self.executor.run(3000)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
            self.kernel = lambda: None

    def exchange(self, arrays):
        """Run with another array of the same name, in the plan or its storage."""
        executor, mine = self.prepared(), arrays["counters"]
        arrays["counters"] = mine.copy()
        try:
            executor.run(1)
        finally:
            arrays["counters"] = mine

    def reshape(self):
        executor, mine = self.prepared(), self.bound.arrays["counters"]
        mine.shape = (2, 1)
        try:
            executor.run(1)
        finally:
            mine.shape = (2,)

    def beside(self, storage=False):
        """A second executor on the plan that the first one runs, or on another plan of its storage."""
        with self.make() as second:
            second.prepare(self.bind(self.bound.storage) if storage else self.bound)
            with self.running():
                second.run(1)

    def beside_in_kernel(self):
        with self.make() as second:
            second.prepare(self.bound)
            self.from_kernel(lambda: second.run(1))

    def while_running(self, call):
        with self.running() as executor:
            call(executor)


STOP = np.zeros(4)
PLAN = r"needs a plan bound with target"
WHOLE_THREADS = r"^threads must be a whole number in \[1, 4096\], got "
CPUS = r"^cpus must name one CPU out of \[.*\] for each of \d+ threads, got "
EVENTS = r"^event_capacity must be a whole number in \[0, 67108864\], got "
UNPREPARED = r"^executor '\w+' needs a plan before it can run; call prepare\(bound\) first$"
CLOSED = r"^a closed executor runs no plan; make a new one$"
NUMBERS = r"^iterations and first_iteration must be "
FORKED = r"^an executor runs only in the process that made it .* threads do not survive a fork; "
IN_USE = r"^an executor does one thing at a time, and run\(\) is under way in thread "
FROM_KERNEL = IN_USE.replace("^", "^(UsageError: )?")  # of what fails in a kernel, the kernel's failure says so
IN_HANDLER = FROM_KERNEL  # the main thread may be in a kernel
SHARED = r"(UsageError: )?a bound plan, like all plans of its storage, is run by one executor at a time, and another "

MISUSES = {
    "no thread": (lambda c: c.make(0), WHOLE_THREADS + "0$"),
    "half a thread": (lambda c: c.make(1.5), WHOLE_THREADS + "1.5$"),
    "a CPU that is not there": (lambda c: c.make(1, cpus=[8191]), CPUS),
    "a CPU too many": (lambda c: c.make(1, cpus=[0, 0]), CPUS),
    "negative events": (lambda c: c.make(event_capacity=-1), EVENTS),
    "a plan that is not bound": (lambda c: c.executor.prepare(c.bound.plan), PLAN),
    "a plan for another device": (lambda c: c.executor.prepare(SimpleNamespace(target="tpu")), PLAN + ".* got 'tpu'"),
    "a run before a plan": (lambda c: c.executor.run(1), UNPREPARED),
    "a loop before a plan": (lambda c: c.executor.run_while(STOP, max_iterations=1), UNPREPARED),
    "a log before a plan": (lambda c: c.executor.workers, UNPREPARED),
    "a run after a refused plan": (lambda c: refused_then(c, lambda: c.executor.run(1)), UNPREPARED),
    "a run after the end": (lambda c: c.close_after(lambda: c.executor.run(1)), CLOSED),
    "a plan after the end": (lambda c: c.close_after(lambda: c.executor.prepare(c.bound)), CLOSED),
    "a log after the end": (lambda c: c.close_after(lambda: c.executor.workers), UNPREPARED),
    "a negative number": (lambda c: c.prepared().run(-1), NUMBERS),
    "a negative begin": (lambda c: c.prepared().run(2, first_iteration=-1), NUMBERS),
    "an end behind 2^63": (lambda c: c.prepared().run(6, 2**63 - 2), r"^first_iteration \+ iterations must be less"),
    "10^20 iterations": (lambda c: c.prepared().run(10**20), r"must be less than 2\*\*63|must be at most"),
    "2^31 passes": (lambda c: c.prepared().run(2**31), r"^iterations must be at most 2147483647 in one run"),
    "half an iteration": (lambda c: c.prepared().run(0.5), NUMBERS + "whole numbers"),
    "NaN iterations": (lambda c: c.prepared().run(float("nan")), NUMBERS + "whole numbers"),
    "iterations as text": (lambda c: c.prepared().run("1"), NUMBERS + "whole numbers"),
    "None iterations": (lambda c: c.prepared().run(None), NUMBERS + "whole numbers"),
    "a begin as text": (lambda c: c.prepared().run(1, "0"), NUMBERS + "whole numbers"),
    "no array of decisions": (lambda c: c.prepared().run_while(None, max_iterations=1), "^stop must be an array"),
    "too few decisions": (lambda c: c.prepared().run_while(STOP, max_iterations=1, lookahead=4), "^stop must be an"),
    "NaN decisions": (lambda c: c.prepared().run_while(STOP, max_iterations=float("nan")), "^max_iterations must be a"),
    "a negative lookahead": (lambda c: c.prepared().run_while(STOP, max_iterations=1, lookahead=-1), "^lookahead must"),
    "an exchanged array": (lambda c: c.exchange(c.bound.arrays), "exchanged, but 'counters' was"),
    "an array exchanged below": (lambda c: c.exchange(c.bound.storage.arrays), "exchanged, but 'counters' was"),
    "an exchanged shape": (lambda c: c.reshape(), "shape"),
    "a run beside a run": (lambda c: c.while_running(lambda e: e.run(1)), IN_USE + "'first'"),
    "a loop beside a run": (lambda c: c.while_running(lambda e: e.run_while(STOP, max_iterations=1)), IN_USE),
    "a plan beside a run": (lambda c: c.while_running(lambda e: e.prepare(c.bound)), IN_USE + "'first'"),
    "an end beside a run": (lambda c: c.while_running(lambda e: e.close()), IN_USE + "'first'"),
    "two executors on one plan": (lambda c: c.beside(), "^" + SHARED),
    "two plans on one storage": (lambda c: c.beside(storage=True), "^" + SHARED),
    "a run in a signal handler": (lambda c: c.in_handler(lambda: c.executor.run(1)), IN_HANDLER),
    "an end in a signal handler": (lambda c: c.in_handler(lambda: c.executor.close()), IN_HANDLER),
    "a run in a forked process": (lambda c: c.in_fork(lambda: c.executor.run(1)), FORKED),
    "a plan in a forked process": (lambda c: c.in_fork(lambda: c.executor.prepare(c.bound)), FORKED),
    "a run in a kernel": (lambda c: c.from_kernel(lambda: c.executor.run(1)), FROM_KERNEL),
    "a plan in a kernel": (lambda c: c.from_kernel(lambda: c.executor.prepare(c.bound)), FROM_KERNEL),
    "an end in a kernel": (lambda c: c.from_kernel(lambda: c.executor.close()), FROM_KERNEL),
    "another executor in a kernel": (lambda c: c.beside_in_kernel(), "^" + SHARED),
}


def check_misuse(case, misuse):
    """Check what a misuse raises, and that it did no harm."""
    call, text = MISUSES[misuse]
    with pytest.raises((UsageError, BlockFailure), match=text) as raised:
        call(case)
    if isinstance(raised.value, BlockFailure):
        assert isinstance(raised.value.__cause__, UsageError)
    if case.executor.state == "closed":
        case.executor = case.make()
    case.check()


def refused_then(case, call):
    """Make a call after a plan was taken and another one was refused."""
    case.prepared()
    with pytest.raises(UsageError):
        case.executor.prepare(None)
    call()


@pytest.fixture(params=SPECS)
def case(request):
    result = Case(request.param)
    yield result
    result.executor.close()


@pytest.mark.parametrize("misuse", MISUSES)
def test_every_model_answers_a_misuse_alike(case, misuse):
    """Check the sentence, and that the same or a new executor runs the plan right afterwards."""
    check_misuse(case, misuse)


def test_what_is_right_is_no_misuse(case):
    """Check a run of nothing, a second plan, a second end, an end in a forked process, and what `state` says."""
    executor = case.executor
    assert executor.state == "made"
    executor.prepare(case.bound)
    executor.run(0)
    executor.run(2, 5)
    assert executor.state == "prepared" and case.bound.arrays["counters"].tolist() == [2, 2]
    case.in_fork(executor.close)
    executor.prepare(case.bind())
    executor.run(3)
    executor.prepare(case.bound)
    executor.run(1)
    with case.running():
        assert executor.state == "running"
    executor.close()
    executor.close()
    assert executor.state == "closed" and executor.bound is None


@pytest.mark.parametrize("spec", forms_of_models(has=lambda model: model.runs_tasks and not model.is_reference))
def test_a_new_executor_runs_in_a_forked_process(spec):
    """Check that our own threads are made anew where those of the parent are gone."""
    case = Case(spec)

    def run():
        with case.make() as executor:
            executor.prepare(case.bind())
            executor.run(3)
        raise UsageError("ran")

    with pytest.raises(UsageError, match="^ran$"):
        case.in_fork(run)
    case.check()
    case.executor.close()


def test_a_failing_kernel_names_its_exception_first(case):
    """Check the message, and the exception as its cause."""

    def fail():
        raise ArithmeticError("no root")

    with pytest.raises(BlockFailure, match=r"^ArithmeticError: no root; .* failed in iteration 0 with status -1"):
        case.from_kernel(fail)


@pytest.mark.parametrize("case", [*SPECS, *FORKJOIN_SCHEDULES], indirect=True)
def test_no_block_begins_after_ctrl_c(case):
    """Check that of a loop of several blocks a thread those are left out that have not begun."""
    begun, before = [], []

    def interrupt(*arguments):
        before.append(len(begun))
        raise KeyboardInterrupt

    def kernel():
        if not begun:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        begun.append(1)
        threading.Event().wait(0.3)

    def count(region):
        kernel()

    recorder = TaskRecorder()
    counters = recorder.array("counters", np.zeros(8))
    for k in range(8):
        recorder.task(count, updates=[counters[k : k + 1]])
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        case.executor.prepare(bind(recorder.plan()))
        with pytest.raises(KeyboardInterrupt):
            case.executor.run(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert len(begun) <= before[0] + case.executor.num_threads
    case.check()


def test_a_thread_of_joblib_that_comes_late_leaves_its_block_out(monkeypatch):
    """Check a block that was handed to a thread, but had no seat yet, when Ctrl-C ended the run."""
    take, ended, late = _Seats.take, threading.Event(), []

    def take_late(seats):
        late.append(threading.current_thread())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert ended.wait(WAIT_S)
        return take(seats)

    monkeypatch.setattr(_Seats, "take", take_late)
    begun, recorder = [], TaskRecorder()
    recorder.task(begun.append, updates=[recorder.array("counter", np.zeros(1))])
    with JoblibExecutor(2) as executor:
        executor.prepare(bind(recorder.plan()))
        with pytest.raises(KeyboardInterrupt):
            executor.run(1)
    ended.set()
    late[0].join(WAIT_S)
    assert len(late) == 1 and not begun


def test_a_failure_beside_what_a_signal_handler_raises_is_forgotten():
    """Check that the next run does not raise what failed on another thread in the run that the handler ended."""
    case, main, passes = Case("forkjoin:region=persistent"), threading.get_ident(), itertools.count()
    begun, handled = threading.Event(), threading.Event()

    def handle(number, frame):
        assert begun.wait(WAIT_S)
        handled.set()
        raise OSError(28, "No space left on device")

    def kernel():  # the main thread looks for signals between its blocks, by then in every pass
        if threading.get_ident() == main:
            return
        match next(passes) - 20:
            case 1:
                begun.set()
                assert handled.wait(WAIT_S)
                raise ArithmeticError("no root")
            case number:
                time.sleep(0.03)
                if number == 0:
                    signal.pthread_kill(main, signal.SIGALRM)

    former = signal.signal(signal.SIGALRM, handle)
    case.kernel = kernel
    try:
        executor = case.prepared()
        with pytest.raises(OSError, match="No space left"):
            executor.run(100)
    finally:
        signal.signal(signal.SIGALRM, former)
        case.kernel = lambda: None
    executor.run(1)
    executor.close()
