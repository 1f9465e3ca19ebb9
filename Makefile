# The verbs of the repository. Each target makes the environment it needs (.venv, from constraints.txt).
# The first Python of a fitting version that really runs (a version manager may leave names that do not).
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do $$p -c '$(FITS)' 2>/dev/null && echo $$p && break; done)
unexport PYTHONDONTWRITEBYTECODE  # compiled once, not in every test process and every Ray worker
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Tests that need no GPU, in two passes: the quick ones, then the ones that start services; two files at a time, each with ports and
# folders of its own. What failed of the second is tried once more, one by one: a busy machine can starve a cluster; what is
# wrong fails twice. The longest files go first (tests/conftest.py), not those with the most tests.
QUICK := not ray and not deepspeed and not s3 and not gpu and not slow and not browser
SERVICES := (ray or deepspeed or s3 or slow or browser) and not gpu and not long and not chaos

SEED ?= 1

.PHONY: setup demo test test-services test-all test-long test-chaos lint bench clean
setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed: install one, or make setup PYTHON=/path/to/python"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/mast demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "$(QUICK)"

test-services: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "$(SERVICES)" --durations 20 --durations-min 30 || $(BIN)/python -m pytest -m "$(SERVICES)" --last-failed --last-failed-no-failures none

test-all: test test-services

test-long: setup
	$(BIN)/python -m pytest -m "long and not gpu"

# Faults drawn by SEED (several with commas between) over every stage, ten minutes for each; the same seed draws the same faults.
test-chaos: setup
	SEED=$(SEED) $(BIN)/python -m pytest -m chaos -rA tests/test_chaos.py

lint: setup
	$(BIN)/ruff check mast_ray jobs tests benchmarks
	$(BIN)/ruff format --check mast_ray jobs tests benchmarks
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/logmel.py
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python benchmarks/prepare.py
	$(BIN)/python benchmarks/ingest.py

clean:
	rm -rf $(VENV) build *.egg-info demo runs
