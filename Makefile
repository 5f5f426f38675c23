# The verbs of the course. README.md says what each is for.

VENV ?= .venv
# the first Python on the path that will do; otherwise any, which then says what is wrong
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done || true)
PYTHON := $(or $(PYTHON),python3)
BIN = $(VENV)/bin
INSTALL = @command -v $(PYTHON) >/dev/null || \
	{ echo "There is no $(PYTHON) here: install Python 3.11, 3.12 or 3.13, then try again."; exit 1; }; \
	$(PYTHON) minipaged/course/installing.py --venv $(VENV)

.PHONY: lab test test-all notebooks bench lint clean

lab:
	$(INSTALL) lab
	$(BIN)/jupyter lab --notebook-dir=. lessons/00_start_here.ipynb

test:
	$(INSTALL) lab test
	$(BIN)/python -m pytest

test-all:
	$(INSTALL) lab test
	$(BIN)/python -m pytest --all

notebooks:
	$(INSTALL) lab test
	$(BIN)/python -m minipaged.course.authoring.builder

bench:
	$(INSTALL) lab
	$(BIN)/python -m minipaged.course.bench

lint:
	$(INSTALL) lab test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find minipaged tests -name __pycache__ -prune -exec rm -rf {} +
