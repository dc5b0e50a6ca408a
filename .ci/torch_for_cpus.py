"""Read pip's report of an installation of PyTorch, and refuse a build that brings CUDA: gigabytes that no test needs.

pip install --dry-run --no-deps --quiet --report - torch | python .ci/torch_for_cpus.py
"""

import json
import re
import sys

text = sys.stdin.read()
if not text.strip():
    sys.exit("PyTorch must come from a package index, pip found none; see its message above")
found = json.loads(text)["install"]
for package in found:
    needed = [line for line in package["metadata"].get("requires_dist", ()) if "extra ==" not in line]
    cuda = [line.split(";")[0] for line in needed if re.match(r"nvidia|cuda|triton", line)]
    if cuda:
        sys.exit(
            f"PyTorch must come without CUDA, got {package['metadata']['version']} that needs {', '.join(cuda)}; "
            f"name an index with builds for CPUs: TORCH_INDEX=https://..."
        )
    print("PyTorch", package["metadata"]["version"])
