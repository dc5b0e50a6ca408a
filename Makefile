PYTHON ?= python3
VENV ?= .venv
OUT ?= comparison
BIN := $(VENV)/bin
SOURCES := $(shell git ls-files 2>/dev/null)

.PHONY: install compare test test-peers test-gpu clean stress tsan model-check

install: $(VENV)/.installed

$(VENV)/.installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet '.[test]'
	touch $@

compare: install
	$(BIN)/forktask compare --out $(OUT)

test: install
	$(BIN)/python -P -m pytest tests

# The tests against PyTorch itself. TORCH names the package: an index may have a smaller build for CPUs alone.
TORCH ?= torch

test-peers: install
	$(BIN)/pip install --quiet '$(TORCH)' safetensors
	FORKTASK_LONG_TESTS=1 $(BIN)/python -P -m pytest -m torch tests

# The tests that need an NVIDIA GPU. GPU names the packages: CuPy for the driver's CUDA, and the sampling library.
GPU ?= .[gpu]

test-gpu: install
	$(BIN)/pip install --quiet '$(GPU)'
	$(BIN)/python -P -m pytest -m gpu tests

clean:
	rm -rf $(VENV) build comparison

# Long forms of tests of the task runtime; short ones run in `make test`. First the C sources by themselves, so many random graphs on each
# number of threads, then random plans under all executors; STRESS_GRAPHS=100000 asks for a number of plans in place of a time.
STRESS_ROUNDS ?= 1000
STRESS_SECONDS ?= 120
STRESS_GRAPHS ?= 0

stress: install
	mkdir -p build
	$(CC) -std=gnu11 -O2 -I . -I tasking tests/tasking/native/race_runtime.c -o build/race_runtime -lpthread
	for threads in 1 2 3 4 8 16; do build/race_runtime $(STRESS_ROUNDS) $$threads $$(date +%N) || exit 1; done
	$(BIN)/python -P tests/stress/stress_graphs.py --seconds $(STRESS_SECONDS) --graphs $(STRESS_GRAPHS)

tsan: install
	FORKTASK_LONG_TESTS=1 $(BIN)/python -P -m pytest tests/tasking/test_native.py

# Relacy (Debian: apt-get install relacy-dev) explores interleavings and stale reads of the C11 memory model.
model-check: install
	FORKTASK_LONG_TESTS=1 $(BIN)/python -P -m pytest tests/tasking/test_model_check.py
