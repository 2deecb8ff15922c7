PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready

.PHONY: demo test lint docs dist check-install clean fuzz

demo: $(DEMO_READY)  ## Decide for two deployments, measure, write demo/report.html
	$(BIN)/sourceward demo --out demo

test: $(READY)  ## The whole test suite, doctests included
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(READY)  ## Style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)  ## The documentation site, in site/; a warning is an error
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict --quiet

dist: $(READY)  ## Wheel and source archive, in dist/
	$(BIN)/python -m build --no-isolation --outdir dist

check-install: dist  ## Install the wheel with its dependencies into an empty environment and run it (a large download)
	rm -rf build/check-install
	$(PYTHON) -m venv build/check-install
	build/check-install/bin/pip install --quiet "$$(ls dist/*.whl)[cli,report]"
	build/check-install/bin/sourceward --help
	build/check-install/bin/sourceward demo --quick --out build/check-install/demo

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(DEMO_READY)

$(DEMO_READY): pyproject.toml  # a fraction of the development packages
	@echo "Installing 72 packages into $(VENV): 5.8 GB, of which CUDA libraries are 4.3 GB on Linux."
	@echo "For the CPU build of torch: make demo TORCH_INDEX=URL (docs/install.md)."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet torch torchvision --index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install --quiet --editable '.[cli,report]'
	touch $@

fuzz: $(READY)  ## 10,000 damaged or odd inputs; writes results/fuzz.json
	$(BIN)/python -m tests.fuzz.campaign --out results/fuzz.json

clean:
	rm -rf $(VENV) demo build dist site
