# make serve: run the server. make test: everything that must pass. Others: see README.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
WEBUI := .venv-openwebui
OPENWEBUI ?= open-webui==0.12.4
PLAYWRIGHT ?= playwright==1.65.0
# Open WebUI needs torch. The build for Linux brings several GB of CUDA: name a wheel for the CPU here where you have one.
TORCH ?= torch==2.13.0
WEBUI_STAMP := $(WEBUI)/.installed-$(OPENWEBUI)
BROWSER_STAMP := $(VENV)/.installed-$(PLAYWRIGHT)
# Bytecode is kept, whatever the environment says: the tests start hundreds of servers, and each would compile all modules.
export PYTHONDONTWRITEBYTECODE =

.PHONY: serve test check bench bench-cluster test-cluster drill sim faults clean docs sandbox test-schema chromium test-openwebui test-clients

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

serve: $(STAMP)
	$(BIN)/holdfast serve $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check holdfast tests
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
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -rs

# Minutes of random requests against /openapi.json; `make test` has a short run of the same.
test-schema: $(STAMP)
	$(BIN)/python -m tests.schema.fuzz

$(WEBUI_STAMP):
	$(PYTHON) -m venv $(WEBUI)
	$(WEBUI)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir $(TORCH)
	$(WEBUI)/bin/python -m pip install --quiet --disable-pip-version-check --no-cache-dir $(OPENWEBUI) $(TORCH)
	touch $@

$(BROWSER_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PLAYWRIGHT)
	touch $@

chromium:
	@command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || \
	command -v google-chrome >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    apt-get install -y -qq chromium fonts-noto-color-emoji >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -y -qq chromium fonts-noto-color-emoji; } >/dev/null; \
	  else echo 'Chromium is missing: install it (apt-get install chromium)' >&2; exit 1; fi; }

# The real Open WebUI (3 GB of packages, installed once) in front of the server, driven in a headless Chromium.
# Pictures of what was seen: tests/openwebui/out
test-openwebui: $(WEBUI_STAMP) $(BROWSER_STAMP) chromium
	TEST_OPENWEBUI=1 $(BIN)/python -m pytest -rs tests/openwebui $(ARGS)

# Real clients in Python and JavaScript against the real server; installs them first (about 2 GB, once).
test-clients: $(STAMP)
	@command -v npm >/dev/null 2>&1 || printf '\n!!! npm is missing: THE CLIENTS IN JAVASCRIPT ARE SKIPPED\n\n' >&2
	$(BIN)/python -m tests.clients.run --jobs $(JOBS) $(ARGS)

# Three replicas on one PostgreSQL (from PyPI, no system install), while replicas and the database die: about 8 min.
# ARGS="storm --seed 7" plays one trial again; ARGS="--loopback" makes no network namespaces.
test-cluster: $(STAMP)
	$(BIN)/python -m pytest -m long tests/cluster
	$(BIN)/python -m tests.cluster $(ARGS)

# SQLite, PostgreSQL with one replica and with three, side by side; and how long an event takes from one to another.
bench-cluster: $(STAMP)
	$(BIN)/python -m tests.cluster.bench $(ARGS)

docs: $(STAMP)
	$(BIN)/python -m holdfast.docs docs

bench: $(STAMP)
	$(BIN)/holdfast bench $(ARGS)

# Kills at every write of the journal and 500 at random; `make drill ARGS="--report docs/proof.md"` renews the proof.
drill: $(STAMP)
	$(BIN)/python -m pytest -m long tests/crash
	$(BIN)/holdfast drill --config tests/crash/drill.toml --shell --kills 500 $(ARGS)

sim: $(STAMP)
	$(BIN)/python -W ignore -m tests.sim --seeds 20000 $(ARGS)
	$(BIN)/python -W ignore -m tests.sim --peers --seeds 10000 $(ARGS)

clean:
	rm -rf $(VENV) $(WEBUI) tests/openwebui/out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis bench-out
	rm -rf .venv-clients tests/clients/node/node_modules

# The fault programme: everything in tests/faults, the long trials too.
faults: $(STAMP) sandbox
	@command -v strace >/dev/null 2>&1 || apt-get install -y -qq strace >/dev/null 2>&1 || true
	@ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || apt-get install -y -qq libfaketime >/dev/null 2>&1 || true
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -rs -s -m "long or not long" tests/faults $(ARGS)
