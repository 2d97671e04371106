# make serve: run the server. make test: everything that must pass. Others: see README.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: serve test check bench drill faults clean docs sandbox

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

# The sandbox tests need bubblewrap: installed where it can be, skipped loudly where not.
sandbox:
	@command -v bwrap >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    apt-get install -y -qq bubblewrap >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -y -qq bubblewrap; } >/dev/null 2>&1 || true; fi; \
	  command -v bwrap >/dev/null 2>&1 || \
	    printf '\n!!! bubblewrap is missing: SANDBOX TESTS ARE SKIPPED (apt-get install bubblewrap)\n\n' >&2; }

test: check sandbox
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -rs

docs: $(STAMP)
	$(BIN)/python -m holdfast.docs docs

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

drill: $(STAMP)
	$(BIN)/python -m tests.crash.drill --kills 500 $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/out

# The fault programme: everything in tests/faults, the long trials too.
faults: $(STAMP) sandbox
	@command -v strace >/dev/null 2>&1 || apt-get install -y -qq strace >/dev/null 2>&1 || true
	@ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || apt-get install -y -qq libfaketime >/dev/null 2>&1 || true
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -rs -s -m "long or not long" tests/faults $(ARGS)
