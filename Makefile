PYTHON ?= python3
VENV ?= .venv
OUT ?= comparison
BIN := $(VENV)/bin
SOURCES := $(shell git ls-files 2>/dev/null)
# What an installation is made from; pages are no part of it.
BUILT_FROM := $(filter-out %.md,$(filter meson.build pyproject.toml api/% cython_src/% experiments/% forkjoin/% tasking/%,\
	$(SOURCES)))
PYTEST := $(BIN)/python -P -m pytest
# Tests that run beside no other test, since they read a clock or count what threads do.
ALONE := $(wildcard tests/forkjoin/test_*executor.py $(addprefix tests/tasking/test_,closure.py executor.py placement.py \
	stopping.py unroll.py) tests/scaling tests/test_conduct.py tests/test_life_cycle.py)
# Kinds of tests that need further packages (tests/kinds.py): all of them, and what each needs from Debian and PyPI.
FURTHER := torch zoo jax tokenizers nbclient numba dask cupy simplejpeg browser tbb starpu libomp relacy slurm rehearsal \
	made_up_node
DEBIAN_browser := chromium-driver
DEBIAN_tbb := g++
DEBIAN_rehearsal := g++
DEBIAN_starpu := libstarpu-dev
DEBIAN_libomp := libomp-dev
DEBIAN_relacy := g++ relacy-dev
DEBIAN_made_up_node := qemu-system-x86 busybox-static linux-image-amd64
DEBIAN_slurm := munge slurm-client slurmctld slurmd
PYPI_torch := torch==2.13.0
PYPI_zoo := $(PYPI_torch) torchvision==0.28.0 transformers>=5
PYPI_jax := jax>=0.7
PYPI_tokenizers := tokenizers>=0.20
PYPI_nbclient := nbclient>=0.10 ipykernel>=6
PYPI_numba := numba>=0.60
PYPI_dask := distributed>=2026.1
PYPI_simplejpeg := simplejpeg>=1.7
PYPI_browser := selenium>=4.20
PYPI_cupy := cupy-cuda12x>=14
# PyTorch built for CPUs: PyPI's own build needs gigabytes of CUDA libraries.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP_FURTHER = $(BIN)/pip install --quiet $(if $(filter torch zoo,$(FURTHER)),--retries 1 --extra-index-url $(TORCH_INDEX))
DEBIAN_PACKAGES = $(sort $(foreach kind,$(FURTHER),$(DEBIAN_$(kind))))
# Shared libraries of this package that are built where a Debian package is there.
MODULE_tbb := forktask.forkjoin.tbb_flow
MODULE_starpu := forktask.forkjoin.starpu_tasks
MODULES = $(foreach kind,$(FURTHER),$(MODULE_$(kind)))
ALL_ARE_BUILT = import sys; from importlib.util import find_spec; sys.exit(None in map(find_spec, sys.argv[1:]))
PYPI_PACKAGES = $(foreach kind,$(FURTHER),$(PYPI_$(kind)))
comma := ,
space := $() $()

.PHONY: install install-tests install-dev install-further further-kinds debian-packages check-packages check-torch \
	compare reproduce test test-all test-further test-peers test-gpu test-aarch64 lint format docs clean dist stranger stress tsan \
	model-check

install: $(VENV)/.installed

$(VENV)/.installed: $(BUILT_FROM)
	@echo "Installing forktask in $(VENV): packages from the index, then compiling; about 4 minutes on two cores, 0.4 GB."
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet .
	touch $@

install-tests: install
	$(BIN)/pip install --quiet 'forktask[test]'

compare: install
	$(BIN)/forktask run demonstration --out $(OUT)

# make reproduce FINDING=3: measures a published finding again (docs/findings.md), and says whether it is confirmed.
reproduce:
	@test -n "$(FINDING)" || { echo "say which: make reproduce FINDING=1 (docs/findings.md lists them)" >&2; exit 2; }
	@$(MAKE) --no-print-directory install
	$(BIN)/forktask run finding$(FINDING) --out $(OUT)-finding$(FINDING)

