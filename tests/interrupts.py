"""Ctrl-C during a run."""

import os
import signal
import threading
import time

import pytest


def stop_by_ctrl_c(executor, after_s=0.2):
    """Start a run of many minutes, send SIGINT after some seconds, and check that the run ends with KeyboardInterrupt.

    How soon it ends depends on what else the machine does; a run that does not end fails by the test's time limit.
    """

    def interrupt():
        time.sleep(after_s)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        executor.run(10**6)
    thread.join()
