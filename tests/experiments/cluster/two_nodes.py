"""A real Slurm with two nodes on this machine, on loopback alone, in a folder of its own."""

import os
import platform
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

NODES = ("n0", "n1")
# Times are as short as Slurm takes them: a requeued task waits until its credential has expired, and a node that is
# silent is down after some seconds.
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
ReturnToService=2
SlurmdTimeout=4
KillWait=2
JobRequeue=1
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory=2000
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} RealMemory=2000
PartitionName=test Nodes=n0,n1 Default=YES MaxTime=60 OverSubscribe=EXCLUSIVE
"""
DEADLINE_S = 120.0


class TwoNodes:
    """A context manager: in it, `environment` is what commands of Slurm need to find this one."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._processes: dict[str, subprocess.Popen] = {}
        self._stack = ExitStack()

    def __enter__(self):
        (self.folder / "state").mkdir()
        for node in NODES:
            (self.folder / f"spool-{node}").mkdir()
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        names = {"host": platform.node().partition(".")[0], "user": user, "folder": self.folder}
        config = CONFIG.format(**names, ports=_free_ports(3), cpus=os.cpu_count())
        (self.folder / "slurm.conf").write_text(config)
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        munged = [f"--{name}{'' if name in ('socket',) else '-file'}={path}" for name, path in files.items()]
        self._start("munged", ["munged", "--foreground", "--force", f"--key-file={key}", *munged])
        self.until(files["socket"].exists, "munged makes its socket")
        self._start("slurmctld", ["slurmctld", "-D"])
        for node in NODES:
            self.start_node(node)
        self.until(lambda: self.states() == ["idle", "idle"], "both nodes are idle")
        return self

    def __exit__(self, *_):
        self.call("scancel", "--me")
        for name in reversed(list(self._processes)):
            self._stop(name)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._start(node, ["slurmd", "-D", "-N", node])

    def kill_node(self, node: str) -> None:
        """Kill the daemon of a node and all that it has started, as a machine that is switched off."""
        tasks = self._tasks_on(node)
        steps = {_parent(pid) for pid in tasks} - {*tasks, os.getpid(), 1}
        self._processes[node].kill()
        for pid in (*steps, *tasks):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._processes.pop(node).wait()

    def _tasks_on(self, node: str) -> list[int]:
        """Return the processes of jobs on a node of this Slurm."""
        wanted = {f"SLURM_CONF={self.environment['SLURM_CONF']}".encode(), f"SLURMD_NODENAME={node}".encode()}
        result = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted <= {*(path / "environ").read_bytes().split(b"\0")}:
                    result.append(int(path.name))
        return result

    def call(self, *command: str) -> str:
        """Return what a command of Slurm prints."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True).stdout.strip()

    def states(self) -> list[str]:
        """Return the states of both nodes."""
        return self.call("sinfo", "-h", "-N", "-o", "%t").split()

    def until(self, condition, what: str) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            logs = {path.name: path.read_text()[-1000:] for path in self.folder.glob("*.log")}
            assert not ended and time.monotonic() < deadline, f"{what}: {ended} {logs}"
            time.sleep(0.1)

    def _start(self, name: str, command: list[str]) -> None:
        with open(self.folder / f"{name}.out", "ab") as text:
            self._processes[name] = subprocess.Popen(
                command, env=self.environment, stdout=text, stderr=text, stdin=subprocess.DEVNULL
            )

    def _stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _parent(pid: int) -> int:
    """Return the parent of a process: of a batch script, the step's daemon, which has left the node's."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 1