# One process more than there are CPUs, since many tests wait for processes that they start; four at most.
TEST_PROCESSES ?= $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 4)))

ANY_FURTHER = $(subst $(space), or ,$(strip $(FURTHER)))

# Two runs of pytest, without the kinds in FURTHER. REQUIRE=1 fails where another kind cannot run (tests/kinds.py).
test: install-tests
	$(PYTEST) tests -n $(TEST_PROCESSES) --dist worksteal $(ALONE:%=--ignore=%) -m 'not ($(ANY_FURTHER))' \
		$(if $(REQUIRE),--require cc$(comma)cxx$(comma)tsan$(comma)nvrtc$(comma)malloc_count)
	$(PYTEST) $(ALONE) -m 'not ($(ANY_FURTHER))' $(if $(REQUIRE),--require two_cpus$(comma)quiet)

# Every kind of tests but those that need a GPU; fails where one of them ran nowhere.
test-all: check-packages
	$(MAKE) test REQUIRE=1
	$(MAKE) test-further

# The tests of the kinds in FURTHER, all of which must run.
test-further: install-further
	$(PYTEST) tests -m '$(ANY_FURTHER)' --require $(subst $(space),$(comma),$(strip $(FURTHER)))

# A package that was built before a C++ compiler or StarPU was there is built again.
install-further: check-packages install-tests $(if $(filter torch zoo,$(FURTHER)),check-torch)
	$(if $(strip $(MODULES)),$(BIN)/python -P -c '$(ALL_ARE_BUILT)' $(MODULES) || \
		{ rm $(VENV)/.installed && $(MAKE) install-tests; })
	$(if $(PYPI_PACKAGES),$(PIP_FURTHER) $(PYPI_PACKAGES:%='%'))

check-packages:
	@missing=; for name in $(DEBIAN_PACKAGES); do \
		! command -v dpkg >/dev/null || dpkg -s $$name >/dev/null 2>&1 || missing="$$missing $$name"; done; \
	test -z "$$missing" || { echo "These tests need more Debian packages: apt-get install$$missing" >&2; exit 1; }

check-torch: install
	@$(BIN)/python -P -c 'import torch' 2>/dev/null || { \
		$(PIP_FURTHER) --dry-run --no-deps --report - '$(PYPI_torch)' | $(BIN)/python -P .ci/torch_for_cpus.py; }

further-kinds:
	@echo $(FURTHER)

debian-packages:
	@echo $(DEBIAN_PACKAGES)

# The long form of the tests against PyTorch itself.
test-peers: FURTHER := torch
test-peers: install-further
	FORKTASK_LONG_TESTS=1 $(PYTEST) -m torch --require torch tests

# What a new user does: the sources that git has are installed in a new environment, and used from another folder.
stranger:
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	git clone --quiet . $$folder/clone; \
	$(PYTHON) -m venv $$folder/venv; \
	$$folder/venv/bin/pip install --quiet $$folder/clone pytest pytest-timeout hypothesis; \
	cd $$folder/clone; \
	FORKTASK_FRESH_CLONE=1 $$folder/venv/bin/python -P -m pytest tests/stranger --require stranger

# The tests that need an NVIDIA GPU. GPU names the packages: CuPy for the driver's CUDA, and the sampling library.
GPU ?= forktask[gpu]

test-gpu: install-tests
	$(BIN)/pip install --quiet '$(GPU)'
	$(PYTEST) -m gpu --require gpu tests

# The package built for aarch64, and its tests under an emulator: all in build/aarch64, which needs no such machine. AARCH64
# names other tests. It takes too long for .ci/run.
DEBIAN_aarch64 := gcc-aarch64-linux-gnu g++-aarch64-linux-gnu mmdebstrap qemu-user-static
AARCH64 ?= tests/cython_src/kernels/norm tests/cython_src/kernels/dense tests/cython_src/kernels/linear \
	tests/cython_src/kernels/elementwise tests/cython_src/kernels/pooling tests/cython_src/kernels/loss \
	tests/cython_src/kernels/optimizer tests/cython_src/kernels/load \
	tests/tasking/test_closure.py tests/tasking/test_executor.py

