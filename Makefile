# Each target sets up what it needs: a virtual environment in .venv with the pinned versions.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# The problems here are small: more threads for linear algebra would only wait for each other.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

# Tests share a worker with the rest of their file, and with what that sets up once.
WORKERS := -n 2 --dist loadscope

.PHONY: demo test test-all test-newest hunt lint bench clean
.DEFAULT_GOAL := demo

demo: $(READY)
	$(BIN)/hessence demo

test: lint
	$(BIN)/python -m pytest $(WORKERS)

test-all: lint
	$(BIN)/python -m pytest $(WORKERS) -m ""

# All of it on the newest PyTorch, whose default build is several GB: before a release, not in CI.
# TORCH=2.6.* takes another one, such as the oldest that is supported.
TORCH ?=
test-newest:
	test -x .venv-newest/bin/python || python3 -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade \
		"torch$(if $(TORCH),==$(TORCH))" -e ".[torch,plot,experiments,cluster,data,dev]"
	.venv-newest/bin/python -m pip install --quiet --no-deps curvlinops-for-pytorch
	.venv-newest/bin/python -m pytest $(WORKERS)

# New examples for the property tests, a thousand each: takes hours. SEED=7 repeats a run.
hunt: $(READY)
	$(BIN)/python -m pytest $(WORKERS) -m hunt --hypothesis-profile=hunt $(if $(SEED),--hypothesis-seed=$(SEED))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(READY)
	$(PIP) --no-deps pyhessian
	$(BIN)/python -m benchmarks

# PyTorch goes first and alone: its pin decides the build, and what depends on it then finds it there.
# The peer that tests compare with asks for image packages that nothing here needs: it goes without.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e ".[torch,plot,experiments,cluster,data,dev]"
	$(PIP) --no-deps curvlinops-for-pytorch
	touch $@

clean:
	rm -rf $(VENV) .venv-newest out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
