# Two commands are enough: `make demo` and `make test`. Everything here calls scripts/ and CMake; nothing happens twice.
#
#   CXX=…                  another compiler than the GCC that is found
#   TORCH_DIR=…            another libtorch (a `torch` folder); see scripts/setup.sh for more
#   FUZZ_SECONDS=…         for fuzz: how long each fuzzer runs (default 60)
#   PYTHON=…               for wheel: another Python than that of scripts/interop.sh
#   PRESET=…               for build, demo, bench, package and wheel: a preset of CMakePresets.json. Without it build, demo and bench choose
#                          cuda where an NVIDIA GPU, nvcc and a CUDA libtorch are found, and release elsewhere
#   MEGALITH_CPU_ONLY=1    as on a machine without a GPU: no CUDA libraries are fetched, and the preset is release

SHELL := /bin/bash
PRESET ?=
CHOOSE = preset=$$(scripts/choose_preset.sh $(PRESET))
# make's own default (`c++`, `g++`) is not a choice of the user's.
ifneq ($(origin CXX),default)
export CXX
endif
export TORCH_DIR

# GCC 12's thread sanitizer does not start under a kernel that randomises more address bits than it knows.
NO_ASLR = $(shell setarch -R true 2>/dev/null && echo setarch -R)
# Sanitizer runs leave out what tests no code of ours in memory: packages, repository checks, long runs.
QUICK := -LE '^long$$'
SANITIZED := -LE '^(long|package|tree)$$'

.DEFAULT_GOAL := build
.NOTPARALLEL:
.PHONY: help setup setup-all build demo test test-interop test-all test-release-all test-asan test-tsan test-clang lint \
        check-headers check-arm64 fuzz format docs bench package wheel clean distclean

help:          ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## */  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

setup:         ## system packages, libtorch, tools; does nothing when they are there
	@scripts/setup.sh

setup-all:
	@scripts/setup.sh --all

build: setup   ## build/release/bin/megalith with tests and benchmarks; on a machine with an NVIDIA GPU build/cuda/bin/megalith
	@$(CHOOSE) && scripts/build.sh $$preset

demo: setup    ## the main job: a small model learns from Shakespeare's plays on four processes; see build/demo
	@$(CHOOSE) && scripts/build.sh $$preset megalith && scripts/demo.sh build/$$preset/bin/megalith build/demo

test: setup    ## GCC release and every test but the long ones
	@scripts/build.sh release
	@scripts/run_tests.sh build/release $(QUICK)

test-interop: setup ## our files opened in transformers, peft, megatron-core and tensorboard, and the Python package; fetches them into .deps
	@scripts/build.sh release
	@scripts/interop.sh build/release
	@scripts/wheel.sh release --test

test-all: test-asan test-tsan test-clang lint check-headers fuzz test-release-all test-interop ## test, sanitizers, Clang, clang-tidy, headers, fuzzers, long tests, other programs

test-release-all: setup-all
	@scripts/build.sh release
	@scripts/run_tests.sh build/release

test-asan: setup-all ## address and undefined-behaviour sanitizers
	@scripts/build.sh asan
	@OMP_NUM_THREADS=1 scripts/run_tests.sh build/asan $(SANITIZED)

test-tsan: setup-all ## thread sanitizer
	@$(NO_ASLR) scripts/build.sh tsan
	@OMP_NUM_THREADS=1 $(NO_ASLR) scripts/run_tests.sh build/tsan $(SANITIZED)

test-clang: setup-all ## Clang 16 or newer, warnings as errors
	@scripts/build.sh clang
	@scripts/run_tests.sh build/clang $(QUICK)

lint: setup-all ## clang-tidy over src
	@scripts/build.sh tidy --configure-only
	@scripts/lint.sh build/tidy

check-headers: setup-all ## every header of src compiles on its own
	@scripts/build.sh edit --configure-only
	@scripts/check_headers.sh build/edit

check-arm64:   ## the ordinary suite on an arm64 machine; elsewhere cross-compiled, and its main parts run in qemu-user
	@scripts/check_arch.sh aarch64

fuzz: setup-all ## libFuzzer on what reads other people's files, FUZZ_SECONDS each
	@scripts/build.sh fuzz fuzzers
	@scripts/fuzz.sh build/fuzz

format: setup  ## clang-format over src, tests, bench, fuzz and python, in place
	@scripts/format.sh --fix

docs: setup    ## the pages that are made from code: docs/options.md, docs/python-api.md, and the stub for Python
	@scripts/python_api.py
	@scripts/build.sh $(or $(PRESET),release) config_test
	@MEGALITH_UPDATE_DOCS=1 ctest --test-dir build/$(or $(PRESET),release) -R '^config\.' --output-on-failure >build/docs.log || \
	  { cat build/docs.log; exit 1; }

bench: setup   ## every benchmark, one JSON line a case
	@$(CHOOSE) && scripts/build.sh $$preset && \
	  for bench in build/$$preset/bin/*_bench; do [ ! -x "$$bench" ] || "$$bench" || exit 1; done

# A package runs on other machines too, so it is for the CPU unless PRESET=cuda asks otherwise, and then for more than this GPU.
package: setup ## dist/megalith-VERSION-linux-ARCH.tar.gz: the binary and every library it needs
	@MEGALITH_CUDA_ARCHITECTURES="$${MEGALITH_CUDA_ARCHITECTURES:-80;90;100}" scripts/build.sh $(or $(PRESET),release) megalith
	@scripts/package.sh build/$(or $(PRESET),release) dist

wheel: setup   ## dist/megalith-VERSION-….whl: the program and the library for Python, for the torch of the build
	@$(CHOOSE) && scripts/wheel.sh $$preset

clean:         ## remove build/ and dist/
	rm -rf build dist

distclean: clean ## remove the fetched libtorch and tools too
	rm -rf .deps