test-aarch64: FURTHER := aarch64
test-aarch64: check-packages
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet meson ninja cython pycparser
	tests/aarch64/run $(BIN)/python build/aarch64 $(AARCH64)

install-dev: install
	$(BIN)/pip install --quiet 'forktask[dev]'

# Every linter runs, also after one that found something. Their versions stand in pyproject.toml.
lint: install-dev
	@test -n "$(SOURCES)" || { echo "make lint takes its files from git ls-files, got none; use a clone" >&2; exit 1; }
	@export PATH="$(abspath $(BIN)):$$PATH"; failed=; \
	for command in \
		"ruff check ." \
		"ruff format --check ." \
		"cython-lint $(filter %.pyx %.pxd,$(SOURCES))" \
		"clang-format --dry-run -Werror $(filter %.c %.h %.hpp %.cu %.cuh,$(SOURCES))" \
		"mypy"; \
	do echo "$${command%% *}: $${command#* }" | cut -c 1-100; $$command || failed="$$failed $${command%% *}"; done; \
	test -z "$$failed" || { echo "These linters found something:$$failed" >&2; exit 1; }

format: install-dev
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(filter %.c %.h %.hpp %.cu %.cuh,$(SOURCES))

# The pages and the Python interface as a site; a warning of Sphinx is an error.
DOCS ?= build/site

docs: install
	$(BIN)/pip install --quiet 'forktask[docs]'
	$(BIN)/python -P -m sphinx -W --keep-going -q -c docs/site . $(DOCS)
	@echo "$(DOCS)/index.html"

# Source distribution, and the wheel that is built from it: 1.7 and 4.7 MiB. MOST_MIB is the limit of each; what exceeds it holds
# something else than this package's sources and modules.
MOST_MIB ?= 8

dist: install
	$(BIN)/pip install --quiet build
	$(BIN)/python -P -m build --outdir dist .
	@ls -l dist; large=$$(find dist -type f -size +$$(($(MOST_MIB) * 1024))k); \
	test -z "$$large" || { echo "These files have more than $(MOST_MIB) MiB: $$large" >&2; exit 1; }

clean:
	rm -rf $(VENV) build comparison dist

# Long forms of random tests; short ones run in `make test`. First the task runtime's C sources by themselves, so many
# random graphs on each number of threads, then random plans under all executors; STRESS_GRAPHS=100000 asks for a number
# of plans in place of a time. At last STRESS_NETWORKS random networks, from the seed STRESS_SEED on if one is given.
STRESS_ROUNDS ?= 1000
STRESS_SECONDS ?= 120
STRESS_GRAPHS ?= 0
STRESS_NETWORKS ?= 1000
STRESS_SEED ?= $(shell date +%s)

stress: install-tests
	mkdir -p build
	$(CC) -std=gnu11 -O2 -I . -I tasking tests/tasking/native/race_runtime.c -o build/race_runtime -lpthread
	for threads in 1 2 3 4 8 16; do build/race_runtime $(STRESS_ROUNDS) $$threads $$(date +%N) || exit 1; done
	PYTHONPATH=tests $(BIN)/python -P tests/stress/stress_graphs.py --seconds $(STRESS_SECONDS) --graphs $(STRESS_GRAPHS)
	STRESS_NETWORKS=$(STRESS_NETWORKS) STRESS_SEED=$(STRESS_SEED) $(PYTEST) -n $(TEST_PROCESSES) tests/random_networks \
		-k refused_in_a_sentence

tsan: install-tests
	FORKTASK_LONG_TESTS=1 $(PYTEST) --require tsan tests/tasking/test_native.py

# Relacy (Debian: relacy-dev) explores interleavings and stale reads of the C11 memory model.
model-check: install-tests
	FORKTASK_LONG_TESTS=1 $(PYTEST) --require relacy tests/tasking/test_model_check.py
