# `make demo` and `make test` work on a fresh machine: each makes .venv and installs all that it needs.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
LOCK := requirements.lock
# SPU has wheels for Python 3.11 on Linux alone; its tests say so where it is missing.
ENGINES := $(shell $(PYTHON) -c 'import sys; print("spu," * (sys.version_info[:2] == (3, 11) and sys.platform == "linux"))')
CODE := $(wildcard src tests benchmarks examples dev)

.PHONY: demo study measurements test lint types docs pytest slow install lock clean

demo: $(READY)
	$(BIN)/python examples/digits.py

# Hours on two cores; it goes on where it was. DATA is where data sets are.
study: $(READY)
	$(BIN)/deepshare compare --study small $(if $(DATA),--data-dir $(DATA),--download)

# Every figure of docs/measurements.md that is missing or older than its code. Hours on quiet cores; it goes on where it was.
# DATA is where data sets are; without it, what needs them is skipped.
measurements: $(READY)
	$(BIN)/python dev/measurements.py $(if $(DATA),--data-dir $(DATA))

# The first three do not disturb each other; each says all that it has to say when it ends.
test: $(READY)
	$(MAKE) --no-print-directory --jobs=2 --output-sync lint types docs
	$(MAKE) --no-print-directory pytest

lint: $(READY)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(READY)
	$(BIN)/mypy $(CODE)

# The site, in build/site; nothing is fetched. First, records that are older than their code get their mark, and lists of
# results are written. The variable silences an announcement, not a warning.
docs: $(READY)
	$(BIN)/python dev/measurements.py --page
	$(BIN)/python dev/docs_hooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# One torch thread for each worker: two workers on two cores do not fight. A worker runs tests that stand next to each
# other, which share their fixtures, and takes half of the other's rest when it has none left. At the end, the share of
# lines that ran in the tests' own processes; parties and jobs that run as processes of their own are not in it.
pytest: $(READY)
	rm -f build/coverage*
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -p dev.executed_lines
	@$(BIN)/coverage combine --quiet
	@echo "coverage of src/deepshare: $$($(BIN)/coverage report --format=total)% of lines"

# What `pytest` leaves out, a dry run of every recipe included. One process: some of it needs much memory.
slow: $(READY)
	$(BIN)/pytest -m slow

install: $(READY)

# After a change of versions in constraints.txt: installs them, and writes down all that came with them. Builds of torch
# differ in a suffix that an index need not have.
lock:
	$(MAKE) install LOCK=constraints.txt
	sed -i '/^[^#]/d' requirements.lock
	$(BIN)/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+cpu$$//' >> requirements.lock
	touch $(READY)

# CrypTen asks for packages that it does not use, so it is installed without them and with those that it imports.
# The lock pins torch, so that nothing that is installed later can bring another one.
$(READY): pyproject.toml $(LOCK) $(wildcard dev/torchvision_cpu.*)
	@echo "installing into .venv, which takes a few minutes; pip will say that packages which crypten asks for are missing"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c $(LOCK) -e '.[onnx,zoo,tensorboard,cluster,2pc,$(ENGINES)dev]'
	$(BIN)/python -m pip install --quiet --no-deps -c $(LOCK) crypten
	$(BIN)/python -m pip install --quiet -c $(LOCK) omegaconf antlr4-python3-runtime pyyaml onnx
	cp dev/torchvision_cpu.* "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	touch $@

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache
