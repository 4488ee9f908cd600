# glm: the checkpoint-centric training suite. `make help` lists the targets.

# ---- knobs ------------------------------------------------------------------------------------
CONFIG ?= release
PREFIX ?= /usr/local
CC     ?= gcc
JOBS   ?= $(shell nproc)
BUILD  := build/$(CONFIG)

# ---- what this machine has --------------------------------------------------------------------
PKGS       := jansson libzstd libcrypto hdf5
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes \
           -Wmissing-prototypes -Wvla -Werror
CFLAGS_release := -O2 -g
CFLAGS_asan    := -O1 -g -fsanitize=address,undefined -fno-omit-frame-pointer \
                  -fno-sanitize-recover=undefined
# -ffp-contract=off: a fused multiply-add would give other bits on other machines.
CFLAGS  := -std=c11 -D_GNU_SOURCE -ffp-contract=off -pthread $(WARN) $(CFLAGS_$(CONFIG)) -I. \
           $(PKG_CFLAGS) $(EXTRA_CFLAGS)
LDFLAGS := -pthread $(filter -fsanitize%,$(CFLAGS_$(CONFIG))) $(EXTRA_LDFLAGS)
LIBS    := $(PKG_LIBS) -lm

# ---- what there is to build -------------------------------------------------------------------
LIB_SRC  := $(wildcard kernels/base/*.c ckpt/*.c convert/*.c verify/*.c)
CLI_SRC  := $(filter-out cli/glm-%,$(wildcard cli/*.c))
PROG_SRC := $(wildcard cli/glm-*.c)
TEST_SRC := $(wildcard tests/*/test_*.c)
SUP_SRC  := $(filter-out tests/support/main_%,$(wildcard tests/support/*.c))
TOOL_SRC := $(wildcard tests/support/main_*.c)

obj = $(1:%.c=$(BUILD)/%.o)
LIB      := $(BUILD)/libglm.a
PROGS    := $(PROG_SRC:cli/%.c=$(BUILD)/bin/%)
TESTS    := $(TEST_SRC:%.c=$(BUILD)/%)
TOOLS    := $(TOOL_SRC:tests/support/main_%.c=$(BUILD)/tools/%)

all: $(PROGS) $(TOOLS)

# The loops over elements are written for the vectoriser, which may not select between two
# computed floats where a trap could be observed. The bits are the same at every level.
$(addprefix $(BUILD)/,convert/mxfp8.o convert/fp8block.o convert/cast.o ckpt/packed.o): \
    CFLAGS += $(if $(filter release,$(CONFIG)),-O3 -fno-trapping-math)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(LIB): $(call obj,$(LIB_SRC))
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/libcli.a: $(call obj,$(CLI_SRC))
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/bin/%: $(BUILD)/cli/%.o $(BUILD)/libcli.a $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(LIBS) -o $@

$(BUILD)/tools/%: $(BUILD)/tests/support/main_%.o $(call obj,$(SUP_SRC)) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(LIBS) -o $@

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(call obj,$(SUP_SRC)) $(BUILD)/libcli.a $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $^ $(LIBS) -lcriterion -o $@

clean:
	rm -rf build

.PHONY: all clean
.SECONDARY:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
