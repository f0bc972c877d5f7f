# Two commands that do all their own set-up: `make demo` and `make test`.
SHELL := /bin/sh
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin

# uv trusts what this machine trusts (an authority of one's own, a company's proxy), where the machine has such a list;
# two names, of new and old uv.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt),)
export UV_SYSTEM_CERTS ?= 1
export UV_NATIVE_TLS ?= 1
endif

# Tests wait more than they compute, so each core gets three workers, up to 16. A file's tests stay on one worker, which may make a
# cluster of its own; files that take long begin first (tests/conftest.py).
IPEXCTL_TEST_WORKERS ?= $(shell n=$$((3 * $$(nproc))); echo $$((n < 16 ? n : 16)))
PYTEST := $(BIN)/python -m pytest
DIST := --dist loadfile --no-loadscope-reorder
PARALLEL := -n $(IPEXCTL_TEST_WORKERS) $(DIST)
unexport PYTHONDONTWRITEBYTECODE # some images set it, and each worker would compile all tests again

.PHONY: dev pages demo test again fast fast-lowest test-stack test-stack-all test-arm test-frameworks test-torch faults soak chaos survival drills fuzz coverage mutation test-impi bench lock audit sbom lint clean

# The main job on an embedded cluster: from a hostfile to a trained model, with plain torch (0.3 GB) or STACK=ipex (4 GB).
STACK ?= native
demo: $(VENV)/.user
	@sh tools/system.sh demo
	@$(BIN)/ipexctl lab demo --stack $(STACK)
	@printf '%s\n' '' 'A script of your own on the same two hosts:' '' '  . $(BIN)/activate' '  ipexctl lab up' \
	    "  ipexctl run -f $${XDG_STATE_HOME:-$$HOME/.local/state}/ipexctl/lab/hostfile train.py"

# What a developer needs: the environment with all tools, and the checks of .pre-commit-config.yaml before each commit.
dev: $(VENV)/.dev
	$(BIN)/pre-commit install

# What is generated: docs/cli.md and the man page from the help of the commands, docs/json from the types of the answers.
pages: $(VENV)/.dev
	$(BIN)/python tools/cli.py
	$(BIN)/python tools/json_schemas.py

# What proves the product, with one road of the real stack: CONTRIBUTING.md has the table of what each command proves.
test: $(VENV)/.dev
	@sh tools/system.sh test
	$(PYTEST) $(PARALLEL) -m "not stack and not beyond_core"

# What needs neither separate hosts nor the stack: unit and contract tests.
fast: $(VENV)/.dev
	@sh tools/system.sh test
	$(PYTEST) $(PARALLEL) tests/unit tests/contract

# The same tests with the oldest release of each dependency that pyproject.toml allows, in an environment of their own, but
# those of what asks for no dependency or for msgspec alone, whose records all others have as well; the pictures of screens
# are those of requirements.lock: other releases of Rich cut texts elsewhere.
LOWEST := .venv-lowest
NOT_LOWEST := agent diagnosis doctor fetch sync show/test_pictures.py test_docs.py test_guides.py test_harmless.py test_house.py \
	test_oldest_python.py test_ssh_config_differential.py
fast-lowest: $(BIN)/uv
	@sh tools/system.sh test
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable .
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --group test
	$(LOWEST)/bin/python -m pytest $(PARALLEL) -m "not hosts" $(NOT_LOWEST:%=--ignore tests/unit/%) tests/unit tests/contract

# The recipes, three real rows and each kind of framework once: they compute, so a worker for each core and one more, up to 4.
# Root, the network and 50 GB of disk.
IPEXCTL_STACK_WORKERS ?= $(shell n=$$(nproc); echo $$((n < 3 ? n + 1 : 4)))
test-stack: $(VENV)/.dev
	@sh tools/system.sh test
	$(PYTEST) -n $(IPEXCTL_STACK_WORKERS) $(DIST) -m "stack and not beyond_core" tests/e2e tests/integration

# All of that: every row, recipe and framework, also in the ways that prove the same twice.
test-stack-all: $(VENV)/.dev
	@sh tools/system.sh test
	$(PYTEST) -n $(IPEXCTL_STACK_WORKERS) $(DIST) -m stack tests/e2e tests/integration

