# `make demo` and `make test` do all the set-up: they make .venv when it is missing, build, and run.
# `make VENV= TARGET` uses the present python3 and the build already there, and installs and builds nothing.
#
#   PYTHON      interpreter that makes .venv             (python3)
#   TORCH       torch to install when .venv has none     (torch>=2.11)
#   PYTHON312   interpreter that build-gpu makes _C for  (python3.12, pyenv's where PATH has none)
#   GPU_ARCHS   architectures of build-gpu               (90a)
#   ARGS        further arguments of the program that the target runs
#   KERNEL      a kernel's registry name, for sass and ncu
# and GEMMX_CUDA_ARCHS, GEMMX_BUILD_BUDGET, MAX_JOBS: docs/building.md.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch>=2.11
GPU_ARCHS ?= 90a
# The first that runs: pyenv's shim exists also where pyenv has switched 3.12 off.
PYTHON312 ?= $(shell for python in python3.12 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.12*/bin/python3; do \
  $$python -c 'import sys; print(sys.executable)' 2>/dev/null && break; done)
KERNEL ?=
ARGS ?=

# torch refuses to start when TORCH_LOGS is set but empty.
ifeq ($(TORCH_LOGS),)
unexport TORCH_LOGS
endif
export PYTHONPATH := $(CURDIR)/python$(if $(PYTHONPATH),:$(PYTHONPATH))

ifeq ($(VENV),)
  PY := python3
  BIN :=
  READY :=
  LINT :=
  BUILD :=
  # build-gpu is taken where it fits this python3, else what lies in python/gemmx.
  TAG := $(shell python3 -c 'import sys; print(sys.implementation.cache_tag)')
  ifneq ($(wildcard build-gpu/_C.$(TAG)*.so),)
    export GEMMX_LIBRARY_DIR := $(CURDIR)/build-gpu
  endif
else
  BIN := $(abspath $(VENV))/bin/
  PY := $(BIN)python
  READY := $(VENV)/.ready
  LINT := $(VENV)/.lint
  BUILD := build
endif

TARGETS := demo test test-gpu fuzz sanitize bench ladder build build-gpu fmt lint sass ncu clean
.PHONY: help $(TARGETS)

help:
	@sed -n '/^SHELL/q; s/^# \{0,1\}//p' Makefile
	@echo 'Targets: $(TARGETS)'

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# pip 25.1 is the first that knows dependency groups. A torch that is already there is kept.
$(VENV)/.ready: pyproject.toml | $(VENV)/bin/python
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	$(PY) -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' || $(PY) -m pip install --quiet '$(TORCH)'
	$(PY) -m pip install --quiet --group build --group test
	touch $@

$(VENV)/.lint: pyproject.toml | $(READY)
	$(PY) -m pip install --quiet --group lint
	touch $@

# CUTLASS's headers and pip's nvcc, only where a build for the architectures $(1) lacks them.
define install_missing
missing=$$(GEMMX_CUDA_ARCHS='$(1)' $(PY) cmake/environment.py --missing); \
  if [ -n "$$missing" ]; then echo "$$missing" | xargs -d '\n' $(PY) -m pip install --quiet; fi
endef

# Into python/gemmx, in place.
build: $(READY)
	@$(call install_missing,$(GEMMX_CUDA_ARCHS))
	$(PY) setup.py -q build_ext --inplace

# The library for a GPU machine without a compiler, and _C for its Python 3.12; python/gemmx/_library.py takes them
# from GEMMX_LIBRARY_DIR.
build-gpu: $(READY)
	@test -n '$(PYTHON312)' || { echo 'PYTHON312: no python3.12 found, name one: make build-gpu PYTHON312=/path/to/python3.12' >&2; exit 1; }
	@$(call install_missing,$(GPU_ARCHS))
	$(BIN)cmake -S . -B build/gpu -G Ninja -DCMAKE_MAKE_PROGRAM=$(BIN)ninja '-DGEMMX_CUDA_ARCHS=$(GPU_ARCHS)' \
	  -DGEMMX_PYTHON=$(PY) -DGEMMX_MODULE_PYTHON=$(PYTHON312)
	$(BIN)cmake --build build/gpu $(if $(MAX_JOBS),--parallel $(MAX_JOBS))
	rm -rf build-gpu
	$(BIN)cmake --install build/gpu --prefix build-gpu --strip
	@du -sh build-gpu

demo: $(BUILD)
	$(PY) -m gemmx.demo $(ARGS)

test: $(BUILD)
	$(PY) -m pytest -q $(ARGS)

# A run that leaves records, failed or not, then the page that quotes them.
define recorded
status=0; $(1) || status=$$?; $(PY) tests/gpu/reliability_page.py; exit $$status
endef

test-gpu: $(BUILD)
	@$(call recorded,$(PY) -m pytest tests/gpu tests/fault_cases -m gpu --gpu-record $(ARGS))

# 20,000 random problems against float64; ARGS="--problems N --seconds S --seed X".
fuzz: $(BUILD)
	@$(call recorded,$(PY) tests/gpu/fuzz.py $(ARGS))

bench: $(BUILD)
	$(PY) benchmarks/run.py $(ARGS)

# Measures the teaching kernels and writes docs/ladder.md.
ladder: $(BUILD)
	$(PY) benchmarks/ladder.py $(ARGS)
	$(PY) benchmarks/ladder_report.py

fmt: $(LINT)
	git ls-files '*.h' '*.cuh' '*.cpp' '*.cu' | xargs -r $(BIN)clang-format -i
	$(BIN)ruff format python tests benchmarks examples cmake setup.py
	$(BIN)ruff check --fix python tests benchmarks examples cmake setup.py

# The hooks of .pre-commit-config.yaml, run directly.
lint: $(LINT)
	git ls-files '*.h' '*.cuh' '*.cpp' '*.cu' | xargs -r $(BIN)clang-format --dry-run --Werror
	$(BIN)ruff format --check python tests benchmarks examples cmake setup.py
	$(BIN)ruff check python tests benchmarks examples cmake setup.py
	$(BIN)mypy
	$(BIN)typos
	$(BIN)check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

# SASS of the library, or of the one kernel KERNEL, into build/sass/.
sass: $(BUILD)
	$(PY) cmake/sass.py --output build/sass $(if $(KERNEL),--kernel $(KERNEL)) $(ARGS)

# One profile of KERNEL (default: every kernel whose name starts with gemmx) under the demo. Clocks are left alone.
ncu: $(BUILD)
	ncu --clock-control none --set full --launch-count 3 -k 'regex:$(or $(KERNEL),gemmx)' $(or $(ARGS),$(PY) -m gemmx.demo)

# memcheck, initcheck, racecheck and synccheck over every kernel of this GPU, side by side. Without caching, every
# tensor is an allocation with its own bounds.
sanitize: $(BUILD)
	@$(call recorded,$(PY) tests/gpu/sanitize.py $(ARGS))

clean:
	rm -rf build build-gpu dist python/gemmx/*.so python/gemmx/build_info.json
