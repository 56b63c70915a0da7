# make demo | test | check | bench: each sets up .venv by itself on first use.
PYTHON ?= python3
# One known torch: a looser requirement draws the newest build with several GB of CUDA packages.
TORCH ?= torch==2.13.0
# More than small machines have cores: many tests wait for time limits and for other processes.
TEST_WORKERS ?= 3
BIN := .venv/bin

.PHONY: demo test check bench clean

demo: .venv/.train
	rm -rf runs/demo
	$(BIN)/platform-launch simulate --nodes 2 -- --output-dir runs/demo

test: .venv/.dev
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/shellcheck start_multinode_platform.sh .ci/run
	$(BIN)/python tests/check_links.py

bench: .venv/.train
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

.venv/.train: pyproject.toml | .venv
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)" -e ".[train]"
	touch $@

.venv/.dev: pyproject.toml | .venv
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)" -e ".[train,jax,debug,procguard,postgres,dev]"
	touch $@ .venv/.train

.venv:
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv logs runs
