# Moewire. `make demo` and `make test` need Python 3.11 or newer, Go, gcc and make, and
# fetch everything else. What they do is in .ci/steps.py.

PYTHON ?= python3
VENV := $(if $(MOEWIRE_VENV),$(MOEWIRE_VENV),.venv)

.PHONY: help demo demo-store check test test-rest test-all test-long wheel kernels gpu-test gpu-bench lib lint format generate bench venv lock clean

help:
	@echo 'make demo    a trained MoE model over four processes, against one process'
	@echo 'make demo-store  vLLM and a block store, stopped and started again (3 GB, once)'
	@echo 'make check   lint, the short tests, two processes: in three minutes'
	@echo 'make test    what protects a user, each step timed: in ten minutes'
	@echo 'make test-all   all that must hold: in 30 minutes (35: all is compiled); test-rest: what test leaves of it'
	@echo 'make test-long  outside CI: soaks, thousands of faults, every mutant: hours'
	@echo 'make lint    only the fast checks: gofmt, vet, staticcheck, ruff, mypy'
	@echo 'make bench   time per dispatch and combine, against a copy and against gloo'
	@echo 'make lib     build python/moewire/libmoewire.so'
	@echo 'make wheel   build the release wheel into wheels/dist, and audit it'
	@echo 'make kernels compile the CUDA kernels for a release (no GPU needed)'
	@echo 'make gpu-test, make gpu-bench   on a machine with a GPU, each in ten minutes'
	@echo 'make generate  write the files that are made of others, after a change of core/ep/protocol,'
	@echo '               of core/limits, of a header of the CUDA kernels or of capi/include'
	@echo 'make venv    only install what the others need, into $(VENV)'
	@echo 'make clean   remove what was built'

demo:
	@$(PYTHON) .ci/steps.py --quiet venv install
	@$(VENV)/bin/moewire demo

demo-store: lib
	@$(PYTHON) examples/store_restart.py

check test:
	@$(PYTHON) .ci/steps.py $@

test-all:
	@$(PYTHON) .ci/steps.py test rest

test-rest test-long:
	@$(PYTHON) .ci/steps.py $(@:test-%=%)

lint:
	@$(PYTHON) .ci/steps.py lint

wheel:
	@$(PYTHON) .ci/steps.py venv kernels wheel

kernels:
	@$(PYTHON) .ci/steps.py --quiet venv kernels

bench:
	@$(PYTHON) .ci/steps.py --quiet venv install
	@$(VENV)/bin/python tests/bench --tables main

gpu-test gpu-bench:
	@$(PYTHON) .ci/gpu.py $(@:gpu-%=%)

venv:
	@$(PYTHON) .ci/steps.py venv

# Quick, and without Python packages: what `pip install -e .` builds.
lib:
	@$(PYTHON) wheels/build_library.py

# Constants of the CUDA kernels, their structs in Go, the ABI in Python.
generate:
	go run ./core/ep/protocol/generate .

format: venv
	gofmt -w $$(git ls-files -co --exclude-standard '*.go')
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Pins the newest versions that tests/requirements.in, those of the engines and of the build allow.
PIN = $(VENV)/bin/uv pip compile --upgrade --universal --python-version 3.11 --no-annotate \
	--generate-hashes --custom-compile-command 'make lock'
lock: venv
	$(PIN) tests/requirements.in -o tests/requirements.txt
	for engine in deep_ep kubernetes ray sglang; do \
		$(PIN) --no-deps tests/integrations/$$engine-requirements.in \
			-o tests/integrations/$$engine-requirements.txt || exit; \
	done
	$(PIN) --override tests/integrations/vllm-overrides.txt \
		tests/integrations/vllm-requirements.in -o tests/integrations/vllm-requirements.txt
	$(PIN) --python-version 3.10 -c tests/requirements.txt wheels/build-constraints.in \
		-o wheels/build-constraints.txt

clean:
	rm -rf .venv wheels/dist build dist .mypy_cache .pytest_cache .ruff_cache
	rm -f python/moewire/libmoewire.so
	find . -name __pycache__ -prune -exec rm -rf {} +
