# Everything runs in a virtual environment of its own; only Python >= 3.11 and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
READY := $(VENV)/.ready

.PHONY: demo test test-oldest dist-check check bench torture clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bitmosaic needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)  ## cluster the handwritten digits and draw the clusters
	$(BIN)/bitmosaic demo

test: $(READY)  ## the whole test suite
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

OLDEST := .venv-oldest
QUICK := tests/hamming tests/solver tests/estimators tests/views tests/images tests/features tests/io
test-oldest:  ## quick tests with the oldest allowed versions of the dependencies; needs Python 3.11 or 3.12
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] > (3, 12) and "The oldest numba needs Python 3.11 or 3.12; set PYTHON=")'
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install -qq --disable-pip-version-check uv
	$(OLDEST)/bin/uv pip install -q --python $(OLDEST)/bin/python --resolution lowest-direct --editable '.[deep,dask,web,bench]' \
	  'hypothesis>=6.100' 'onnx>=1.16' 'pandas>=2.2' 'pytest>=9.0.1' 'pytest-xdist>=3.6' 'PyWavelets>=1.6'
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n auto --dist worksteal $(QUICK)

dist-check: $(READY)  ## build the wheel and the sdist, install the wheel in a fresh environment, and run the demo there
	set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(BIN)/python -m build --outdir "$$folder/dist" .; \
	$(PYTHON) -m venv "$$folder/venv"; \
	cd "$$folder"; \
	venv/$(notdir $(BIN))/python -m pip install -qq --disable-pip-version-check dist/*.whl; \
	venv/$(notdir $(BIN))/bitmosaic demo

check: $(READY)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

torture: $(READY)  ## kills, faults, locks, bad images and archives, server load: at most 30 minutes
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m torture $(KINDS)

bench: $(READY)  ## quality on multi-view files (DATA="a.mat b.mat") and memory on a million rows
	$(BIN)/bitmosaic bench quality $(DATA)
	$(BIN)/bitmosaic bench memory

clean:
	rm -rf $(VENV) $(OLDEST) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis bitmosaic-demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