# The main job on hosts of arm64, whose programs qemu runs: root, and the mirror and the index when cold.
test-arm: $(VENV)/.dev
	@sh tools/system.sh arm
	$(PYTEST) -v --timeout 3600 tests/arm

# Other people's frameworks with their own code beside plain torchrun, each in three ways, and the recipe made of them.
test-frameworks: $(VENV)/.dev
	@sh tools/system.sh test
	$(PYTEST) tests/e2e/test_frameworks.py tests/e2e/test_sft.py

# The tests that failed last, one after the other and with nothing beside them.
again: $(VENV)/.dev
	$(PYTEST) --last-failed --last-failed-no-failures none

# Every case of tests/faults/cases.toml, TIMES times: how many were survived, and four counts that must be 0.
TIMES ?= 1
faults: $(VENV)/.dev
	@sh tools/system.sh test
	IPEXCTL_FAULTS_TIMES=$(TIMES) $(PYTEST) -n $$(nproc) --dist loadfile -m fault \
		tests/faults $$(grep -rl pytest.mark.fault tests/unit tests/contract tests/integration tests/e2e --include 'test_*.py')

# Runs and installs in random order for so many minutes, and nothing may be left or grow; SEED brings an order again.
soak: MINUTES ?= 60
soak: $(VENV)/.dev
	@sh tools/system.sh test
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Kills, cuts, freezes and full disks at random moments of runs, syncs and installs, for so many minutes; SEED brings the
# rounds again, ROUND=seed:number one of them, and HARM=lose_packets has this harm only.
chaos: MINUTES ?= 20
chaos: $(VENV)/.dev
	@sh tools/system.sh test
	$(BIN)/python -m tests.faults.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND)) $(if $(HARM),--harm $(HARM))

# Trainings that lose machines, node0 among them, in every way and at ten points; SEED brings the drills again, and
# DRILL=seed:number one of them.
survival: MINUTES ?= 30
survival: $(VENV)/.dev
	@sh tools/system.sh test
	$(BIN)/python -m tests.faults.survival --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(DRILL),--drill $(DRILL))

# Every part of a run killed at each of ten points of it, ten times over; each way in which a rank can end over each MPI and
# backend (docs/failures.md), and what else depends on them: root and two hours.
drills: $(VENV)/.dev
	@sh tools/system.sh test
	IPEXCTL_DRILLS=10 $(PYTEST) -v tests/e2e/test_drills.py tests/integration/test_install_killed.py
	$(PYTEST) -v -n 2 --dist loadfile -m backend tests/e2e

# Texts of strangers against each parser (tests/fuzz), with other examples each time: for so many seconds each those of its
# grammar, and as long such as reach new code, where atheris has a wheel; then the property tests in the same way, once.
SECONDS ?= 60
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(SECONDS)
	@if $(BIN)/python -c 'import atheris' 2>/dev/null; then $(BIN)/python -m tests.fuzz.guided $(SECONDS); \
		else echo 'not guided: atheris has no wheel for this Python or machine'; fi
	$(PYTEST) -q $(PARALLEL) -m hypothesis --hypothesis-profile fuzz tests/unit

# Each line of what decides is executed by the tests of `make fast`; else this names it and fails.
coverage: $(VENV)/.dev
	$(PYTEST) -q $(PARALLEL) --cov ipexctl.decide --cov ipexctl.model --cov ipexctl.protocol --cov-fail-under 100 \
		--cov-report term-missing:skip-covered tests/unit tests/contract

# Decisions broken one after the other, and whether the tests near them notice: root. Those of impi_torch need `make test-impi`'s
# environment, and ALL=1 tries what is not caught with all of `make fast`.
mutation: NUMBER ?= 30
mutation: $(VENV)/.dev
	$(BIN)/python -m tests.mutation --number $(NUMBER) $(if $(SEED),--seed $(SEED)) $(if $(ALL),--all)

# All tests of impi_torch, in an environment of their own: `make test-impi TORCH=2.8.0 PYTHON=python3.12`. Wheels of torch
# in a directory that PIP_FIND_LINKS names come before those of the index.
TORCH ?= 2.13.0
IMPI := $(VENV)/impi-$(TORCH)
test-impi: $(IMPI)/.made
	cd impi_torch && ../$(IMPI)/bin/python -m pytest --timeout 900

