# All targets run on Linux without a GPU: `scripts/setup` installs two OpenCL drivers for CPUs.

HOST = $(shell rustc -vV | sed -n 's/^host: //p')
DRIVERS = $(shell basename -s .icd target/opencl/vendors/*.icd | paste -sd , -)
comma = ,

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: setup ## run the examples `pipeline` and `film_look`, on a GPU if there is one
	cargo build --profile demo --package pipeline --package film_look
	scripts/env --all-drivers cargo run --quiet --profile demo --package pipeline
	scripts/env --all-drivers cargo run --quiet --profile demo --package film_look

test: setup services ## run all suites, on both drivers
	scripts/test

# The two tiers. The first checks every change; the goal is 25 minutes on two cores. The second takes hours: before a release,
# and each night. It goes on where it was interrupted.
fast: ## run the checks of every change
	DRMSHIM_DEVICES=$${DRMSHIM_DEVICES:-tgl} scripts/checks setup fmt layers language deny clippy docs test counts test-level-zero \
		sanitize changed

full: ## run all checks, with each test under each executor, and samples of the soaks
	KILN_TEST_TIER=full scripts/checks --resume setup services fmt layers language deny clippy docs api features \
		platforms msrv packages versions test counts test-ui test-processors test-level-zero test-races loom sanitize examples \
		soak-samples
	scripts/check-changed --record full loom test-races test-ui

counts: rust ## check that there are as many tests as ever
	scripts/check-tests all

changed: rust ## run the slow checks of the folders that changed since these checks passed
	scripts/check-changed

soak-samples: setup ## run a few cases of each soak
	$(MAKE) --no-print-directory soak-graphs GRAPHS=500
	$(MAKE) --no-print-directory soak-processes BUILDS=60
	$(MAKE) --no-print-directory soak-fusion CHAINS=500
	$(MAKE) --no-print-directory soak-checked PROGRAMS=5
	$(MAKE) --no-print-directory soak-verdicts VERDICTS=20000
	$(MAKE) --no-print-directory soak-instructions INSTRUCTIONS=400
	$(MAKE) --no-print-directory soak-broken SECONDS_EACH=30
	$(MAKE) --no-print-directory soak-services SERVICE_SECONDS=60
	$(MAKE) --no-print-directory soak-foreign LAUNCHES=1 FILES=4 ONLY=piglit/,darktable/,silx/,pyfai/,gputools/
	$(MAKE) --no-print-directory soak-cold COLD_RUNS=10
	$(MAKE) --no-print-directory soak-memory MEMORY_SECONDS=60
	$(MAKE) --no-print-directory soak-internalize SCOPES=200

test-ui: rust ## compile programs that must not compile, and compare the messages
	cargo test --all-features --test interface -- --ignored compile_fail

test-level-zero: setup ## run tests on Level Zero, where KILN_GPU_RUNNER names a command that imitates a GPU
	scripts/test-level-zero

test-races: setup ## run fused and checked kernels on Oclgrind, which reports data races and accesses out of bounds
	scripts/test-races

test-processors: setup services ## run the tests with the drivers told to target other processors
	scripts/test-processors

SCOPES = 4000

soak-internalize: setup ## fuse SCOPES scopes of each kind, on both drivers, and require that every intermediate buffer is internalized
	KILN_TEST_SCOPES=$(SCOPES) scripts/test --test queue -- internalized

# Each chain is fused in all forms that its launches allow. A chain whose results differ is printed with the
# settings that repeat it.
CHAINS = 10000

soak-fusion: setup ## fuse CHAINS random chains of stencils, rows and reductions in all forms, on both drivers, and compare the bytes
	KILN_FUSION_CASES=$(CHAINS) scripts/test --release --test fusion -- random:: --nocapture

# Each verdict is compared with what an interpreter of SPIR-V does, also with images and samplers.
VERDICTS = 1000000

soak-verdicts: rust ## check VERDICTS launches of random kernels, and compare each verdict with an interpreter
	KILN_BOUNDS_CASES=$(VERDICTS) cargo test --release --package kiln-compiler --lib -- bounds::tests::random

# PROGRAMS programs from each of two seeds, with 8 random kernels, which are launched CHECKED_LAUNCHES times: 50,000 launches on
# each driver.
# The launches of a kernel have random lengths, values and places of pages.
PROGRAMS = 196
CHECKED_LAUNCHES = 16

soak-checked: setup ## check PROGRAMS programs of random kernels with buffers that are too short, between guard pages, on both drivers
	KILN_CHECKED_CASES=$(PROGRAMS) KILN_CHECKED_LAUNCHES=$(CHECKED_LAUNCHES) \
		scripts/test --release --test checked -- guard_pages:: --nocapture

# Maximum number of cases on each driver, of 3,016: instructions with a decoration, a width and a place in the kernel.
INSTRUCTIONS = 100000

soak-instructions: setup ## compare verdicts on launches of each instruction that is modelled with the results of both drivers
	KILN_TEST_TIER=full KILN_INSTRUCTION_CASES=$(INSTRUCTIONS) scripts/test --release --test checked -- \
		instructions:: --nocapture

# Each kernel is launched so many times on each driver, for all programs or FILES of each source, or for those whose source
# and name contain one of the words in ONLY.
LAUNCHES = 4
FILES =
ONLY =

soak-foreign: setup kernels ## launch kernels that others wrote as checked ones, LAUNCHES times each, between guard pages, on both drivers
	KILN_TEST_TIER=full KILN_TEST_LAUNCHES=$(LAUNCHES) $(if $(FILES),KILN_TEST_FILES=$(FILES)) $(if $(ONLY),KILN_TEST_ONLY=$(ONLY)) \
		scripts/test --test checked -- --ignored --nocapture foreign::kernels_of_others

# Each driver has its own graphs, which are replayed with changing buffers and values.
GRAPHS = 10000

soak-graphs: setup ## replay GRAPHS random graphs, plain and with fused launches, on both drivers, and compare them with their commands
	KILN_GRAPH_CASES=$(GRAPHS) scripts/test --release --test graphs -- random::

# Each driver compiles this number of programs.
BUILDS = 1000

soak-processes: setup ## compile BUILDS programs in processes that are killed and stopped at random, on both drivers
	KILN_TEST_MODULES=$(BUILDS) scripts/test --test processes -- killed_and_stopped

# Each driver is used for this number of seconds.
SECONDS_EACH = 300

soak-broken: setup ## break compilers, the file limit and the memory at random for SECONDS_EACH on each driver: no failure is silent
	KILN_TEST_TIER=full KILN_SOAK_SECONDS=$(SECONDS_EACH) scripts/test --test processes -- broken:: --nocapture

# Each driver is used by a service with faults for this number of seconds, and before for a quarter of it by one without,
# whose memory is compared.
SERVICE_SECONDS = 600

soak-services: setup services ## keep a service under load for SERVICE_SECONDS on each driver while its disk, files, Redis and helpers fail: no hang, no wrong result
	KILN_TEST_TIER=full KILN_SOAK_SECONDS=$(SERVICE_SECONDS) scripts/test --test remote -- soak:: --nocapture

# Each driver is used for this number of seconds by a service under a memory limit, and then for as many loads by a program
# of the driver's calls.
MEMORY_SECONDS = 720

soak-memory: setup ## build new programs under a memory limit for MEMORY_SECONDS on each driver: the process grows no more than the driver's calls alone
	KILN_SOAK_SECONDS=$(MEMORY_SECONDS) scripts/test --test builds -- memory_soak:: --nocapture

# Each run is a process with a cold store and cold drivers: `make soak-cold COLD_RUNS=500`.
COLD_RUNS = 100

soak-cold: setup ## launch and store fused kernels on a cold machine, again and again
	KILN_COLD_RUNS=$(COLD_RUNS) scripts/test --test store -- cold_runs_end_well

bench: setup services ## run the benchmarks, with the same drivers
	scripts/env cargo bench --all-features

compile-cost: rust ## measure what Kiln costs to compile, beside opencl3, cudarc and wgpu
	scripts/compile-cost

lint: fmt clippy docs layers language ## check formatting, lints, docs, layers and how comments begin

packages: rust ## pack the crates, build each from its package, and run an application that depends on them
	scripts/check-packages

layers: ## check that each module at the top of a crate depends only on modules below it
	scripts/check-layers

language: ## check that comments name their subject
	scripts/check-language

# The cfg is not named `loom`, because several dependencies react to a plain `--cfg loom` and no longer compile.
loom: rust ## check the concurrent parts under every interleaving
	RUSTFLAGS="--cfg kiln_loom" \
		cargo test --manifest-path tests/loom/Cargo.toml --target-dir target/loom

# Address Sanitizer is still unstable in rustc. RUSTC_BOOTSTRAP lets the stable compiler use it;
# `--target` keeps it out of build scripts and procedural macros. Drivers that `make setup` installed are
# tested, too. They have signal stacks of their own, and leak a little memory.
sanitize: rust ## run the soundness tests under Address and Leak Sanitizer
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address \
		ASAN_OPTIONS=use_sigaltstack=0:allocator_may_return_null=1 \
		LSAN_OPTIONS=suppressions=$(CURDIR)/scripts/leaks-of-drivers.txt:print_suppressions=0 \
		$(if $(wildcard target/opencl/vendors/*.icd),KILN_REQUIRE_DEVICES=$(DRIVERS) scripts/env) \
		scripts/test-sanitized $(HOST)

# cargo-fuzz drives libFuzzer, whose instrumentation is unstable in rustc, too. Its findings are kept
# below `fuzz/`. SECONDS is the time of each target. For a longer run: `make fuzz SECONDS=3600`.
SECONDS = 60

# Inputs that are short are hardly ever a module, and libFuzzer keeps none that covers nothing new. It starts from a
# long file.
SEEDS = -seed_inputs=Cargo.lock

fuzz: rust ## fuzz the code that reads stored and sent programs, reads and translates SPIR-V modules, and checks and fuses kernels
	@command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	RUSTC_BOOTSTRAP=1 cargo fuzz run entry -- -max_total_time=$(SECONDS) -max_len=4096
	RUSTC_BOOTSTRAP=1 cargo fuzz run object -- -max_total_time=$(SECONDS) -max_len=4096
	RUSTC_BOOTSTRAP=1 cargo fuzz run module -- -max_total_time=$(SECONDS) -max_len=4096 -timeout=20 $(SEEDS)
	RUSTC_BOOTSTRAP=1 cargo fuzz run emit -- -max_total_time=$(SECONDS) -max_len=4096 -timeout=20 $(SEEDS)
	RUSTC_BOOTSTRAP=1 cargo fuzz run bounds -- -max_total_time=$(SECONDS) -max_len=4096 -timeout=20 $(SEEDS)
	RUSTC_BOOTSTRAP=1 cargo fuzz run fuse -- -max_total_time=$(SECONDS) -max_len=4096 -timeout=20 $(SEEDS)

features: rust ## lint with each feature alone, and the tests with the default ones
	scripts/check-features

.PHONY: api
api: rust ## compare the public interface with its list and with the last release, if the tools are installed
	scripts/check-api

.PHONY: deny
deny: rust ## check the lock files, and licences, versions and sources of the dependencies, if cargo-deny is installed
	scripts/check-deny

platforms: rust ## lint for Windows, macOS and ARM, as far as rustup has their standard libraries
	scripts/check-platforms

msrv: rust ## compile with the oldest Rust that is supported
	scripts/check-msrv

versions: setup ## run old versions of Kiln and this one on the same store, one after the other and at the same time
	scripts/check-versions

examples: setup ## compile the examples, and run those that use other packages and libraries on both drivers
	cargo build --workspace --examples --bins --all-features
	cargo build --package pipeline --package film_look --package tokio_service
	cargo build --manifest-path examples/fat_library/Cargo.toml --target-dir target/fat-library --workspace --locked
	for driver in $(subst $(comma), ,$(DRIVERS)); do \
		KILN_DEVICE=$$driver scripts/env target/fat-library/debug/application || exit; \
		KILN_DEVICE=$$driver scripts/env target/debug/examples/clblast || exit; \
	done

setup: rust ## install the OpenCL drivers (done by the targets that need them)
	@scripts/setup

services: ## install the services for the tests of a fleet (done by `make test`)
	@scripts/setup-services

kernels: ## download kernels that others wrote (done by `make soak-foreign`)
	@scripts/fetch-kernels

fmt: rust
	cargo fmt --all --check

clippy: rust
	cargo clippy --workspace --all-targets --all-features -- -D warnings

docs: rust
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features

rust:
	@command -v cargo >/dev/null || { \
		echo "Kiln's checks need Rust 1.91 or newer: https://rustup.rs, or your system's packages (Debian: apt-get install cargo) if they are that new" >&2; \
		exit 1; }

# Each run is a process whose threads use a device while it ends. The runs cover five kinds of work, three
# ways to end, and every driver. For more than 200 runs of each driver: `make soak-exit RUNS=20`.
RUNS = 14

soak-exit: setup ## end processes whose threads use devices, again and again
	KILN_SOAK_RUNS=$(RUNS) KILN_REQUIRE_DEVICES=$(DRIVERS) \
		scripts/env cargo test --all-features --test processes -- --exact end::soak --ignored --nocapture

.PHONY: packages help demo fast full counts changed soak-samples test test-ui soak-graphs soak-processes soak-internalize soak-fusion soak-checked soak-verdicts soak-instructions soak-cold soak-memory test-level-zero test-races test-processors bench compile-cost lint loom sanitize fuzz features platforms msrv versions examples setup services soak-exit fmt clippy docs layers language rust soak-broken soak-services soak-foreign kernels
