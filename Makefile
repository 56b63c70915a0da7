# make demo | test | test-labs | test-all | test-nightly | test-failed | check | bench: each sets up .venv by itself on first use.
PYTHON ?= python3
# One known torch: a looser requirement would install the newest build, with several GB of CUDA packages.
TORCH ?= torch==2.13.0
# May exceed the number of cores: many tests wait for time limits and for other processes.
TEST_WORKERS ?= 4
PYTEST = $(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder
BIN := .venv/bin

.PHONY: demo test test-labs test-all test-nightly test-failed check bench gpu docs clean

demo: .venv/.train
	rm -rf runs/demo
	$(BIN)/platform-launch simulate --nodes 2 --example taehv -- --output-dir runs/demo
	@echo
	@echo "Trained:  a small TAEHV video autoencoder on the included sample clip, on 2 nodes with 1 process each"
	@echo "Open:     runs/demo/reconstruction.png (frames and their reconstructions), runs/demo/metrics.jsonl"
	@echo "Try next: $(BIN)/platform-launch simulate --launcher torchrun --script YOUR.py   # your script, on 2 such nodes"
	@echo "          $(BIN)/platform-launch run --assume-gpus 8xH100 --print-env --script YOUR.py   # what a node would run, and why"
	@echo "          $(BIN)/platform-launch init                                           # the file for your cluster"

# Tests that need only Python and a C compiler, including two nodes that train together. With six workers they take a
# seventh less time than with four.
test: TEST_WORKERS = 6
test: .venv/.dev
	$(PYTEST) -m "not lab and not nightly"

# Tests that need a special host (root, network namespaces, Slurm, sshd, Chromium, PostgreSQL, a build) or take long.
test-labs: .venv/.dev
	$(PYTEST) -m "lab and not nightly"

# Both kinds in one run, because tests on special hosts mostly wait.
test-all: .venv/.dev
	$(PYTEST) -m "not nightly"

# Tests that take the most processor time; also run before a release.
test-nightly: .venv/.dev
	$(PYTEST) -m nightly

# Only the tests that failed in the last run.
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

# pip shows its downloads, because torch alone takes minutes on a slow connection.
.venv/.train: pyproject.toml | .venv
	$(BIN)/pip install --disable-pip-version-check "$(TORCH)" -e ".[train]"
	touch $@

.venv/.dev: pyproject.toml | .venv
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)" -e ".[train,jax,dist-launch,procguard,notices,postgres,dev]"
	touch $@ .venv/.train

# The newest pip: the one that comes with Python may be minutes slower.
.venv:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip

clean:
	rm -rf .venv logs runs
