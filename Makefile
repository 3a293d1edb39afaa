# `make help` lists the targets. They write only to this directory: .venv, .tools, .dev, dist.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:
.DELETE_ON_ERROR:

python := .venv/bin/python
uv := .tools/uv/bin/uv
stamp := .venv/.installed
pytest := $(python) -m pytest
# Most tests wait for other processes: three workers keep two cores busy. The tests of one file share fixtures.
parallel := -n 3 --dist loadfile
# These run a second time with the relay in another network namespace, behind TLS, and a paired runner; `make soak` runs
# all journeys so.
remote_journeys := $(patsubst %,tests/journeys/test_%.py,\
  agents_to_pull_requests checkpoints every_outcome linear mcp_clients pool questions runner_log seed_examples)

# Tests prefer the programs that `make tools` installs to those of the machine.
test check soak coverage test-%: export PATH := $(CURDIR)/.tools/bin:$(PATH)

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z%<>-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: install
install: environment ## create .venv with the locked dependencies and .venv/bin/delegate
	@echo 'Installed .venv/bin/delegate. Next:'
	@echo '  make demo                   watch it work in a temporary repository'
	@echo '  .venv/bin/delegate doctor   check git, gh and the agents on this machine'
	@echo '  make check                  run the linters and the quick tests'
	@echo 'To use `delegate` in every shell: `uv tool install .` or `pipx install .`'

.PHONY: environment
environment: $(stamp)
	@$(python) -m compileall -q src

$(stamp): pyproject.toml uv.lock scripts/install.sh
	@echo "installing the dependencies into .venv (takes about a minute the first time)"
	@PYTHON="$(PYTHON)" scripts/install.sh
	@touch $@

.PHONY: demo
demo: environment ## run the whole product on a temporary repository, without a login or a network
	@.venv/bin/delegate demo

.PHONY: tools
tools: environment ## install the programs that the tests run, such as claude and codex, into .tools/
	@$(python) scripts/tools.py

.PHONY: test
test: environment tools ## run all tests, including those that need the real agent programs or PostgreSQL
	@PYTHONPATH=scripts $(pytest) -p no_silent_skips $(parallel) -m "not soak"
	@PYTHONPATH=scripts $(pytest) -p no_silent_skips $(parallel) -m "not soak" --relay=remote $(remote_journeys)

.PHONY: check
check: static ## run before every commit: formatting, lint, types, imports and quick tests
	@$(pytest) $(parallel) -m "not slow and not real and not soak"

.PHONY: static
static: environment lint typecheck ## check formatting, lint, types and imports, without tests
	@.venv/bin/lint-imports --no-logo

.PHONY: lint
lint: environment ## check formatting and lint
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/ruff check --quiet .

.PHONY: format
format: environment ## format the code and apply automatic lint fixes
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

.PHONY: client-types
client-types: environment ## write client/responses.py from the models in wire/
	@$(python) scripts/client_types.py

.PHONY: typecheck
typecheck: environment ## check the types of sources and tests with mypy
	@.venv/bin/mypy

test-%: environment ## run the tests of one directory, as in `make test-runner`
	@$(pytest) tests/$*

.PHONY: soak
soak: environment tools ## run the long reliability tests, and all journeys with a relay elsewhere, up to three hours
	@$(pytest) -m soak
	@PYTHONPATH=scripts $(pytest) -p no_silent_skips $(parallel) -m "not soak" --relay=remote tests/journeys

.PHONY: bench
bench: environment ## run the benchmarks behind every speed claim
	@$(python) scripts/tools.py --peer
	@$(python) -m bench

.PHONY: coverage
coverage: environment tools ## measure branch coverage of all processes; the report is in htmlcov/
	@$(python) -m coverage erase
	@$(python) -m coverage run -m pytest -m "not soak"
	@$(python) -m coverage combine --quiet
	@$(python) -m coverage html --quiet
	@$(python) -m coverage report

.PHONY: dev
dev: environment ## run relay and runners in the foreground; restart them when the source changes
	@$(python) scripts/dev.py

.PHONY: build
build: environment ## build the wheel in dist/
	@$(uv) build --quiet --wheel --python $(python)
	@ls dist/*.whl

.PHONY: release
release: environment ## test, commit and tag a release: VERSION=1.2.3; with DRY_RUN=1 nothing is changed
	@$(python) scripts/release.py $(if $(DRY_RUN),--dry-run) -- "$(VERSION)"

.PHONY: clean
clean: ## remove everything that make has created
	@rm -rf .venv .tools .dev dist build htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
