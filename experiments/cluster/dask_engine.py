"""Shards on the workers of a Dask cluster that the user has started.

A worker has one shard at a time, and each is bound to its worker: Dask holds the death of a worker against all tasks
that were sent to it. So this client looks who is there, and gives a lost shard again, under a new key.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from ...cython_src.closing import Closing
from ...cython_src.errors import UsageError, optional
from ..machine.environment import version_text
from ..results.rows import AnyRow, RunRow, row_of
from ..sweep.configuration import Configuration, Shard
from ..tables.progress import say
from .client import MOST_TIMES, lost_rows
from .dask_worker import SHARD_COMMAND, end_shards, greet, measure_shard

REPLY_S = 10.0  # longest time for a reply of the scheduler, or for rows to come from a worker
LOOK_S = 0.5  # between two looks at who is there
REST_S = 600.0  # of a shard's limit: all but its samples and profiles
SHARED_HOSTS = "FORKTASK_DASK_SHARED_HOSTS"  # set in tests: workers may share a host


class DaskEngine(Closing):
    """A Dask cluster as an engine of `client.measure_on`; a context manager.

    Parameters
    ----------
    address : str
        Of the scheduler, such as `tcp://10.0.0.1:8786`.
    command : str
        The user's.
    shard_command : sequence of str
        Arguments of the workers' Python that start the process which measures a shard.

    Raises
    ------
    UsageError
        The package `distributed` is not installed, or nobody answers at the address.
    """

    def __init__(
        self, address: str, configuration: Configuration, command: str, *, shard_command: Sequence[str] = SHARD_COMMAND
    ):
        distributed = optional("distributed", "--on dask", "dask")
        self._address, self._configuration = address, configuration
        self._shard_command = tuple(shard_command)
        self._job = {
            "configuration": configuration.as_dict(),
            "how_to_read": configuration.how_to_read,
            "command": command,
            "folder": os.getcwd(),
        }
        self._seen: dict[str, dict[str, Any] | None] = {}  # what each worker is, None: refused
        self._begun: set[str] = set()  # workers whose node is known
        self._run: RunRow | None = None
        try:
            _check_listens(address)
            self._client = distributed.Client(address, timeout=REPLY_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"--on dask:ADDRESS must name a Dask scheduler that answers, got {address!r} ({error}); start one with "
                f"`dask scheduler`, which prints its address"
            ) from None

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def fetch(self, keep: Callable[[Sequence[AnyRow]], object]) -> None:
        """Keep nothing: rows live nowhere but with the client that asked for them."""

    def measure(
        self,
        shards: Sequence[Shard],
        keep: Callable[[Sequence[AnyRow]], object],
        show: Callable[[int, int, int], object],
    ) -> bool:
        """Have shards measured, as `client.Engine` says; what has come when it is interrupted is kept. Raises
        `UsageError`: a worker that cannot measure this configuration, or may not beside the others; the scheduler is
        gone."""
        waiting = deque((shard, 1) for shard in shards)
        running: dict[str, tuple[Any, Shard, int]] = {}  # worker -> future, shard, how often it was given
        done: SimpleQueue = SimpleQueue()
        lost = 0

        def finish(address: str, reply: Mapping[str, Any]) -> None:
            nonlocal lost
            _, shard, times = running[address]
            if reply.get("failure") == "usage":
                del running[address]
                raise UsageError(f"{address}: {reply['message']}")
            if "rows" in reply:
                rows = [row_of(row) for row in reply["rows"]]
                self._run = next((row for row in rows if isinstance(row, RunRow)), self._run)
                self._begun.add(address)
            elif times < MOST_TIMES:
                lost += 1
                waiting.append((shard, times + 1))
                del running[address]
                return
            else:
                message = f"lost {times} times, at last: {reply['message']}"
                if self._run is None:
                    raise UsageError(f"no worker of {self._address} gave an answer, a shard was {message}")
                rows = lost_rows(shard, self._configuration, self._run, message)
            with _uninterrupted():
                del running[address]
                keep(rows)

        try:
            while waiting or running:
                live = self._workers()
                for address in running.keys() - live:
                    running[address][0].cancel()
                    finish(address, {"message": f"the worker {address} is gone"})
                for address in [address for address in live if address not in running][: len(waiting)]:
                    shard, times = waiting.popleft()
                    running[address] = self._give(address, shard), shard, times
                    running[address][0].add_done_callback(lambda future: done.put(future.key))
                show(len(running), len(waiting), lost)
                with suppress(Empty):
                    key = done.get(timeout=LOOK_S)
                    for address, (future, *_) in [*running.items()]:
                        if future.key == key:
                            finish(address, self._reply(future))
        except (KeyboardInterrupt, UsageError):
            for address, (future, *_) in [*running.items()]:  # what was measured meanwhile
                if future.done() and "rows" in (reply := self._reply(future)):
                    finish(address, reply)
            raise
        finally:
            if running:
                with suppress(OSError):  # the scheduler is gone, and its workers end with it
                    self._client.cancel([future for future, *_ in running.values()])
                    self._client.run(end_shards, workers=[*running], on_error="ignore")
        return True

    def _give(self, address: str, shard: Shard) -> Any:
        """Return the future of a shard on a worker."""
        limit_s = REST_S + self._configuration.measure.time_limit_s * (len(shard.samples) + len(shard.profiles))
        job = {**self._job, "shard": msgspec.to_builtins(shard), "begin": address not in self._begun}
        return self._client.submit(
            measure_shard,
            job,
            limit_s,
            self._shard_command,
            key=f"forktask-{uuid.uuid4().hex}",
            workers=[address],
            pure=False,
        )

    def _reply(self, future: Any) -> dict[str, Any]:
        """Return the reply of a worker, {"message"} where it was lost."""
        try:
            return future.result(timeout=REPLY_S)
        except Exception as error:  # whatever a worker raised, or Dask on the way
            return {"message": f"{type(error).__name__}: {error}"}

    def _workers(self) -> list[str]:
        """Return the addresses of the workers that may measure.

        Those that are there at first must all be fit; later ones that are not are left out with a sentence.
        """
        try:
            live = sorted(self._client.nthreads())
        except OSError as error:
            raise UsageError(
                f"the Dask scheduler must live as long as the sweep, got no answer from {self._address} ({error}); "
                f"what was measured is kept: start it and give the same command again"
            ) from None
        first, new = not self._seen, [address for address in live if address not in self._seen]
        for address, reply in (self._client.run(greet, workers=new, on_error="return") if new else {}).items():
            reason = self._unfit(address, reply, live)
            if reason and first:
                raise UsageError(reason)
            if reason or reply["is_watched"]:
                text = (
                    f"{address} is left out: {reason}"
                    if reason
                    else (
                        f"{address} looks at its own threads 100 times per second, which costs time; start workers "
                        f"with DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False"
                    )
                )
                say(text)
            self._seen[address] = None if reason else reply
        return [address for address in live if self._seen.get(address)]

    def _unfit(self, address: str, reply: Any, live: Sequence[str]) -> str:
        """Return why a worker may not measure together with the others."""
        if isinstance(reply, BaseException) or reply["version"] != version_text():
            result = reply["version"] if isinstance(reply, dict) else f"{type(reply).__name__}: {reply}"
            return (
                f"every worker must have forktask {version_text()}, got {result} at {address}; install the same there"
            )
        one = self._configuration.measure.nodes == "one"
        for other, seen in self._seen.items():
            if seen and seen["instruction_sets"] != reply["instruction_sets"]:
                sets = (" and ".join(each["instruction_sets"]) for each in (seen, reply))
                return (
                    f"workers must have the same instruction sets, got {next(sets)} at {other} and {next(sets)} at "
                    f"{address}; measure each kind of node into a folder of its own"
                )
            if seen and seen["host"] != reply["host"] and one:
                return (
                    f'workers on several hosts need nodes = "pooled" in [measure], got {other} on {seen["host"]} and '
                    f"{address} on {reply['host']}; set it, or start one worker"
                )
            if seen and seen["host"] == reply["host"] and other in live and not os.environ.get(SHARED_HOSTS):
                return (
                    f"workers must have a host each, since they would disturb each other, got {other} and {address} on "
                    f"{reply['host']}; start one a host"
                )
        return ""


def _check_listens(address: str) -> None:
    """Raise `ValueError` or `OSError` unless a scheduler listens there: Dask tries a wrong name for long."""
    where = address.rpartition("://")[2].partition("/")[0]
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit() or int(port) >= 1 << 16:
        raise ValueError("it must have a host and a port")
    socket.create_connection((host.strip("[]"), int(port)), REPLY_S).close()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the shard ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        signal.raise_signal(signal.SIGINT)
