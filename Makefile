# Every command of the project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
MEMBERS := libs/hami-model libs/hami-chassis libs/kubelet-api libs/hami-sim services/scheduler services/webhook services/node-agent services/monitor
VECTORS ?= tests/data/vectors
OUT ?= out/conformance
STATE ?= .hami-sim

export UV_PYTHON_DOWNLOADS := never

.PHONY: help
help: ## List every command
	@grep -hE '^[a-zA-Z_-]+:.*?## ' $(MAKEFILE_LIST) | sort | awk -F':.*?## ' '{printf "  make %-18s %s\n", $$1, $$2}'

# ---- setting up ------------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/.python.stamp $(VENV)/.members.stamp ## Install what the project needs; our commands are then in .venv/bin

$(BIN)/uv:
	@echo "setup: creating the Python environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv==$(UV_VERSION)

$(VENV)/.python.stamp: requirements.lock | $(BIN)/uv
	@echo "setup: installing pinned Python packages"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.members.stamp: $(VENV)/.python.stamp $(foreach m,$(MEMBERS),$(m)/pyproject.toml) rust-core/pyproject.toml rust-core/Cargo.lock $(shell find rust-core/crates -name '*.rs' -o -name Cargo.toml)
	@echo "setup: building and installing our own packages (the Rust engine takes about a minute)"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(foreach m,$(MEMBERS) rust-core,-e $(m))
	@touch $@

EXPORT := $(BIN)/uv export --quiet --frozen --no-annotate --no-header --no-emit-workspace

.PHONY: lock
lock: | $(BIN)/uv ## Write the pinned requirements anew from the pyproject files (versions and hashes, no addresses)
	$(BIN)/uv lock --upgrade
	$(EXPORT) --all-groups --output-file requirements.lock
	$(EXPORT) --only-group build --output-file images/requirements-build.lock
	$(EXPORT) --no-dev --prune hami-sim --output-file images/requirements-services.lock
	$(EXPORT) --no-dev --output-file images/requirements-node.lock

# ---- checks ----------------------------------------------------------------------------------------------------

.PHONY: check
check: setup libvgpu ## The quick part of the tests: format, lint, types, imports, unit tests
	$(BIN)/python tools/run_suites.py --quick

.PHONY: test
test: setup libvgpu kubernetes ## Every test and check
	$(BIN)/python tools/run_suites.py $(if $(REQUIRED),--required $(REQUIRED)) $(if $(LANES),--lanes $(LANES))

.PHONY: test-long
test-long: setup libvgpu kubernetes ## What takes longer: a million oracle cases, seeded faults, fuzzing, properties, chaos
	$(BIN)/python tools/run_suites.py --long

.PHONY: format
format: setup ## Format all sources
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	cd rust-core && cargo fmt
	git ls-files '*.c' '*.h' | xargs -r $(BIN)/clang-format -i

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(VENV) rust-core/target libvgpu/build out

# ---- the local cluster's programs ------------------------------------------------------------------------------

.PHONY: libvgpu
libvgpu: ## Build the isolation library, the simulated driver and the workloads into libvgpu/build
	@test -d libvgpu/build || echo "libvgpu: building the isolation library and the simulated driver, with their tests (some minutes)"
	@cmake -S libvgpu -B libvgpu/build -DCMAKE_BUILD_TYPE=RelWithDebInfo > /dev/null
	@cmake --build libvgpu/build -j2 > libvgpu/build/build.log || { cat libvgpu/build/build.log; exit 1; }

.PHONY: kubernetes
kubernetes: setup ## Find or build the programs of the local control plane (minutes the first time, cached outside the tree)
	$(BIN)/python -m hami_sim.binaries

.PHONY: up
up: setup libvgpu ## Start the local cluster, detached, with the sample pods; print its nodes, cards and pods
	@$(BIN)/hami-sim up --samples --state $(STATE)

.PHONY: down
down: | $(BIN)/uv ## End the local cluster; nothing of it is left
	@$(BIN)/hami-sim down --state $(STATE)

.PHONY: images
images: setup kubernetes ## Build the container images; makes what a bare machine lacks (images/README.md)
	$(BIN)/python tools/compose/main.py images

.PHONY: compose-up
compose-up: setup kubernetes ## Start the cluster of compose.yaml, detached
	$(BIN)/python tools/compose/main.py up

.PHONY: compose-down
compose-down: setup ## End the cluster of compose.yaml and remove its volumes
	$(BIN)/python tools/compose/main.py down

.PHONY: compose-test
compose-test: setup kubernetes ## Run the sample pods on the cluster of compose.yaml, then take it down
	$(BIN)/python tools/compose/main.py test

.PHONY: conformance
conformance: setup ## Run the golden vectors in VECTORS through the services' code; answers go to OUT
	$(BIN)/python tests/conformance/run.py $(VECTORS) $(OUT)

.PHONY: bench-engine
bench-engine: ## Measure the engine at every size: one JSON object a line (BENCH="--only reserve --decisions 500")
	@cd rust-core && cargo run --release --quiet -p bench -- $(BENCH)
	@cd rust-core && cargo run --release --quiet -p bench --bin bench_topology

.PHONY: bench-instructions
bench-instructions: ## Count instructions of decisions after different histories (callgrind; exits 77 without valgrind)
	@cd rust-core && cargo build --release --quiet -p bench && target/release/bench_instructions

.PHONY: bench-monitor
bench-monitor: setup ## Measure what the monitor costs a node of 100 containers: one JSON object (BENCH="--seconds 60 --check-budget")
	@$(BIN)/python -m hami_monitor.bench $(BENCH)

.PHONY: bench-vgpu
bench-vgpu: libvgpu ## Measure what libvgpu adds to driver calls: JSON lines (BENCH="--check-budgets --only launch"; --help)
	@libvgpu/build/bin/bench-vgpu $(BENCH)

.PHONY: gpu
gpu: ## Check libvgpu on this machine's card, in minutes; SKIPPED where there is none (77; make: Error 77) (GPU=--simulated; --help)
	@tests/gpu/run.sh $(GPU)

.PHONY: bench
bench: setup libvgpu ## Measure the engine, the filter call and pods through a whole cluster; JSON lines
	cd rust-core && cargo run --release --quiet -p bench -- --only reserve
	$(BIN)/python -m hami_scheduler.bench
	$(BIN)/python -m hami_scheduler.bench_start
	$(BIN)/python -m hami_node_agent.bench
	$(BIN)/python -m hami_sim.cluster.bench
