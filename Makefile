# glm: the checkpoint-centric training suite. `make help` lists the targets, `make config` shows
# what was found on this machine.

# ---- knobs ------------------------------------------------------------------------------------
CONFIG  ?= release#      release or asan; each has a build folder of its own
PREFIX  ?= /usr/local#   where install puts things, behind DESTDIR
DESTDIR ?=
JOBS    ?= $(shell nproc)
PYTHON  ?= python3#      makes the venv of tests, peers and parity runs
ifeq ($(origin CC),default)
CC := gcc
endif

override CONFIG := $(strip $(CONFIG))
override PREFIX := $(strip $(PREFIX))
override PYTHON := $(strip $(PYTHON))
BUILD   := build/$(CONFIG)
VERSION := $(shell sed -n 's/^.define GLM_VERSION "\(.*\)"/\1/p' kernels/base/version.h)
ifeq ($(filter release asan,$(CONFIG)),)
$(error CONFIG is release or asan, not '$(CONFIG)')
endif

# Debian packages: to build and test; peers of `make bench`; more for `make lint`, `make test-long`.
DEBS      := build-essential pkg-config libhdf5-dev hdf5-tools libjansson-dev libzstd-dev libssl-dev \
             libyaml-dev libblis-serial-dev libcurl4-openssl-dev libcriterion-dev mandoc python3-venv python3-h5py \
             clang libclang-rt-14-dev llvm strace openssl
DEBS_BENCH := libopenblas0-pthread
DEBS_MORE := clang-format cppcheck shellcheck valgrind bash-completion

# ---- what this machine has --------------------------------------------------------------------
PKGS       := jansson libzstd libcrypto libcurl hdf5 yaml-0.1
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes \
           -Wmissing-prototypes -Wvla -Werror
CFLAGS_release := -O2 -g
CFLAGS_asan    := -O1 -g1 -DSIMD_BASELINE -fsanitize=address,undefined -fno-omit-frame-pointer \
                  -fno-sanitize-recover=undefined
# -ffp-contract=off: a fused multiply-add would give other bits on other machines.
CFLAGS  := -std=c11 -D_GNU_SOURCE -fPIC -ffp-contract=off -pthread $(WARN) $(CFLAGS_$(CONFIG)) -I. \
           $(PKG_CFLAGS) $(EXTRA_CFLAGS)
LDFLAGS := -pthread -Wl,--as-needed $(filter -fsanitize%,$(CFLAGS_$(CONFIG))) $(EXTRA_LDFLAGS)
LIBS    := $(PKG_LIBS) -lblis -ldl -lm
# A hundred programs of the tests: gold links one in a quarter of the time.
FAST_LINK := $(if $(shell command -v ld.gold),-fuse-ld=gold)

# CUDA: without nvcc nothing of it is built, and nothing else notices. Kernels are made for Hopper and
# Blackwell (sm_90a, sm_100a); a change of CUDA_ARCH needs a clean build.
NVCC       ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
override NVCC := $(NVCC)
CUDA_HOME  ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_ARCH  ?= 90a 100a

