# make serve: run the server. make test: everything that must pass. Others: see README.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: serve test check bench drill clean docs

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

serve: $(STAMP)
	$(BIN)/holdfast serve $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check holdfast tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m holdfast.docs --check docs

test: check
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

docs: $(STAMP)
	$(BIN)/python -m holdfast.docs docs

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

drill: $(STAMP)
	$(BIN)/python -m tests.crash.drill --kills 500 $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/out
