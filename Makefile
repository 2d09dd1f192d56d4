# Two commands matter: `make demo` trains, `make test` checks. Each makes `.venv` when it is needed.
#
# Which torch: a CPU machine gets the CPU build, from the package index pip is configured with or else from
# download.pytorch.org; a machine with an NVIDIA driver gets the default (CUDA) build, or keeps the torch its Python
# already has. To choose yourself: make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal --durations=10
TORCH_VERSION := 2.13.0
NVIDIA := $(shell command -v nvidia-smi 2>/dev/null)
ifneq ($(NVIDIA),)
OWN_TORCH := $(shell $(PYTHON) -c 'import importlib.util as u; print("yes" if u.find_spec("torch") else "")' 2>/dev/null)
endif

# Peers and test workers share the cores of one machine: one thread each is fastest.
export OMP_NUM_THREADS ?= 1
# Tests start hundreds of processes: each would compile every module again where Python may not keep what it compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint long bench clean

demo: $(VENV)/.atoll
	$(BIN)/atoll demo

test: lint
	$(PYTEST)

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

# Of the recipes those too that are not marked long, so that all of them are trained for real here.
long: $(VENV)/.dev
	$(PYTEST) -m long --timeout 5400
	$(PYTEST) tests/world/test_recipes.py
	$(BIN)/atoll sim --seeds 200..10200
	$(BIN)/atoll sim --faults points
	$(BIN)/python -m bench.thousand

bench: $(VENV)/.dev
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo 'error: Python 3.11 or later is needed'; echo 'hint: make PYTHON=/path/to/python3.11'; exit 3; }
	$(PYTHON) -m venv $(if $(OWN_TORCH),--system-site-packages) $(VENV)
	touch $@

# Torch goes first, so that nothing later pulls in another build.
$(VENV)/.torch: $(VENV)/.python
ifdef TORCH
	$(PIP) install $(TORCH)
else ifdef OWN_TORCH
	@echo 'using the torch of $(PYTHON)'
else ifneq ($(NVIDIA),)
	$(PIP) install torch==$(TORCH_VERSION)
else
	$(PIP) install torch==$(TORCH_VERSION)+cpu 2>/dev/null || \
	    $(PIP) install torch==$(TORCH_VERSION) --index-url https://download.pytorch.org/whl/cpu
endif
	touch $@

$(VENV)/.atoll: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.atoll pyproject.toml
	$(PIP) install --quiet --editable '.[dev,hf,plots]'
	touch $@
