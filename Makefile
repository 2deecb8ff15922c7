PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint clean

demo: $(READY)  ## Train, adapt, print the table, write demo/report.html
	$(BIN)/sourceward demo --out demo

test: $(READY)  ## The whole test suite, doctests included
	$(BIN)/python -m pytest -n 2

lint: $(READY)  ## Style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo
