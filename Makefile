# Every target prepares the machine by itself (scripts/setup.sh) and is safe to run again.
#
#   make demo     real data through the whole product, a crash in the middle, every result compared
#   make test     one small case of every promise; ten minutes on two cores when last counted, eight are meant
#   make test-all every test, with all its cases, about twenty minutes on two cores
#   make serve    a service on ./holdfast-data, http://127.0.0.1:8080
#   make check    formatting, lint, types, the import law, documentation
#   make prove    the large numbers; writes proof.json; a skipped test or a missing program is a failure
#   make bench    every benchmark, results in benchmarks/results/
#   make docs     links, commands and examples of the documentation, checked
#   make mutate   mutants of what decides about rights and data; each is noticed by a fast test, or has a reason

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
STAMPS := .venv/.stamps
LANES ?= unit property scripts compat conformance simulation integration stores crash spark
LANE_FOLDERS = $(addprefix tests/,$(LANES))
SPARK_LANE = $(filter tests/spark,$(LANE_FOLDERS))
OTHER_LANES = $(filter-out tests/spark,$(LANE_FOLDERS))
REQUIREMENT_SETS := server client console spark all demo bench test dev

.PHONY: help demo serve test test-all check prove bench docs mutate requirements clean

help:
	@sed -n 's/^#   //p' Makefile

# The tests and examples start many a process. Where they may not keep what they compiled, each compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

# ---- set-up ---------------------------------------------------------------------------------------------------------

$(STAMPS)/venv: requirements/dev.txt scripts/setup.sh
	@scripts/setup.sh venv
	@mkdir -p $(STAMPS)
	@touch $@

# Holds the Java home, so that later runs do not search for it.
$(STAMPS)/java: $(STAMPS)/venv
	@scripts/setup.sh java > $@

# Not a stamp: a missing lane is reported at every run.
.PHONY: s3-packages
s3-packages:
	@scripts/setup.sh s3

.PHONY: etcd
etcd:
	@scripts/setup.sh etcd

.PHONY: browser
browser:
	@scripts/setup.sh browser

# ---- what people run ------------------------------------------------------------------------------------------------

demo: $(STAMPS)/venv $(STAMPS)/java
	@JAVA_HOME=$$(cat $(STAMPS)/java) $(BIN)/python -m examples.demo $(DEMO_FLAGS)

serve: $(STAMPS)/venv
	@exec $(BIN)/holdfast serve $(SERVE_FLAGS)

# The tests without the mark `matrix`, with small numbers: one small case for each promise.
test: $(STAMPS)/venv $(STAMPS)/java s3-packages etcd browser
	@HOLDFAST_SMALL=1 JAVA_HOME=$$(cat $(STAMPS)/java) $(BIN)/python scripts/run_tests.py $(LANES) -- -m "not matrix" $(TEST_FLAGS)

test-all: $(STAMPS)/venv $(STAMPS)/java s3-packages etcd browser
	@JAVA_HOME=$$(cat $(STAMPS)/java) $(BIN)/python scripts/run_tests.py $(LANES) -- $(TEST_FLAGS)

# Large numbers; proof.json is written by tests/conftest.py at the end, also when something failed; Spark's run joins it.
prove: $(STAMPS)/venv $(STAMPS)/java
	@CI=true scripts/setup.sh s3
	@CI=true scripts/setup.sh etcd
	@CI=true scripts/setup.sh azure
	@CI=true scripts/setup.sh browser
	@rm -f proof.json
	@status=0; \
	$(if $(OTHER_LANES),HOLDFAST_PROVE=1 $(BIN)/python -m pytest -q --timeout=14400 $(OTHER_LANES) $(TEST_FLAGS) || status=$$?;) \
	$(if $(SPARK_LANE),HOLDFAST_PROVE=1 $(if $(OTHER_LANES),HOLDFAST_PROOF_GOES_ON=1) JAVA_HOME=$$(cat $(STAMPS)/java) \
	    $(BIN)/python -m pytest -q --timeout=14400 $(SPARK_LANE) $(TEST_FLAGS) || status=$$?;) \
	exit $$status

check: $(STAMPS)/venv
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_source.py
	$(BIN)/python scripts/generate_sync_clients.py --check
	@$(MAKE) --no-print-directory docs

docs: $(STAMPS)/venv
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python -m pytest -q tests/scripts/test_docstring_examples.py

bench: $(STAMPS)/venv $(STAMPS)/java
	@JAVA_HOME=$$(cat $(STAMPS)/java) $(BIN)/python scripts/run_benchmarks.py $(BENCH_FLAGS)

# MUTATE_FLAGS="rights cursors --minutes 10" runs these groups of modules.
mutate: $(STAMPS)/venv
	@$(BIN)/python scripts/mutate.py $(MUTATE_FLAGS)

# ---- what maintainers run -------------------------------------------------------------------------------------------

# Locks again after a change of pyproject.toml; a command of its own and no file rule, because a checkout's times mean
# nothing. One resolution for all: each set is constrained by dev, which contains every other. No index addresses are
# written: the installing machine's own are used.
LOCK = $(BIN)/python -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --no-emit-find-links --no-annotate --custom-compile-command "make requirements"

requirements:
	$(LOCK) --extra dev -o requirements/dev.txt pyproject.toml
	for set in $(filter-out dev,$(REQUIREMENT_SETS)); do \
	    $(LOCK) --extra $$set --constraints requirements/dev.txt -o requirements/$$set.txt pyproject.toml || exit 1; \
	done

clean:
	rm -rf .venv .mutants build dist .mypy_cache .ruff_cache .hypothesis proof.json
