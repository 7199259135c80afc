# What a person types; the build itself is CMake's. Each target first installs what it lacks (.ci/setup, silent when nothing is missing).

MINUTES ?= 10
export WERROR := $(if $(CI),ON,OFF)
FORMATTED = $(shell find graph passes exec offload frontend tests -name '*.h' -o -name '*.cpp')

.PHONY: build build-bench demo test conformance zoo sanitize fuzz races soak cuda bench compare format check-format clean

build:  # build/ort-train
	@.ci/configure release
	@cmake --build build --target ort-train

demo: build  # trains a small character model on Shakespeare within 200 MB of memory, then lets it write
	build/ort-train models/char-gpt.onnx --data models/tinyshakespeare.txt --task causal-lm --budget 200MB --batch-size 16 --seq-length 64 \
	  --max-steps 1500 --learning-rate 5e-3 --warmup-steps 100 --eval-steps 500 --sample-length 400 --output-dir out/demo --overwrite

test:  # everything, and ONNX Runtime as the judge of what comes out
	@.ci/configure release
	@cmake --build build
	@.ci/test build judge

conformance:  # runs the standard's tests of its operators and writes what comes out to docs/conformance.md
	@.ci/configure release
	@cmake --build build --target ort-train-conformance
	@PYTHONDONTWRITEBYTECODE=1 $$(.ci/python) tests/conformance.py

zoo:  # ten architectures of all kinds, exported by PyTorch and trained beside it; models/zoo.py has the rest, soak runs all
	@.ci/configure release
	@cmake --build build --target ort-train
	@python=$$(.ci/python models/requirements-zoo.txt) || { echo "zoo: SKIPPED, PyTorch can't be installed here"; exit 0; }; \
	  PYTHONDONTWRITEBYTECODE=1 $$python models/zoo.py --some && PYTHONDONTWRITEBYTECODE=1 $$python -W ignore models/lora.py && \
	  PYTHONDONTWRITEBYTECODE=1 $$python -W ignore models/control.py

sanitize:  # what parses and allocates, under AddressSanitizer and UndefinedBehaviorSanitizer (the preset names what `soak` does)
	@.ci/configure sanitize
	@cmake --build build-sanitize
	@.ci/test build-sanitize
	@.ci/fuzz build-sanitize 15

fuzz:  # the fuzzers for MINUTES in all, as many at a time as there are cores; what they learn stays in build-sanitize/corpus and is gone on with
	@.ci/configure sanitize
	@cmake --build build-sanitize --target ort-train-fuzz
	@.ci/fuzz build-sanitize $$(($(MINUTES) * 60 * $$(nproc) / 8)) build-sanitize/corpus

races:  # what shares memory among threads, under ThreadSanitizer
	@.ci/configure release
	@cmake --build build --target ort-train-races
	@.ci/races build

soak:  # MINUTES of what continuous integration has no time for; goes on where the last one was
	@.ci/configure release
	@cmake --build build
	@.ci/configure sanitize -B build-soak -DORT_TRAIN_SKIP=
	@cmake --build build-soak
	@nice .ci/soak $(MINUTES)

cuda:  # the program with its CUDA device, through nvcc, for ARCHITECTURES (90-real, say), and what a first run on a GPU must find; without a GPU that is skipped, visibly
	@.ci/configure release -B build-cuda -DORT_TRAIN_CUDA=ON $(if $(ARCHITECTURES),'-DCMAKE_CUDA_ARCHITECTURES=$(ARCHITECTURES)')
	@bash -o pipefail -c 'cmake --build build-cuda --target ort-train ort-train-gpu-tests -- -k 0 2>&1 | tee -a build-cuda/build.log'
	@.ci/spills build-cuda/build.log
	@PYTHONDONTWRITEBYTECODE=1 tests/gpu/bring_up --build build-cuda --out build-cuda/bring_up

bench: build-bench  # each benchmark prints its lines of JSON
	@for program in build/bench-*; do $$program || exit 1; done

build-bench:  # the program and the benchmarks, which tests/bench/*.py run
	@.ci/setup bench
	@.ci/configure release
	@cmake --build build --target ort-train benchmarks

compare:  # this working tree against the revision OLD, in turns for MINUTES, or ROUNDS; JOBS=gpt2,cnn are some of the jobs
	@test -n "$(OLD)" || { echo "compare: say with what: make compare OLD=main" >&2; exit 2; }
	@$(MAKE) --no-print-directory build-bench
	@python3 tests/bench/compare.py "$(OLD)" --minutes $(MINUTES) $(ROUNDS:%=--rounds %) $(JOBS:%=--jobs %)

format:
	@clang-format -i $(FORMATTED)

check-format:
	@bad=0; for file in $(FORMATTED); do \
	  clang-format $$file | diff -u --label $$file --label "after make format" $$file - || bad=1; done; exit $$bad

clean:
	rm -rf build build-sanitize build-soak build-cuda build-compare
