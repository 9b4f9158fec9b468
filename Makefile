# Tenon. `make help` lists the targets.
VERSION := 0.1.0
SOMAJOR := 0
PREFIX ?= /usr/local
DESTDIR ?=
BUILD ?= build
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))

PACKAGES := jansson libpcre2-8 libutf8proc libelf libcrypto
PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null) -lltdl -ldnnl
CHECK_LIBS := $(shell pkg-config --libs check 2>/dev/null || echo -lcheck)
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)

OPT ?= -O3
WARN := -Wall -Wextra -Wpedantic
BASE := -std=c17 $(OPT) -g $(WARN) -fPIC -fvisibility=hidden -fopenmp -D_GNU_SOURCE -Iinclude -MMD -MP $(SANITIZE)
CORE_CFLAGS := $(BASE) -Icore $(PKG_CFLAGS) -DTN_PREFIX='"$(PREFIX)"' $(CFLAGS)
PLUGIN_CFLAGS := $(BASE) -Iplugins/common $(CFLAGS)
TEST_CFLAGS := $(BASE) -Icore -Itests/support $(PKG_CFLAGS) $(CFLAGS)
LINK := $(CC) -fopenmp $(SANITIZE) $(LDFLAGS)

# The suffix of a kernel's file selects its instruction set; other machines leave these files out.
ISA_avx2 := -mavx2 -mfma -mf16c
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_NAMES := avx2 avx512 avx512bf16
isa_of = $(firstword $(foreach i,$(ISA_NAMES),$(if $(filter %_$(i),$(basename $(1))),$(i))))
isa_flags = $(ISA_$(call isa_of,$(1)))
ifneq (,$(filter x86_64%,$(MACHINE)))
keep = $(1)
else
keep = $(filter-out $(foreach i,$(ISA_NAMES),%_$(i).c),$(1))
endif

CORE_SRC := $(wildcard core/*.c core/*/*.c)
CLI_SRC := $(wildcard cli/*.c)
COMMON_SRC := $(call keep,$(wildcard plugins/common/*.c))
PLUGIN_DIRS := $(filter-out plugins/common,$(patsubst %/plugin.c,%,$(wildcard plugins/*/plugin.c)))
SUPPORT_SRC := $(wildcard tests/support/*.c)
TEST_SRC := $(wildcard tests/*/test_*.c)
TOOL_DIRS := $(patsubst %/main.c,%,$(wildcard tests/*/main.c))
BAD_PLUGIN_SRC := $(filter-out tests/bad_plugins/test_%,$(wildcard tests/bad_plugins/*.c))

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
CORE_OBJ := $(call obj,$(CORE_SRC))
LIB := $(BUILD)/libtenon.so.$(VERSION)
PLUGINS := $(patsubst plugins/%,$(BUILD)/plugins/%.so,$(PLUGIN_DIRS))
TESTS := $(foreach t,$(TEST_SRC),$(BUILD)/tests/$(basename $(notdir $(t))))
TOOLS := $(patsubst tests/%,$(BUILD)/tests/%,$(TOOL_DIRS))
BAD_PLUGINS := $(BAD_PLUGIN_SRC:tests/%.c=$(BUILD)/tests/%.so)
PROGRAM := $(if $(CLI_SRC),$(BUILD)/tenon)

all: $(LIB) $(PROGRAM) $(PLUGINS)
tests: all $(TESTS) $(TOOLS) $(BAD_PLUGINS)

$(BUILD)/obj/core/%.o: core/%.c
	@mkdir -p $(@D)
	$(CC) $(CORE_CFLAGS) -c $< -o $@
$(BUILD)/obj/cli/%.o: cli/%.c
	@mkdir -p $(@D)
	$(CC) $(BASE) $(PKG_CFLAGS) -DTN_PREFIX='"$(PREFIX)"' $(CFLAGS) -c $< -o $@
$(BUILD)/obj/plugins/%.o: plugins/%.c
	@mkdir -p $(@D)
	$(CC) $(PLUGIN_CFLAGS) $(call isa_flags,$<) -c $< -o $@
$(BUILD)/obj/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(CC) $(TEST_CFLAGS) -c $< -o $@

$(LIB): $(CORE_OBJ)
	$(LINK) -shared -Wl,-soname,libtenon.so.$(SOMAJOR) -Wl,-z,defs -Wl,-z,now -o $@ $(CORE_OBJ) $(PKG_LIBS) -lm
	ln -sf $(@F) $(BUILD)/libtenon.so.$(SOMAJOR)
	ln -sf $(@F) $(BUILD)/libtenon.so
$(BUILD)/tenon: $(call obj,$(CLI_SRC)) $(LIB)
	$(LINK) -o $@ $(call obj,$(CLI_SRC)) -L$(BUILD) -ltenon -ljansson -lm -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,'$$ORIGIN/../lib'

define plugin_rule
$(BUILD)/plugins/$(notdir $(1)).so: $(call obj,$(call keep,$(wildcard $(1)/*.c)) $(COMMON_SRC)) $(LIB)
	@mkdir -p $$(@D)
	$$(LINK) -shared -Wl,-z,defs -Wl,-z,now -Wl,--gc-sections -o $$@ $$(filter %.o,$$^) -L$(BUILD) -ltenon -lm -Wl,-rpath,'$$$$ORIGIN/..'
endef
$(foreach d,$(PLUGIN_DIRS),$(eval $(call plugin_rule,$(d))))

# Tests see the inside of core: they link its objects and export them to the plugins that they load.
TEST_LINK = $(LINK) -rdynamic -o $@ $(filter %.o,$^) $(CHECK_LIBS) $(PKG_LIBS) -lm -Wl,-rpath,'$$ORIGIN/..'
define test_rule
$(BUILD)/tests/$(basename $(notdir $(1))): $(call obj,$(1) $(SUPPORT_SRC)) $(CORE_OBJ)
	@mkdir -p $$(@D)
	$$(TEST_LINK)
endef
$(foreach t,$(TEST_SRC),$(eval $(call test_rule,$(t))))
define tool_rule
$(BUILD)/tests/$(notdir $(1)): $(call obj,$(wildcard $(1)/*.c) $(SUPPORT_SRC)) $(CORE_OBJ)
	@mkdir -p $$(@D)
	$$(TEST_LINK)
endef
$(foreach d,$(TOOL_DIRS),$(eval $(call tool_rule,$(d))))

# One file each, as an author outside of this tree would build it. Folders that others can write to are not scanned.
$(BUILD)/tests/bad_plugins/%.so: tests/bad_plugins/%.c $(wildcard tests/bad_plugins/*.h include/tenon/*.h) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(PLUGIN_CFLAGS)) -shared -Wl,-z,now $(if $(filter missing_symbol,$*),,-Wl,-z,defs) -o $@ $< \
	  -L$(BUILD) -ltenon -lm -Wl,-rpath,'$$ORIGIN/../..'
	@chmod go-w $@ $(@D)

clean:
	rm -rf $(BUILD)

.PHONY: all tests clean
.DELETE_ON_ERROR:
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
