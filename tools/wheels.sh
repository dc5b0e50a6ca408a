#!/bin/sh
# Make a folder of wheels for a machine without a package index: this package for one Python, with its commit built in, and
# what that machine lacks.
#
#     tools/wheels.sh FOLDER [PYTHON [NAME ...]]
#
# PYTHON is the machine's kind (default: python3.12), NAME packages to bring along (default: msgspec). There, with NumPy and the
# other requirements of pyproject.toml present:
#
#     python3 -m pip install --no-index --no-deps --target SITE FOLDER/*.whl
#     PYTHONPATH=SITE python3 -m forktask info
set -eu
test $# -ge 1 || { sed -n '2,/^set/{s/^# \{0,1\}//;/^set/d;p}' "$0" >&2; exit 2; }
folder=$1 python=${2:-python3.12}
shift $(($# < 2 ? $# : 2))
test $# -gt 0 || set -- msgspec
here=$(cd "$(dirname "$0")/.." && pwd)
newest=2.36 # glibc of Debian 12: what the wheel may need of a machine

mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$here"
"$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$work" "$@"
"$python" - "$newest" "$work"/forktask-*.whl <<'END'
import re
import sys
import zipfile

newest = tuple(map(int, sys.argv[1].split(".")))
with zipfile.ZipFile(sys.argv[2]) as wheel:
    for name in wheel.namelist():
        if name.endswith(".so"):
            for needed in set(re.findall(rb"GLIBC_(\d+)\.(\d+)", wheel.read(name))):
                if tuple(map(int, needed)) > newest:
                    version = b".".join(needed).decode()
                    sys.exit(f"{name} must need no glibc above {sys.argv[1]}, but needs {version}; build on an older system")
END
mv "$work"/*.whl "$folder"
ls "$folder"
