# Everything runs in a virtual environment of its own; only Python >= 3.11 and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench torture clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bitmosaic needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)  ## cluster the handwritten digits and draw the clusters
	$(BIN)/bitmosaic demo

test: $(READY)  ## the whole test suite
	$(BIN)/python -m pytest

check: $(READY)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

torture: $(READY)  ## kills, faults, hostile files, load: the table of docs/reliability.md
	PYTHONPATH=tests:tests/images $(BIN)/python -m torture $(KINDS)

bench: $(READY)  ## quality on multi-view files (DATA="a.mat b.mat") and memory on a million rows
	$(BIN)/bitmosaic bench quality $(DATA)
	$(BIN)/bitmosaic bench memory

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis bitmosaic-demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
