# Every command a developer or CI needs. Only make and a Python >= 3.11 with venv have to be there.

.DEFAULT_GOAL := help

# Tests start processes, each of which would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := all,dev,docs
PYTEST_ARGS ?=
# Three processes on two cores: the tests that share a Ray are all in one of them, and wait for its processes much of the time.
# Which begin first is said in tests/conftest.py.
TESTS := $(BIN)/python -m pytest -n 3

.PHONY: help demo test test-quick test-all test-learning test-interpreters check format docs bench wheel clean

# The first of these that runs, is new enough and can make an environment.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python; do \
	if "$$python" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then command -v "$$python"; break; fi; done)

help:
	@echo 'make demo           train PPO and DQN side by side on one environment'
	@echo 'make test           the checks and all tests but the slow ones, in ten minutes'
	@echo 'make test-all       the slow tests, and more examples of those by hypothesis; CI runs both, and make docs'
	@echo 'make test-learning  the slow tests that train until something is learned'
	@echo 'make test-interpreters  trains from the wheel on each Python that is found; minutes, and gigabytes of PyTorch'
	@echo 'make check          format, lint, types, import layers; changes nothing'
	@echo 'make format         format, and mend what lint can mend'
	@echo 'make docs           build docs/_build/html; broken links and other warnings are errors'
	@echo 'make bench          the benchmarks'
	@echo 'make wheel          build dist/'
	@echo 'make clean          remove what was built; the environment and the runs stay'

# -qq prints errors only; the pip of a fresh environment has nothing else to say.
$(INSTALLED): pyproject.toml setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo 'marlflow needs a Python >= 3.11 with the venv module on the PATH' >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); }
	@echo 'installing marlflow and what it needs into $(VENV): some minutes the first time'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/marlflow train experiment=cartpole_team_ppo_dqn

test: $(INSTALLED)
	@$(MAKE) --no-print-directory -j2 --keep-going check test-quick

test-quick: $(INSTALLED)
	$(TESTS) -m 'not slow and not learning and not interpreters' $(PYTEST_ARGS)

test-all: $(INSTALLED)
	XLA_FLAGS= $(TESTS) -m '(slow or drawn) and not learning and not interpreters' --hypothesis-profile=thorough $(PYTEST_ARGS)

test-learning: $(INSTALLED)
	$(BIN)/python -m pytest -m learning $(PYTEST_ARGS)

test-interpreters: $(INSTALLED)
	$(BIN)/python -m pytest -m interpreters $(PYTEST_ARGS)

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict marlflow
	$(BIN)/lint-imports --no-logo --no-cache

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Some 20 seconds; only what changed is built again. Needs no network.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo 'built docs/_build/html/index.html'

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

wheel: $(INSTALLED)
	$(BIN)/python -m build

clean:
	rm -rf build dist docs/_build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
