# finback: every step a contributor or CI takes. `make run` and `make test` work on a fresh clone with Python >= 3.11,
# g++ and make; everything else is installed into .venv. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ORACLE := .venv-oracle
PEER := .venv-llama
PIP_FLAGS := --quiet --disable-pip-version-check --no-input

NATIVE := $(shell find native -name '*.cc' -o -name '*.h' -o -name '*.inl') CMakeLists.txt pyproject.toml
BUILT := $(VENV)/.built
DEV := $(VENV)/.dev

.PHONY: help run build driver test test-isa test-slow test-clients test-oracle lint types layers symbols instructions format wheel \
        bench-llama bench-transformers clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

run: build  ## build, then read text written by the embedded model
	@$(BIN)/finback run -p "Tell me a story about a fox and a silver bell." --seed 1 --stats

build: $(BUILT)  ## virtual environment, native core, editable install

$(VENV)/.env: requirements/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "finback needs Python >= 3.11, this is %s; use make PYTHON=python3.12" % sys.version.split()[0])'
	@command -v $${CXX:-g++} >/dev/null || { echo "finback needs a C++20 compiler (g++ or clang++); install g++ or set CXX"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) -r requirements/build.txt
	@touch $@

$(BUILT): $(VENV)/.env $(NATIVE)
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-build-isolation -c requirements/run.txt -C cmake.define.FINBACK_TESTS=ON -e .
	@touch $@

$(DEV): $(BUILT) requirements/dev.txt
	$(BIN)/python -m pip install $(PIP_FLAGS) -r requirements/dev.txt
	@touch $@

driver: $(BUILT)  ## the C++ programs that make test runs
	@$(BIN)/cmake --build $$(dirname $$(find build -maxdepth 2 -name CMakeCache.txt | head -1)) \
	  --target finback_tests kernel_digest kernel_count >/dev/null

test: $(DEV) lint types layers symbols driver  ## everything that gates a change
	$(BIN)/python -m pytest -m "not slow" --ignore tests/oracle

test-isa: $(DEV)  ## minutes: the same bits from every instruction set, other processors under qemu-user
	$(BIN)/python -m tests.isa

test-slow: $(DEV)  ## minutes: sanitizers, fuzz, allocation interposer, big shapes
	$(BIN)/python -m pytest -m slow --ignore tests/oracle --timeout 3600

test-clients: $(DEV)  ## minutes: real clients against a server with a scripted engine
	$(BIN)/python -m tests.clients

test-oracle: $(ORACLE)/.built  ## recompute oracle values live with torch and transformers
	OMP_NUM_THREADS=1 $(ORACLE)/bin/python -m pytest -m oracle --timeout 1800 tests/oracle

$(ORACLE)/.built: requirements/oracle.txt requirements/dev.txt $(NATIVE)
	$(PYTHON) -m venv $(ORACLE)
	$(ORACLE)/bin/python -m pip install $(PIP_FLAGS) -r requirements/build.txt -r requirements/oracle.txt
	$(ORACLE)/bin/python -m pip install $(PIP_FLAGS) --no-build-isolation -c requirements/run.txt -e .
	$(ORACLE)/bin/python -m pip install $(PIP_FLAGS) pytest pytest-timeout hypothesis -c requirements/dev.txt
	@touch $@

lint: $(DEV)  ## ruff, and the format of C++
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/clang-format --dry-run --Werror $$(find native -name '*.cc' -o -name '*.h' -o -name '*.inl')

format: $(DEV)  ## rewrite C++ to the format lint checks
	$(BIN)/clang-format -i $$(find native -name '*.cc' -o -name '*.h' -o -name '*.inl')

types: $(DEV)  ## mypy, strict
	$(BIN)/mypy

layers: $(DEV)  ## direction of dependencies
	$(BIN)/lint-imports

symbols: $(BUILT)  ## instruction-set objects share no symbol with the rest
	sh native/check_symbols.sh $$(find build -name 'isa_*.o')

instructions: $(DEV) driver  ## rewrite the table of instruction counts that make test compares with
	$(BIN)/python -m tests.kernels.instructions

wheel: $(VENV)/.env  ## a wheel in dist/
	$(BIN)/python -m pip wheel $(PIP_FLAGS) --no-deps --no-build-isolation -w dist .

bench-llama: $(BUILT) $(PEER)/.built  ## tokens/s against llama.cpp, interleaved: MODEL=file.gguf, ARGS="--threads 2,1"
	@test -n "$(MODEL)" || { echo "bench-llama needs a GGUF file that llama.cpp runs too; give MODEL=file.gguf"; exit 2; }
	$(BIN)/python benchmarks/versus.py llama.cpp -m "$(MODEL)" --peer-python $(PEER)/bin/python $(ARGS)

$(PEER)/.built: requirements/llama.txt
	$(PYTHON) -m venv $(PEER)
	CMAKE_ARGS="-DGGML_NATIVE=ON" $(PEER)/bin/python -m pip install $(PIP_FLAGS) --no-binary llama-cpp-python -r $<
	@touch $@

bench-transformers: $(BUILT) $(ORACLE)/.built  ## tokens/s against transformers eager, interleaved: ARGS="--threads 2,1"
	$(BIN)/python benchmarks/versus.py transformers --peer-python $(ORACLE)/bin/python $(ARGS)

clean:  ## everything that was made here
	rm -rf $(VENV) $(ORACLE) $(PEER) build dist
