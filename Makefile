PYTHON ?= python3
VENV ?= .venv
OUT ?= comparison
BIN := $(VENV)/bin
SOURCES := $(shell git ls-files 2>/dev/null)

.PHONY: install compare test test-peers clean

install: $(VENV)/.installed

$(VENV)/.installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet '.[test]'
	touch $@

compare: install
	$(BIN)/forktask compare --out $(OUT)

test: install
	$(BIN)/python -P -m pytest tests

# The tests against PyTorch itself; installs it (CPU build where the index has one).
test-peers: install
	$(BIN)/pip install --quiet torch
	$(BIN)/python -P -m pytest -m torch tests

clean:
	rm -rf $(VENV) build comparison
