"""A made-up node: two sockets, four NUMA nodes, 16 CPUs with SMT, emulated by QEMU. Its root is this machine's,
read-only, over 9p; a program runs in it as root and says what it found. For timing it says nothing."""

import contextlib
import glob
import gzip
import json
import lzma
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

BUSYBOX = "/bin/busybox"
CPU = "Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid"  # without what the emulation cannot do
MODULES = ("virtio_pci", "9pnet_virtio", "9p")
# CPU 2n and 2n + 1 are siblings; nodes have four CPUs and 768 MiB each, sockets two nodes.
NODES, CPUS_OF_NODE, MIB_OF_NODE = 4, 4, 768
INIT = """#!{busybox} sh
{busybox} --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
for module in {modules}; do insmod /modules/$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose host /host
mount -t proc none /host/proc
mount -t sysfs none /host/sys
mount -t cgroup2 none /host/sys/fs/cgroup
mount -t devtmpfs none /host/dev
mkdir -p /host/dev/shm
mount -t tmpfs none /host/dev/shm
mount -t tmpfs none /host/tmp
mkdir /host/tmp/home
HOME=/host/tmp/home
cd /
chroot /host /usr/bin/env -i HOME=/tmp/home PATH=/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 {python} -P {program}
echo "ended with $?"
reboot -f
"""


def kernel() -> Path | None:
    """The newest kernel whose modules are there."""
    result = (Path(path) for path in sorted(glob.glob("/boot/vmlinuz-*"), reverse=True))
    return next((path for path in result if os.access(path, os.R_OK) and _modules(path).is_file()), None)


def _modules(image: Path) -> Path:
    return Path("/lib/modules", image.name.removeprefix("vmlinuz-"), "modules.dep")


def is_available() -> bool:
    """Whether a made-up node can be started here."""
    return bool(shutil.which("qemu-system-x86_64") and os.access(BUSYBOX, os.X_OK) and kernel())


def _module_files(image: Path) -> list[Path]:
    """Files of the modules that mount the root, each after those that it needs."""
    needs = {}
    for line in _modules(image).read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    wanted = [path for name in MODULES if (path := by_name.get(name))]  # others are built in
    return [_modules(image).parent / path for last in wanted for path in (*reversed(needs[last]), last)]


def _archive(files: dict[str, bytes]) -> bytes:
    """A cpio archive in the form that the kernel unpacks; files of no bytes are folders."""
    parts = []
    for number, (name, content) in enumerate([*files.items(), ("TRAILER!!!", b"")], 1):
        mode = stat.S_IFREG | 0o755 if content else stat.S_IFDIR | 0o755
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        parts += [head, bytes(-len(head) % 4), content, bytes(-len(content) % 4)]
    return b"".join(parts)


def _initramfs(program: Path) -> bytes:
    files: dict[str, bytes] = dict.fromkeys(("bin", "proc", "sys", "host", "modules"), b"")
    files["bin/busybox"] = Path(BUSYBOX).read_bytes()
    names = []
    for path in dict.fromkeys(_module_files(kernel())):
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        names.append(path.name.removesuffix(".xz"))
        files[f"modules/{names[-1]}"] = content
    init = INIT.format(busybox=BUSYBOX, modules=" ".join(names), python=sys.executable, program=program)
    files["init"] = init.encode()
    return gzip.compress(_archive(files), 1)


def run_in_node(program: Path, folder: Path, limit_s: float) -> dict:
    """Start the node, run a program in it, and return what it says: a JSON object in each line that begins with `>`."""
    initramfs = folder / "initramfs"
    initramfs.write_bytes(_initramfs(program.resolve()))
    cpus = NODES * CPUS_OF_NODE
    command = [
        *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", CPU, "-nodefaults", "-no-reboot"),
        *("-display", "none", "-serial", "stdio", "-m", str(NODES * MIB_OF_NODE)),
        *("-smp", f"{cpus},sockets=2,cores={cpus // 4},threads=2"),
        *("-kernel", str(kernel()), "-initrd", str(initramfs)),
        *("-append", "console=ttyS0 quiet panic=-1 numa_balancing=disable mitigations=off"),
        *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
    ]
    for node in range(NODES):
        first = node * CPUS_OF_NODE
        command += ["-object", f"memory-backend-ram,id=m{node},size={MIB_OF_NODE}M"]
        command += ["-numa", f"node,nodeid={node},cpus={first}-{first + CPUS_OF_NODE - 1},memdev=m{node}"]
    console = folder / "console"
    with console.open("wb") as output, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=limit_s)
    lines = console.read_text(errors="replace").splitlines()
    if "ended with 0" not in lines:
        other = [line for line in lines if line[:1] != ">"]
        raise RuntimeError("\n".join(["the program in the node failed, or took too long:", *other[-100:]]))
    return {key: value for line in lines if line[:1] == ">" for key, value in json.loads(line[1:]).items()}
