# `make help` lists what there is. Everything is made inside this folder: .venv, .tools, .dev.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:
.DELETE_ON_ERROR:

python := .venv/bin/python
uv := .tools/uv/bin/uv
stamp := .venv/.installed
pytest := $(python) -m pytest
# Most tests wait for other processes: three workers keep two cores busy. A file's tests share what they have set up.
parallel := -n 3 --dist loadfile

# The tests find the programs that `make tools` brings before the machine's own.
test check soak coverage test-%: export PATH := $(CURDIR)/.tools/bin:$(PATH)

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z%<>-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: install
install: $(stamp) ## make .venv with the locked dependencies and .venv/bin/delegate
	@$(python) -m compileall -q src

$(stamp): pyproject.toml uv.lock scripts/install.sh
	@echo "making .venv (a minute the first time)"
	@PYTHON="$(PYTHON)" scripts/install.sh
	@touch $@

.PHONY: demo
demo: install ## see the whole product at work on a throw-away repository
	@.venv/bin/delegate demo

.PHONY: tools
tools: install ## bring the real programs the tests use into .tools/
	@$(python) scripts/tools.py

.PHONY: test
test: install tools ## run every test, those against real programs too
	@PYTHONPATH=scripts $(pytest) -p no_silent_skips $(parallel) -m "not soak"

.PHONY: check
check: static ## the gate before a commit: format, lint, types, imports, quick tests
	@$(pytest) $(parallel) -m "not slow and not real and not soak"

.PHONY: static
static: install lint typecheck ## format, lint, types and imports, without tests
	@.venv/bin/lint-imports --no-logo

.PHONY: lint
lint: install ## formatting and lint
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/ruff check --quiet .

.PHONY: format
format: install ## format the code, and mend what lint can mend
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

.PHONY: typecheck
typecheck: install ## mypy, strict
	@.venv/bin/mypy

test-%: install ## the tests of one room, as in `make test-runner`
	@$(pytest) tests/$*

.PHONY: soak
soak: install tools ## the long forms of the reliability tests, up to 90 minutes
	@$(pytest) -m soak

.PHONY: bench
bench: install ## measure every speed claim, beside a bare interpreter and a peer
	@$(python) scripts/tools.py --peer
	@$(python) -m bench

.PHONY: coverage
coverage: install tools ## branch coverage, of all processes; htmlcov/ has the pages
	@$(python) -m coverage erase
	@$(python) -m coverage run -m pytest -m "not soak"
	@$(python) -m coverage combine --quiet
	@$(python) -m coverage html --quiet
	@$(python) -m coverage report

.PHONY: dev
dev: install ## relay and runners in the foreground, started anew when the source changes
	@$(python) scripts/dev.py

.PHONY: build
build: install ## the wheel, in dist/
	@$(uv) build --quiet --wheel --python $(python)
	@ls dist/*.whl

.PHONY: clean
clean: ## remove everything that make has made
	@rm -rf .venv .tools .dev dist build htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
