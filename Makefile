# Mosaic: `make` lists the targets. Everything runs in .venv, made from the lock in requirements/.

SHELL := /bin/bash
BIN := .venv/bin
# The first Python that is new enough (a name alone says nothing: it may be a version manager's empty shim).
FITS := -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do $$p $(FITS) && { echo $$p; break; }; done)
# Where PyTorch publishes its CPU wheels, for machines whose package index does not carry them.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
export OMP_NUM_THREADS ?= 2
export TOKENIZERS_PARALLELISM := false

.DEFAULT_GOAL := help
.PHONY: help install demo test coverage check docs screenshots format policy clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

install: .venv/.installed ## make .venv with the locked CPU stack (two to four minutes, longer on a busy machine)

.venv/.installed: requirements/cpu.txt requirements/torch.txt pyproject.toml
	@test -n "$(PYTHON)" && $(PYTHON) $(FITS) || \
		{ echo "mosaic: Python 3.11 or newer with venv is needed; install it, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "making .venv; all that follows takes two to four minutes, longer on a busy machine"
	@$(PYTHON) -m venv .venv
	@echo "1 of 3: torch for the CPU ..."
	@$(PIP) -r requirements/torch.txt 2>/dev/null || $(PIP) --index-url $(TORCH_INDEX) -r requirements/torch.txt
	@echo "2 of 3: vLLM, TRL and all else that is locked ..."
	@$(PIP) -r requirements/cpu.txt
	@echo "3 of 3: Mosaic itself ..."
	@$(PIP) --no-build-isolation --editable .
	@touch $@
	@echo "done: .venv/bin/mosaic"

demo: install ## the whole chain on this machine: agent, proxy, vLLM, TRL, reload (about ten minutes)
	@$(BIN)/python -m examples.demo $(DEMO)

test: install ## all tests but the slow ones, against the real vLLM and TRL
	$(BIN)/python -m pytest -m "not slow" $(TEST)

coverage: install ## branch coverage of the credit rule, which must be whole
	$(BIN)/python -m coverage run --branch --source=mosaic/credit -m pytest -q tests/credit
	$(BIN)/python -m coverage report --show-missing --fail-under=100

check: install ## ruff, ruff format, mypy strict, import-linter, deptry
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

docs: install ## write docs/cli.md anew from the commands' help
	$(BIN)/python -m mosaic.cli_page docs/cli.md

screenshots: install ## make the pictures of the docs anew, in headless Chromium
	SCREENSHOTS=docs/images $(BIN)/python -m pytest -q tests/proxy/ui/test_browser.py

format: install ## let ruff put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

policy: install ## teach the demo's policy anew (about ten minutes)
	$(BIN)/python -m examples.demo.policy --seed 0

clean: ## remove .venv, var and all caches
	rm -rf .venv var build *.egg-info .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
