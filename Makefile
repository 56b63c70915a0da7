# make demo | test | test-labs | test-all | test-nightly | test-failed | check | bench: each sets up .venv by itself on first use.
PYTHON ?= python3
# One known torch: a looser requirement draws the newest build with several GB of CUDA packages.
TORCH ?= torch==2.13.0
# More than small machines have cores: many tests wait for time limits and for other processes.
TEST_WORKERS ?= 4
PYTEST = $(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder
BIN := .venv/bin

.PHONY: demo test test-labs test-all test-nightly test-failed check bench gpu docs clean

demo: .venv/.train
	rm -rf runs/demo
	$(BIN)/platform-launch simulate --nodes 2 --example taehv -- --output-dir runs/demo
	@echo
	@echo "Trained:  a small TAEHV video autoencoder on the sample clip that comes with it, by 2 nodes of 1 process"
	@echo "Open:     runs/demo/reconstruction.png (frames and what it made of them), runs/demo/metrics.jsonl"
	@echo "Try next: $(BIN)/platform-launch simulate --launcher torchrun --script YOUR.py   # your script, on 2 such nodes"
	@echo "          $(BIN)/platform-launch run --assume-gpus 8xH100 --print-env --script YOUR.py   # what a node would run, and why"
	@echo "          $(BIN)/platform-launch init                                           # the file for your cluster"

# What needs Python and a C compiler only, two nodes that train together included.
test: .venv/.dev
	$(PYTEST) -m "not lab and not nightly"

# What needs a special host (root, network namespaces, Slurm, sshd, Chromium, PostgreSQL, a build) or takes long.
test-labs: .venv/.dev
	$(PYTEST) -m "lab and not nightly"

# Together, not one after the other: hosts mostly wait while trainings compute.
test-all: .venv/.dev
	$(PYTEST) -m "not nightly"

# What would keep whoever changes something waiting for minutes more; before a release too.
test-nightly: .venv/.dev
	$(PYTEST) -m nightly

# What failed in the run before, by itself.
test-failed: .venv/.dev
	$(BIN)/pytest --last-failed --last-failed-no-failures none

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/shellcheck -x start_multinode_platform.sh dist-launch .ci/run .ci/interpreters
	$(BIN)/python tests/check_links.py

bench: .venv/.train
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# Ten minutes on a machine with GPUs; without one, a rehearsal of it on two cores.
gpu: .venv/.train
	$(BIN)/python benchmarks/gpu --output benchmarks/results/gpu.json

# Pages link to files of the project, so the site is built from a copy of all of them.
docs: .venv/.docs
	rm -rf build/docs build/site
	mkdir -p build/docs
	git ls-files -z -- ':!tests' ':!.github' | xargs -0 cp --parents -t build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

.venv/.docs: pyproject.toml | .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

# pip says what it fetches: torch alone takes minutes on a slow line.
.venv/.train: pyproject.toml | .venv
	$(BIN)/pip install --disable-pip-version-check "$(TORCH)" -e ".[train]"
	touch $@

.venv/.dev: pyproject.toml | .venv
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)" -e ".[train,jax,dist-launch,procguard,notices,postgres,dev]"
	touch $@ .venv/.train

# The newest pip, as the one that comes with Python may take minutes more for what it reads of an index.
.venv:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip

clean:
	rm -rf .venv logs runs
