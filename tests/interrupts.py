"""Ctrl-C during a run."""

import os
import signal
import threading
import time

import pytest


def seconds_until_stopped(executor, after_s=0.2):
    """Start a long run, send SIGINT after some seconds, and return the seconds from then to KeyboardInterrupt."""
    sent = []

    def interrupt():
        time.sleep(after_s)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        executor.run(10**6)
    elapsed = time.monotonic() - sent[0]
    thread.join()
    return elapsed