# ---- what there is to build -------------------------------------------------------------------
LIB_SRC  := $(wildcard kernels/base/*.c kernels/*.c ckpt/*.c convert/*.c train/*.c verify/*.c)
# Operations on the CPU: a file that includes mode.h is compiled for each element type.
CPU_SRC  := $(wildcard kernels/cpu/*.c)
MODE_SRC := $(shell grep -lE '"kernels/cpu/(mode|lanes|columns).h"' $(CPU_SRC))
# The GPU backend is a library of its own that programs open when they need it (kernels/kernels.h).
CUDA_SRC := $(wildcard kernels/cuda/*.cu)
CUDA_C   := $(wildcard kernels/cuda/*.c)
# Of kernels/base, what the library takes into itself: it needs no library of its own.
CUDA_BASE := kernels/base/error.c kernels/base/dtype.c
CLI_SRC  := $(filter-out cli/glm-%,$(wildcard cli/*.c))
PROG_SRC := $(wildcard cli/glm-*.c)
TEST_SRC := $(wildcard tests/*/test_*.c)
SUP_SRC  := $(filter-out tests/support/main_%,$(wildcard tests/support/*.c))
TOOL_SRC := $(wildcard tests/support/main_*.c)

obj = $(1:%.c=$(BUILD)/%.o)
CPU_OBJ  := $(call obj,$(filter-out $(MODE_SRC),$(CPU_SRC))) \
            $(foreach m,f32 f64 bf16,$(MODE_SRC:%.c=$(BUILD)/%.$m.o))
LIB_OBJ  := $(call obj,$(LIB_SRC)) $(CPU_OBJ)
LIB      := $(BUILD)/libglm.a
PROGS    := $(PROG_SRC:cli/%.c=$(BUILD)/bin/%)
TESTS    := $(TEST_SRC:%.c=$(BUILD)/%)
BENCH_SRC := $(wildcard tests/bench/bench_*.c)
# Programs that compare a GPU backend with the CPU's; they need neither a GPU nor nvcc to be built.
GPU_OBJ  := $(call obj,$(filter-out tests/gpu/gpu_%,$(wildcard tests/gpu/*.c)))
GPU_SRC  := $(wildcard tests/gpu/gpu_*.c)
TOOLS    := $(TOOL_SRC:tests/support/main_%.c=$(BUILD)/tools/%) \
            $(BENCH_SRC:tests/bench/%.c=$(BUILD)/tools/%) \
            $(GPU_SRC:tests/gpu/%.c=$(BUILD)/tools/%)

ifneq ($(and $(NVCC),$(filter release,$(CONFIG))),)
CUDA_LIB := $(addprefix $(BUILD)/lib/libglm-cuda,.so -test.so -plain.so)
endif

# The zstd filter for other HDF5 programs. It calls nothing of libhdf5 and must not be linked to it.
PLUGIN := $(BUILD)/plugin/libh5zstd.so

# Stands between a program and its files, for the fault sweeps (tests/fault/fault.c).
FAULT := $(BUILD)/libfault.so $(BUILD)/libmemory.so

all: ## build the commands, the library and the HDF5 plugin (the default)
all: $(PROGS) $(TOOLS) $(PLUGIN) $(CUDA_LIB)

$(PLUGIN): plugin/h5zstd.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -shared $(LDFLAGS) $< -lzstd -o $@
$(BUILD)/tests/ckpt/test_plugin: | $(PLUGIN)

NVCCFLAGS := -std=c++17 -O3 -lineinfo -Xcompiler -fPIC,-Wall,-Wextra -Werror all-warnings -I. \
             $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$a,code=sm_$a)
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MP -c $< -o $@
$(CUDA_C:%.c=$(BUILD)/%.o): CFLAGS += -isystem $(CUDA_HOME)/include -DCUDA_BUILT_FOR='"$(CUDA_ARCH)"'

$(BUILD)/lib/libglm-cuda.so: $(CUDA_SRC:%.cu=$(BUILD)/%.cu.o) $(CUDA_C:%.c=$(BUILD)/%.o) \
    $(patsubst %.c,$(BUILD)/%.o,$(CUDA_BASE))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -shared -Wl,--exclude-libs,ALL,-z,defs $^ -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/lib \
	    -lcublasLt -lcudart_static -lstdc++ -lrt -ldl -lm -o $@

# What tools on the GPU need beside it.
CUDA_PLAIN := $(BUILD)/tests/gpu/plainlt.cu.o
$(BUILD)/lib/libglm-cuda-plain.so: $(CUDA_PLAIN)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -shared $^ -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/lib -lcublasLt -lcudart_static -lstdc++ \
	    -lrt -ldl -lm -o $@

$(BUILD)/lib/libglm-cuda-test.so: $(filter-out $(CUDA_PLAIN),$(patsubst %.cu,$(BUILD)/%.cu.o,$(wildcard tests/gpu/*.cu)))
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -shared $^ -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/lib -lcudart_static -lstdc++ \
	    -lrt -ldl -lm -o $@

# The same kernels on the CPU, for tests (tests/emu/README.md): fibers instead of a GPU.
EMU_ASAN  ?=
EMU       := build/emulated$(if $(EMU_ASAN),-asan)
EMU_LIB   := $(EMU)/libglm-cuda.so
EMU_FLAGS := -O1 -g -fPIC -fno-strict-aliasing -ffp-contract=off -DCUDA_EMULATED -Itests/emu -I$(EMU)/src -I. \
             $(if $(EMU_ASAN),-fsanitize=address -fno-omit-frame-pointer)
EMU_OBJ   := $(CUDA_SRC:kernels/cuda/%.cu=$(EMU)/%.cu.o) $(CUDA_C:kernels/cuda/%.c=$(EMU)/%.o) \
             $(patsubst tests/emu/%.cpp,$(EMU)/emu/%.o,$(filter-out %/check.cpp,$(wildcard tests/emu/*.cpp))) \
             $(patsubst tests/emu/%.c,$(EMU)/emu/%.o,$(wildcard tests/emu/*.c)) \
             $(patsubst kernels/base/%.c,$(EMU)/base/%.o,$(CUDA_BASE))

emulated: $(EMU_LIB) $(EMU)/emu_check ## the GPU backend on the CPU, for tests; EMU_ASAN=1 under AddressSanitizer

EMU_CUH   := $(patsubst %,$(EMU)/src/%,$(wildcard kernels/cuda/*.cuh))
$(EMU)/src/%: % tests/emu/shared.sed
	@mkdir -p $(@D)
	@(echo '#line 1 "$<"'; sed -E -f tests/emu/shared.sed $<) > $@
# g++ -w: what nvcc accepts without a warning and g++ warns about.
$(EMU)/%.cu.o: $(EMU)/src/kernels/cuda/%.cu | $(EMU_CUH)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -w -Wno-psabi $(EMU_FLAGS) -MMD -MP -c -x c++ $< -o $@
$(EMU)/emu/check.o: tests/emu/check.cpp | $(EMU_CUH)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -w $(EMU_FLAGS) -MMD -MP -c $< -o $@
$(EMU)/emu/%.o: tests/emu/%.cpp
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -Wall -Wextra -Werror $(EMU_FLAGS) -O2 -MMD -MP -c $< -o $@
$(EMU)/emu/%.o: tests/emu/%.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE $(WARN) $(EMU_FLAGS) -O3 -MMD -MP -c $< -o $@
$(EMU)/base/%.o: kernels/base/%.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE $(WARN) $(EMU_FLAGS) -MMD -MP -c $< -o $@
$(EMU)/%.o: kernels/cuda/%.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE $(WARN) $(EMU_FLAGS) -MMD -MP -c $< -o $@

$(EMU)/emu_check: $(EMU)/emu/check.o $(EMU_OBJ)
	$(CXX) $(if $(EMU_ASAN),-fsanitize=address) $^ -lpthread -lm -o $@

$(EMU_LIB): $(EMU_OBJ)
	$(CXX) -shared -Wl,--no-undefined $(if $(EMU_ASAN),-fsanitize=address) $^ -lpthread -lm -o $@

$(BUILD)/libfault.so: $(wildcard tests/fault/*.c tests/fault/*.h)
$(BUILD)/libmemory.so: tests/memory/memory.c
$(FAULT):
	@mkdir -p $(@D)
	$(CC) $(filter-out -fsanitize%,$(CFLAGS)) -fvisibility=hidden -shared $(filter %.c,$^) -o $@

# The loops over elements are written for the vectoriser, which may not select between two
# computed floats where a trap could be observed. The bits are the same at every level.
$(addprefix $(BUILD)/,convert/mxfp8.o convert/fp8block.o convert/cast.o ckpt/packed.o): \
    CFLAGS += $(if $(filter release,$(CONFIG)),-O3 -fno-trapping-math)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

# Loops over elements again; the sums in them are written in a fixed order of lanes.
$(CPU_OBJ): CFLAGS += $(if $(filter release,$(CONFIG)),-O3 -fno-trapping-math -fno-math-errno)
define mode_rule
$(BUILD)/%.$1.o: %.c
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) -DMODE_$2 -MMD -MP -c $$< -o $$@
endef
$(eval $(call mode_rule,f32,F32))
$(eval $(call mode_rule,f64,F64))
$(eval $(call mode_rule,bf16,BF16))

$(LIB): $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/libcli.a: $(call obj,$(CLI_SRC))
	@rm -f $@
	ar rcs $@ $^

# A program takes from it what it needs: the tools do without the test framework.
$(BUILD)/libsupport.a: $(call obj,$(SUP_SRC))
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/bin/%: $(BUILD)/cli/%.o $(BUILD)/libcli.a $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(LIBS) -o $@

$(BUILD)/tools/%: $(BUILD)/tests/support/main_%.o $(BUILD)/libsupport.a $(LIB)
	@mkdir -p $(@D)
	$(CC) $(FAST_LINK) $(LDFLAGS) $^ $(LIBS) -o $@

$(BUILD)/tools/bench_%: $(BUILD)/tests/bench/bench_%.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(FAST_LINK) $(LDFLAGS) $^ $(LIBS) -o $@

$(BUILD)/tools/gpu_%: $(BUILD)/tests/gpu/gpu_%.o $(GPU_OBJ) $(BUILD)/libsupport.a $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(LIBS) -o $@

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/libsupport.a $(BUILD)/libcli.a $(LIB)
	@mkdir -p $(@D)
	$(CC) $(FAST_LINK) $(LDFLAGS) $^ $(LIBS) -lcriterion -o $@

$(BUILD)/libglm.so.0: $(LIB_OBJ)
	$(CC) $(LDFLAGS) -shared -Wl,-soname,libglm.so.0 -Wl,--no-undefined $^ $(LIBS) -o $@

# Everything that `make test` runs, built and not run.
test-programs: $(TESTS) $(TOOLS) $(FAULT)

clean: ## remove what was built
	rm -rf build

# ---- packages and Python ----------------------------------------------------------------------
deps: ## install the Debian packages that building and testing need, if any is missing
	@tools/deps.sh $(DEBS)

deps-more: ## the same for lint, test-long and shell completion
	@tools/deps.sh $(DEBS) $(DEBS_MORE)

deps-bench:
	@tools/deps.sh $(DEBS_BENCH)

VENV := .venv/bin/python
venv: .venv/tests.stamp ## make .venv with the pinned packages of the tests' Python scripts

.venv/tests.stamp: fixtures/requirements.txt
	@test -x $(VENV) || $(PYTHON) -m venv .venv
	$(VENV) -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.venv/parity.stamp: fixtures/requirements-parity.txt .venv/tests.stamp
	$(VENV) -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.venv/bench.stamp: fixtures/requirements-bench.txt .venv/parity.stamp
	$(VENV) -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@touch $@

# ---- running it -------------------------------------------------------------------------------
# The packages come first and are looked for again by a second make, which then finds them.
SUBMAKE = +@$(MAKE) --no-print-directory CONFIG=$(CONFIG)

demo: deps ## import, inspect, convert, reshard, export, verify and train a tiny model, step by step
	$(SUBMAKE) -j$(JOBS) all
	@BIN=$(BUILD)/bin TOOLS=$(BUILD)/tools demo/demo.sh

test: deps venv ## all tests, about 15 minutes on two cores; ends with "N passed, N failed, N skipped"
	+@JOBS=$(JOBS) MAKE='$(MAKE)' PYTHON=$(VENV) tests/run.sh

test-quick: ## unit tests, scripts and command lines of what is built, without packages or fuzzers
	+@JOBS=$(JOBS) MAKE='$(MAKE)' PYTHON=$(VENV) tests/run.sh --quick

test-long: deps-more venv ## test, then valgrind, long fuzzing and the sweeps of tests/long/
	+@JOBS=$(JOBS) MAKE='$(MAKE)' PYTHON=$(VENV) tests/run.sh --long

parity: deps venv .venv/parity.stamp ## compare with Hugging Face transformers (installs PyTorch)
	$(SUBMAKE) -j$(JOBS) all
	@BIN=$(BUILD)/bin TOOLS=$(BUILD)/tools PYTHON=$(VENV) tests/parity/run.sh

bench: deps deps-bench venv .venv/bench.stamp ## measure speed and memory against the limits of this machine
	$(SUBMAKE) -j$(JOBS) all
	@BIN=$(BUILD)/bin TOOLS=$(BUILD)/tools PYTHON=$(VENV) tests/bench/run.sh

bench-big: deps venv .venv/bench.stamp ## the memory measurements on 30 GB; wants 70 GB of free disk
	$(SUBMAKE) -j$(JOBS) all
	@BIN=$(BUILD)/bin TOOLS=$(BUILD)/tools PYTHON=$(VENV) tests/bench/run.sh --big

# ---- on a machine with a GPU ------------------------------------------------------------------
# They run what was built before and build nothing: that machine may have no compiler of ours.
gpu-pack: ## put the programs and the libraries they need into build/gpu, for a machine with a GPU
	@tests/gpu/pack.sh

gpu-test: ## every operation on the GPU against the CPU's, beside noise; tiny models on both
	@tests/gpu/run.sh test

gpu-bench: ## time on the GPU: operations and a slice of the model beside PyTorch and transformers
	@$(PYTHON) tests/bench/bench_gpu.py

gpu-profile: ## Nsight Compute over the operations that miss a must of the kernel guide
	@$(PYTHON) tests/gpu/kernel_profile.py

gpu-sanitize: ## compute-sanitizer over the operations on small shapes
	@tests/gpu/run.sh sanitize

# ---- fuzzing ----------------------------------------------------------------------------------
# tests/fuzz/fuzz_NAME.c starts from tests/fuzz/corpus/NAME. New finds go to build/fuzz/found/NAME.
# Limits: no input may take 30 s (10 ms are usual) or ask for 64 MiB at once.
FUZZ_SECONDS ?= 60
FUZZ_JOBS    ?= 1
FUZZ_CC      ?= clang
FUZZ_CFLAGS  := -std=c11 -D_GNU_SOURCE -g1 -O1 -pthread -w -I. $(PKG_CFLAGS) \
                -fsanitize=address,undefined -fno-sanitize-recover=undefined
FUZZERS      := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

build/fuzz/obj/%.o: %.c
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c $< -o $@

# Nothing that is fuzzed computes.
build/fuzz/libglm.a: $(patsubst %.c,build/fuzz/obj/%.o,$(filter-out kernels/kernels.c,$(LIB_SRC)))
	@rm -f $@
	ar rcs $@ $^

build/fuzz/fuzz_%: build/fuzz/obj/tests/fuzz/fuzz_%.o build/fuzz/libglm.a
	$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer $^ $(LIBS) -o $@

fuzzers: $(FUZZERS:%=build/fuzz/fuzz_%)

fuzz-%: build/fuzz/fuzz_%
	@mkdir -p build/fuzz/found/$*
	@build/fuzz/fuzz_$* -max_total_time=$(FUZZ_SECONDS) -timeout=30 -rss_limit_mb=1024 \
	    -malloc_limit_mb=64 -print_final_stats=1 -artifact_prefix=build/fuzz/$*- \
	    build/fuzz/found/$* tests/fuzz/corpus/$* > build/fuzz/$*.log 2>&1 \
	    || { tail -40 build/fuzz/$*.log; echo "FAIL fuzz $*: see build/fuzz/$*.log"; exit 1; }
	@echo "ok   fuzz $*: $$(sed -n 's/^stat::average_exec_per_sec: *//p' build/fuzz/$*.log) \
	executions/s, $$(sed -n 's/^stat::number_of_executed_units: *//p' build/fuzz/$*.log) in all"

fuzz: ## each fuzzer for FUZZ_SECONDS (60), FUZZ_JOBS (1) at a time; then the corpus' line coverage
	+@$(MAKE) --no-print-directory -j$(JOBS) fuzzers
	+@$(MAKE) --no-print-directory -j$(FUZZ_JOBS) $(FUZZERS:%=fuzz-%)
	@tests/fuzz/coverage.sh

# ---- checks of the source ---------------------------------------------------------------------
C_FILES := $(filter-out build/%,$(wildcard */*.[ch] */*/*.[ch]))
# tests/emu has headers of C++, under the names that CUDA gives them; those of kernels/cuda need CUDA's.
HEADERS := $(filter-out tests/emu/% $(if $(NVCC),,kernels/cuda/%),$(filter %.h,$(C_FILES)))

lint: ## layout of the source, static checks, manual pages, shell scripts, patches of tests/mutants
	@tools/lint.sh

format: ## lay out the source by .clang-format
	clang-format -i $(C_FILES)

layers: ## folders include only what lies below them, and through its door
	@tools/layers.sh

headers: $(HEADERS:%=$(BUILD)/headers/%.ok) ## every header compiles alone

$(BUILD)/headers/kernels/cuda/%.ok: CFLAGS += -isystem $(CUDA_HOME)/include
$(BUILD)/headers/%.ok: %
	@mkdir -p $(@D)
	@printf '#include "%s"\nextern int not_empty;\n' $< | $(CC) $(CFLAGS) -fsyntax-only -x c -
	@touch $@

# ---- installing -------------------------------------------------------------------------------
MAN         := $(wildcard man/*.[1-9])
PUBLIC      := $(filter-out %_inside.h %_private.h convert/hfstored.h,$(wildcard \
               kernels/base/*.h kernels/*.h ckpt/*.h convert/*.h train/*.h verify/*.h))
prefix      := $(DESTDIR)$(PREFIX)
READER      := $(wildcard python/glm_checkpoint.py)

# The commands' own --help is the source of their completion.
$(BUILD)/completion/%: $(BUILD)/bin/% tools/completion.sh
	@mkdir -p $(@D)
	tools/completion.sh $< > $@

# What libcurl.pc names for a static link of its own is not all installed beside it: libcurl stays shared.
install: ## commands, manuals, library, headers, HDF5 plugin, Python reader, completion
install: all $(BUILD)/libglm.so.0 $(PROGS:$(BUILD)/bin/%=$(BUILD)/completion/%)
	install -d $(prefix)/bin $(prefix)/lib/pkgconfig $(prefix)/lib/hdf5/plugin \
	    $(prefix)/share/glm $(prefix)/share/bash-completion/completions
	$(if $(PROGS),install $(PROGS) $(prefix)/bin)
	install -m 644 $(LIB) $(prefix)/lib
	install -m 755 $(BUILD)/libglm.so.0 $(prefix)/lib
	ln -sf libglm.so.0 $(prefix)/lib/libglm.so
	for h in $(PUBLIC); do install -D -m 644 $$h $(prefix)/include/glm/$$h || exit 1; done
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' \
	    -e 's|@PKGS@|$(filter-out libcurl,$(PKGS))|' \
	    -e 's|@LIBS@|-lcurl $(filter-out $(PKG_LIBS),$(LIBS)) -pthread|' \
	    tools/glm.pc.in > $(prefix)/lib/pkgconfig/glm.pc
	for m in $(MAN); do \
	    install -D -m 644 $$m $(prefix)/share/man/man$${m##*.}/$${m##*/} || exit 1; done
	$(if $(PLUGIN),install -m 755 $(PLUGIN) $(prefix)/lib/hdf5/plugin)
	$(if $(CUDA_LIB),install -d $(prefix)/lib/glm && \
	    install -m 755 $(BUILD)/lib/libglm-cuda.so $(prefix)/lib/glm)
	$(if $(READER),install -m 644 $(READER) $(prefix)/share/glm)
	$(if $(PROGS),install -m 644 $(PROGS:$(BUILD)/bin/%=$(BUILD)/completion/%) \
	    $(prefix)/share/bash-completion/completions)

uninstall: ## remove what install put there
	rm -f $(PROGS:$(BUILD)/bin/%=$(prefix)/bin/%)
	rm -f $(PROGS:$(BUILD)/bin/%=$(prefix)/share/bash-completion/completions/%)
	rm -rf $(prefix)/lib/glm
	rm -f $(prefix)/lib/libglm.a $(prefix)/lib/libglm.so $(prefix)/lib/libglm.so.0
	rm -f $(prefix)/lib/pkgconfig/glm.pc
	rm -f $(foreach m,$(MAN),$(prefix)/share/man/man$(subst .,,$(suffix $(m)))/$(notdir $(m)))
	$(if $(PLUGIN),rm -f $(prefix)/lib/hdf5/plugin/$(notdir $(PLUGIN)))
	$(if $(READER),rm -f $(prefix)/share/glm/$(notdir $(READER)))
	rm -rf $(prefix)/include/glm

# ---- what is where ----------------------------------------------------------------------------
help: ## this list
	@sed -n 's/^\([a-z-]*\):.* *## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	    awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'
	@echo
	@echo 'Variables: CONFIG=release|asan (now $(CONFIG)), JOBS=$(JOBS), PREFIX=$(PREFIX), DESTDIR, CC=$(CC)'
	@echo 'NVCC=$(NVCC) (NVCC= leaves the GPU out), CUDA_ARCH="$(CUDA_ARCH)"'

config: ## what this machine has
	@echo 'version      $(VERSION)'
	@echo 'build        $(CONFIG), in $(BUILD)'
	@printf 'compiler     '; $(CC) --version | head -1
	@echo 'processor    $(shell nproc) CPUs, $(shell uname -m)'
	@for p in $(PKGS); do printf '%-12s ' $$p; \
	    pkg-config --modversion $$p 2>/dev/null || echo 'missing (make deps)'; done
	@for t in h5dump mandoc clang clang-format cppcheck shellcheck valgrind mpirun; do \
	    printf '%-12s ' $$t; command -v $$t || echo 'missing'; done
	@echo 'nvcc         $(if $(NVCC),$(NVCC),missing: built without the GPU backend)'
	@echo 'GPU backend  $(if $(CUDA_LIB),for $(CUDA_ARCH:%=sm_%),none: it wants nvcc and CONFIG=release)'
	@printf 'venv         '; $(VENV) --version 2>/dev/null || echo 'missing (make venv)'

.PHONY: emulated gpu-pack gpu-test gpu-bench gpu-profile gpu-sanitize fuzz fuzzers all test-programs clean deps deps-more deps-bench venv demo test test-quick test-long parity bench \
        bench-big lint format layers headers install uninstall help config
.SECONDARY:
-include $(shell find $(BUILD) $(EMU) build/fuzz/obj -name '*.d' 2>/dev/null)
