# Headway's commands. `make` alone prints them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
UV_VERSION := 0.13.7
READY := $(VENV)/.ready
CODE := $(wildcard src tests bench examples)

# An active virtual environment must not affect the commands that install into .venv.
unexport VIRTUAL_ENV
# Tests start hundreds of processes: let them share compiled bytecode.
unexport PYTHONDONTWRITEBYTECODE
# Use the system's certificate store, as pip, curl and apt do.
export UV_SYSTEM_CERTS ?= true

.PHONY: help
help: ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(READY) ## Create .venv with everything the other commands need, and build the dashboard
	@$(BIN)/python scripts/build_dashboard.py --if-needed

$(UV): scripts/make-venv
	@scripts/make-venv $(PYTHON) $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $(UV)

$(READY): $(UV) requirements.lock pyproject.toml
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(READY)
	@echo "Ready: $(BIN)/headway"

.PHONY: dashboard
dashboard: $(READY) ## Build the dashboard from dashboard/; installs Node.js if it is missing
	@$(BIN)/python scripts/build_dashboard.py

.PHONY: demo
demo: setup ## Run a demo on SQLite: jobs run, crash and recover (ARGS=crash kills a worker)
	@$(BIN)/headway demo $(ARGS)

.PHONY: dev
dev: setup ## Run an app with auto-reload (ARGS=jobs:app)
	@$(BIN)/headway dev $(ARGS)

.PHONY: check
check: setup ## Check style, types and architecture
	$(BIN)/ruff check $(CODE) scripts
	$(BIN)/ruff format --check $(CODE) scripts
	$(BIN)/mypy $(CODE) scripts/generate_types.py scripts/generate_client.py
	$(BIN)/python scripts/generate_types.py --check
	$(BIN)/python scripts/generate_client.py --check
	$(BIN)/pytest -q tests/tidy

.PHONY: types
types: $(READY) ## Generate the dashboard's TypeScript types and calls of the client from the operations
	@$(BIN)/python scripts/generate_types.py
	@$(BIN)/python scripts/generate_client.py

.PHONY: format
format: setup ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only --quiet $(CODE) scripts
	$(BIN)/ruff format $(CODE) scripts

.PHONY: servers
servers: ## Install missing servers and the browser that tests need
	@scripts/install-servers

.PHONY: test
test: setup servers ## Run all checks and tests on SQLite and PostgreSQL (ARGS= for a part of them)
	$(if $(ARGS),$(BIN)/pytest $(ARGS),$(BIN)/python scripts/run_tests.py all)

.PHONY: test-fast
test-fast: setup ## Run unit tests, conformance on SQLite, architecture (no server, under a minute)
	$(if $(ARGS),$(BIN)/pytest -q -m 'not slow and not postgres' $(ARGS),$(BIN)/python scripts/run_tests.py fast)

.PHONY: test-soak
test-soak: setup servers ## Run the tests many times under load, print what failed (RUNS=10 CONDITIONS=idle,cpu,disk,reverse ARGS=)
	$(BIN)/python scripts/soak_tests.py --runs $(or $(RUNS),10) $(if $(CONDITIONS),--conditions $(CONDITIONS)) $(ARGS)

.PHONY: sim
sim: setup ## Simulate many seeds (SEEDS=1000), or replay one (SEED=42)
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000)) $(ARGS)

.PHONY: chaos
chaos: setup servers ## Kill, freeze and restart real processes and a real PostgreSQL, for longer than the tests do
	HEADWAY_CHAOS_FULL=1 $(BIN)/pytest tests/chaos $(ARGS)

.PHONY: torture
torture: setup servers ## Inject many faults at once, with each engine in turn; writes docs/torture-report.md
	$(BIN)/python -m tests.chaos.torture $(ARGS)

.PHONY: bench
bench: setup servers ## Run benchmarks against the bare database (ARGS= for options)
	$(BIN)/python -m bench $(ARGS)

.PHONY: bench-peers
bench-peers: setup servers ## Compare with other job queues (ARGS= for options)
	bench/peers/setup
	$(BIN)/python -m bench drain latency --peers top $(ARGS)

.PHONY: docs
docs: setup ## Build the documentation into site/
	$(BIN)/python scripts/lifecycle_chart.py
	$(BIN)/zensical build --clean --strict

.PHONY: pictures
pictures: setup servers ## Retake the screenshots of the dashboard in docs/img
	$(BIN)/python scripts/take_pictures.py

COMPILE = $(UV) pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock'

.PHONY: lock
lock: $(UV) ## Update the locked requirements from pyproject.toml (ARGS=--upgrade for newer releases)
	@$(COMPILE) --all-extras --group dev pyproject.toml --output-file requirements.lock $(ARGS)
	@$(COMPILE) --group node --output-file scripts/node.lock $(ARGS)
	@$(COMPILE) --all-extras pyproject.toml --constraint requirements.lock --output-file deploy/requirements.lock
	@$(COMPILE) --group build --constraint requirements.lock --constraint scripts/node.lock --output-file deploy/build.lock

.PHONY: sbom
sbom: $(READY) ## Write an SBOM of the image and the dashboard to dist/headway.cdx.json (CycloneDX)
	@$(BIN)/python scripts/make_sbom.py dist/headway.cdx.json

.PHONY: clean
clean: ## Remove everything the commands created, including .venv
	rm -rf $(VENV) site dist dashboard/node_modules dashboard/build src/headway/server/static/dashboard .mypy_cache .pytest_cache .ruff_cache .hypothesis
