# Every target installs what it needs by itself into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# `explore` runs the property tests on examples no run has seen.
.PHONY: demo test explore check lint install clean

demo: $(STAMP)
	$(BIN)/cosine-node demo

test: $(STAMP)
	$(BIN)/python -m pytest -q

explore: $(STAMP)
	$(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile=explore --timeout=0

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

install: $(STAMP)

# hivemind asks for plain torch: the constraint keeps the tested version, which has a CPU build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