# torch's own DistributedTest, as its wheel has it, over impi in Gloo's place with 2, 3 and 4 ranks: what passes over Gloo
# passes, but for what impi_torch/tests/expected.txt names.
test-torch: $(IMPI)/.made
	cd impi_torch && ../$(IMPI)/bin/python -m pytest -rA --timeout 3600 tests/torch_suite.py

$(IMPI)/.made: impi_torch/pyproject.toml $(VENV)/.dev
	@sh tools/system.sh test
	$(BIN)/uv venv --quiet --allow-existing --python "$(PYTHON)" $(IMPI)
	$(BIN)/uv pip install --quiet --python $(IMPI)/bin/python $(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)") \
		"torch==$(TORCH)" impi-rt==2021.18.1 numpy expecttest pytest pytest-timeout accelerate transformers --editable impi_torch
	@touch $@

# All benchmarks, with the tools that they compare with: benchmarks/RESULTS.md and its plots anew. QUICK=1: small ones, into a
# temporary directory; ROUNDS=3; ONLY=launch,push measures these and leaves the others of the page as they are.
PEERS := $(VENV)/peers
bench: $(PEERS)/.made
	@sh tools/system.sh bench
	$(BIN)/python benchmarks/run_all.py --peers $(PEERS) $(if $(QUICK),--quick) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(ONLY),--only $(ONLY))

$(PEERS)/.made: benchmarks/peers.py $(VENV)/.dev
	rm -rf $(PEERS)
	$(BIN)/python benchmarks/peers.py $(PEERS) --stack
	@touch $@

# The releases of $(VENV), with the hashes of all their files and no index's name; those of requirements-tools.lock, which
# audit and list the parts of a release, have an environment of their own. `make lock` makes both anew, `make audit` asks for
# known vulnerabilities of both. Neither is for `make fast-lowest` (the oldest releases), `make test-impi` (a stack of its
# own) and the tools that `make bench` compares with; `LOCKED=` takes the newest.
LOCKED ?= --constraint requirements.lock --build-constraint requirements.lock
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-header --no-annotate
lock: $(BIN)/uv
	echo hatchling | $(COMPILE) --group dev -o requirements.lock pyproject.toml -
	printf '%s\n' cyclonedx-bom pip-audit | $(COMPILE) -o requirements-tools.lock -

# CI without the internet must be able to pass: what was not audited is said. Where the index answers, and a file of the
# tools is not the one that was locked, that is a failure.
TOOLS := $(VENV)/tools
INSTALL_TOOLS = $(BIN)/uv pip install --python $(TOOLS)/bin/python --only-binary :all: -r requirements-tools.lock
audit: $(VENV)/.dev
	@if $(MAKE) --no-print-directory $(TOOLS)/.made; then $(BIN)/python tools/audit.py $(TOOLS)/bin/pip-audit; \
	elif $(INSTALL_TOOLS) --quiet --dry-run --refresh --no-verify-hashes; then \
		echo 'error: a file of requirements-tools.lock is not the one that was locked, or cannot be installed'; exit 1; \
	else echo 'not audited: the index of pip-audit does not answer'; fi

# The parts of a release, for whoever takes it.
sbom: $(TOOLS)/.made
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml -o dist/sbom.cdx.json

# By `uv pip`, which checks the hashes; `uv tool run` takes a lock's versions alone.
$(TOOLS)/.made: requirements-tools.lock $(BIN)/uv
	@rm -rf $(TOOLS)
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(TOOLS)
	@$(INSTALL_TOOLS) --quiet --require-hashes
	@touch $@

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(LOWEST)

$(BIN)/uv: tools/venv.sh
	@echo "making an environment in $(VENV)"
	@PYTHON="$(PYTHON)" sh tools/venv.sh $(VENV)
	@touch $@

$(VENV)/.user: pyproject.toml requirements.lock $(BIN)/uv
	@echo "installing ipexctl into $(VENV)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python $(LOCKED) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml requirements.lock $(BIN)/uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python $(LOCKED) --editable . --group dev
	@touch $@ $(VENV)/.user
