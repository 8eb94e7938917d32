# The one vocabulary: what a person types, CI runs. `make help` lists it.
SHELL := bash
PYTHON ?= python3
export PYTHON

DEV := .venv
AGENT := .venv-agent
TRAINER := .venv-trainer
BIN := $(DEV)/bin
PACKAGES := $(sort $(patsubst %/__init__.py,%,$(wildcard services/*/__init__.py shared/*/__init__.py deploy/*/__init__.py)))

# Where the parts find the other environments' interpreters.
export ROLLWAY_AGENT_PYTHON ?= $(CURDIR)/$(AGENT)/bin/python
export ROLLWAY_TRAINER_PYTHON ?= $(CURDIR)/$(TRAINER)/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-agent setup-trainer demo up test test-fast fuzz lint format types imports bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: setup-dev setup-agent setup-trainer ## Make or update all three environments
setup-dev: $(DEV)/.ready ## Services and tests: .venv
setup-agent: $(AGENT)/.ready ## Agents on the newest SDKs: .venv-agent
setup-trainer: $(TRAINER)/.ready ## verl, torch and vLLM as CPU builds: .venv-trainer

# A changed pin, package definition or recipe installs again; otherwise the stamp makes this instant.
$(DEV)/.ready: deploy/envs/dev.txt
$(AGENT)/.ready: deploy/envs/agent.txt
$(TRAINER)/.ready: deploy/envs/trainer.txt
$(DEV)/.ready $(AGENT)/.ready $(TRAINER)/.ready: deploy/envs/build.sh pyproject.toml
	@echo "setting up $(@D)"
	@bash deploy/envs/build.sh $(patsubst deploy/envs/%.txt,%,$(filter %.txt,$^)) $(@D)
	@touch $@

demo: setup ## GRPO on a real small model through every part (MODEL=folder or hub id)
	@$(BIN)/rollway demo $(if $(MODEL),--model $(MODEL)) $(ARGS)

up: setup-dev setup-agent ## S3, emulator, gateway and dispatcher on this machine, until Ctrl-C
	@$(BIN)/rollway up $(ARGS)

test: setup ## All tests, real vLLM and real verl among them
	@$(BIN)/python -m pytest tests -m "not heavy" -n 3 --dist worksteal $(ARGS) || [ $$? = 5 ]
	@$(BIN)/python -m pytest tests -m heavy $(ARGS) || [ $$? = 5 ] # one process: they compare two engines side by side

test-fast: setup-dev ## The tests that need no other environment, several at once
	@$(BIN)/python -m pytest tests -m "not heavy" -n 4 --dist worksteal $(ARGS)

fuzz: setup-dev ## Feed readers and routes anything for a long time (FUZZ_SECONDS, FUZZ_EXAMPLES)
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/python -m pip install --quiet atheris==3.0.0
	@for reader in sse stream chunks answer request dialects path_and_key; do \
	  $(BIN)/python -m tests.fuzz.coverage_guided $$reader $(or $(FUZZ_SECONDS),300) || exit 1; done
	@FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),2000) $(BIN)/python -m pytest tests/fuzz $(ARGS)

soak: setup-dev ## Kill gateways and dispatchers under load, 200 times each (KILLS=n), recorded: nothing lost, doubled or leaked
	@for seed in 1 2; do SOAK_RECORD=1 SOAK_SEED=$$seed SOAK_KILLS=$$(($(or $(KILLS),200) / 2)) \
	  $(BIN)/python -m pytest tests/gateway/test_restart.py -k under_load -s --timeout=7200 || exit 1; done
	@SOAK_RECORD=1 SOAK_KILLS=$(or $(KILLS),200) $(BIN)/python -m pytest tests/chaos -s --timeout=7200
	@$(BIN)/python -m benchmarks.readme

lint: setup-dev ## Formatting and lint rules, nothing changed
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

format: setup-dev ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

types: setup-dev ## Static types, strict
	@$(BIN)/mypy $(PACKAGES)

imports: setup-dev ## Who may import whom
	@$(BIN)/lint-imports

bench: setup-dev setup-trainer ## Gateways, fidelity, updates and the dispatcher, recorded with their tables (CHECK=1: ours against the record)
	@$(BIN)/python -m benchmarks.gateway $(if $(CHECK),--check,--record)
	@$(if $(CHECK),true,$(BIN)/python -m benchmarks.fidelity --record)
	@$(if $(CHECK),true,$(BIN)/python -m benchmarks.update --record)
	@$(if $(CHECK),true,$(BIN)/python -m benchmarks.dispatcher.simulation --record)
	@$(if $(CHECK),true,$(BIN)/python -m benchmarks.dispatcher.side_by_side --record)
	@$(if $(CHECK),true,$(BIN)/python -m benchmarks.dispatcher.scale --record)
	@$(if $(CHECK),true,$(BIN)/python -m benchmarks.readme)

clean: ## Remove environments, caches and what runs left behind
	rm -rf $(DEV) $(AGENT) $(TRAINER) .work .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
	find . -name __pycache__ -prune -exec rm -rf {} +
