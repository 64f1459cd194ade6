# Each target does all of its own set-up; `make` alone explains them.

VENV   ?= .venv
# The Python that a new environment is made with; the newest one on PATH when empty.
PYTHON ?=
# Of `make test`: one more than there are cores, because tests wait for processes and for the disk.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
python  = $(VENV)/bin/python

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# No look-up of a newer pyright, and its own Node.js instead of one that may be too old.
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
export PYRIGHT_PYTHON_GLOBAL_NODE = 0

# $(call timed,COMMAND) runs it, says how long it took with its set-up, and ends as it ended.
started := $(shell date +%s)
timed    = { $(1); }; status=$$?; echo "make $@ took $$(( $$(date +%s) - $(started) )) s"; exit $$status

.PHONY: help demo test faults test-all check lint types format docs bench torture clean

help: ## explain the targets
	@echo 'usage: make TARGET [VARIABLE=VALUE ...]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  DATA=FILE    demo: play this JSONL file of sessions instead of the bundled one'
	@echo '  ARGS=...     test, faults, test-all, bench, torture: more arguments, for example ARGS="-k append"'
	@echo '  PYTHON=PATH  make new environments with this Python (default: the newest on PATH, from 3.11)'

demo: $(VENV)/installed ## play a session through the log, kill it, restart it, show that nothing was lost
	@$(call timed,$(python) -m examples.demo $(if $(DATA),--data '$(DATA)'))

test: $(VENV)/installed-test ## run the tests, but for those that make faults happen again and again
	@$(call timed,$(python) -m pytest -n $(WORKERS) --dist worksteal -m 'not faults' $(ARGS))

faults: $(VENV)/installed-test ## try kills, power cuts, failing disks, cancellation, orders: as often as a change must stand
	@$(call timed,$(python) -m pytest -n auto --dist worksteal -m faults --counts ci --timeout 500 -rfEsP \
	    --show-capture=stdout $(ARGS))

test-all: ## run the tests on every CPython from 3.11 on that is found, each in its own environment
	@found=$$(.ci/pythons all) || exit 1; \
	echo "$$found" | { \
	    failed=; \
	    while read -r version executable; do \
	        echo "== Python $$version"; \
	        $(MAKE) --no-print-directory test VENV=.venvs/$$version PYTHON="$$executable" </dev/null \
	            || failed="$$failed $$version"; \
	    done; \
	    $(call timed,if [ -n "$$failed" ]; then echo "failed on Python$$failed"; false; fi); \
	}

check: lint types test faults ## everything that must hold: lint, format, types, tests, faults
	@$(call timed,true)

lint: $(VENV)/installed-dev ## look for what ruff finds, formatting included
	$(python) -m ruff check
	$(python) -m ruff format --check

types: $(VENV)/installed-dev ## check the types, with mypy --strict and with pyright
	$(python) -m mypy
	$(python) -m pyright

format: $(VENV)/installed-dev ## format the code and repair what ruff can repair
	$(python) -m ruff check --fix --exit-zero
	$(python) -m ruff format

docs: $(VENV)/installed-docs ## make the site of the documents, in site/; a warning or a dead link is an error
	@$(call timed,$(python) -m sphinx --fresh-env --fail-on-warning --keep-going --quiet --conf-dir docs . site)

bench: $(VENV)/installed-bench ## measure everything against plain sqlite3, plain aiosqlite and the peers, as ratios
	@$(call timed,$(python) -m benchmarks $(ARGS))

torture: $(VENV)/installed-test ## try for hours to make the log lose something: kills, power cuts, failing disks, schedules
	@if ! command -v strace >/dev/null; then \
	    echo 'strace is missing, and several parts inject faults with it; trying to install it'; \
	    apt-get install --yes --no-install-recommends strace || sudo -n apt-get install --yes strace || true; \
	fi
	@$(call timed,$(python) -m tests.torture $(ARGS))

clean: ## remove the environments and everything that was built
	rm -rf .venv .venvs dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment is made once; each stamp in it is an installation that is as new as pyproject.toml.
$(VENV)/installed: pyproject.toml
	@$(environment)
	$(python) -m pip install --quiet --editable .
	@touch $@

$(VENV)/installed-%: pyproject.toml
	@$(environment)
	$(python) -m pip install --quiet --editable '.[$*]'
	@touch $@

define environment
if ! $(python) -c 'import pip' 2>/dev/null; then \
    chosen='$(PYTHON)'; \
    if [ -z "$$chosen" ]; then \
        found=$$(.ci/pythons path) || exit 1; \
        chosen=$$(echo "$$found" | sed -n '1s/^[^ ]* //p'); \
    fi; \
    echo "making $(VENV) with $$chosen"; \
    "$$chosen" -m venv --clear $(VENV); \
fi
endef
