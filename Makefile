# Needs Python 3.11 or later and make; every target sets up the rest in $(VENV).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
STAMP  := $(VENV)/.installed
BIN    := $(VENV)/bin

.PHONY: help install demo test lint site benchmarks soak reproduction schemas clean

help:
	@echo "make demo        run the example study on the built-in model: a table, and a report to look at"
	@echo "make test        the tests (GAUSSLENS_FULL=1: the long ones too)"
	@echo "make install     only set up the environment"
	@echo "make lint        ruff, mypy, import-linter"
	@echo "make site        the documentation as a site, in build/site/html"
	@echo "make benchmarks  ratios to what the machine can do"
	@echo "make soak        hours of the same, outside CI; killed, it goes on where it was (docs/SOAK.md)"
	@echo "make reproduction  every experiment of the sources, and docs/REPRODUCTION.md of it; killed, it goes on"
	@echo "make schemas     write the JSON Schemas and the lists of outputs again"
	@echo "make clean       remove the environment and everything that was built"

# Once; again when what is installed changes.
$(STAMP): setup.cfg pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gausslens needs Python 3.11 or later, this is " + sys.version.split()[0] + ": make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV); the first time takes a few minutes."
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	@$(BIN)/gausslens run examples/demo.yaml

# All cores; PYTEST='-n 0 -k store -x' for one.
test: $(STAMP)
	$(BIN)/pytest -n auto --dist worksteal $(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# A minute or two the first time; pictures and studies that it made are kept in build/site/store.
site: $(STAMP)
	$(BIN)/python docs/site/make_site.py

benchmarks: $(STAMP)
	@for script in $(filter-out $(SOAKED) benchmarks/synthetic.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; OMP_NUM_THREADS=1 $(BIN)/python $$script || exit 1; done

# What is too long for CI: scripts, each with --store for what it keeps, and the models that they are tried on.
comma       := ,
SOAK_STORE  ?= soak
SOAK_MODELS ?= builtin:tiny builtin:clue-tiny $(if $(GAUSSLENS_MODELS),$(GAUSSLENS_MODELS)/stories15m $(GAUSSLENS_MODELS)/smollm2:0$(comma)14$(comma)29)
SOAK        := benchmarks/calibration.py
SOAKED      := $(SOAK) benchmarks/calibration_ladder.py benchmarks/every_type.py

soak: $(STAMP)
	@mkdir -p $(SOAK_STORE)
	@for script in $(SOAK); do for model in $(SOAK_MODELS); do echo "== $$script $$model"; \
	OMP_NUM_THREADS=1 $(BIN)/python $$script $$model --store $(SOAK_STORE)/$$(basename $$script .py) $(SOAK_OPTIONS) || exit 1; done; done
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/every_type.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/reproduction/remake.py --check --store $(SOAK_STORE)/reproduction
	OMP_NUM_THREADS=1 $(BIN)/python tests/framework/random_studies.py 200 --directory $(SOAK_STORE)/random-studies
	OMP_NUM_THREADS=1 GAUSSLENS_FULL=soak $(BIN)/pytest -q -n auto
	$(MAKE) benchmarks

# Every experiment of the sources, on stories15m and smollm2 too where GAUSSLENS_MODELS is set; hours the first time.
REPRODUCTION_STORE ?= reproduction

reproduction: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python docs/reproduction/remake.py --store $(REPRODUCTION_STORE) $(REPRODUCTION)

schemas: $(STAMP)
	$(BIN)/gausslens schema --write schemas
	$(BIN)/python docs/site/studies.py

clean:
	rm -rf $(VENV) build dist examples/store .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
