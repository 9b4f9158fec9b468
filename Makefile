# Tenon. `make help` lists the targets.
VERSION := 0.1.0
SOMAJOR := 0
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
SYSCONFDIR ?= $(PREFIX)/etc
DESTDIR ?=
BUILD ?= build
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
.DEFAULT_GOAL := all

# Missing packages are installed before the next lines ask pkg-config about them. SETUP=no leaves the system alone.
SETUP ?= yes
DRY_RUN := $(findstring n,$(firstword -$(MAKEFLAGS)))
BUILDS := $(filter-out help clean format uninstall dist deb deb-bare arm64 bare reproducible,$(or $(MAKECMDGOALS),all))
# Who wants to run the program needs no test library.
TESTED := $(filter-out all plugins demo demo-train install python python-package,$(BUILDS))
ifneq (,$(and $(BUILDS),$(filter yes,$(SETUP)),$(if $(DRY_RUN),,run)))
$(if $(filter ready,$(shell CC='$(CC)' scripts/setup.sh $(if $(TESTED),,--no-tests) >&2 && echo ready)),,$(error packages are missing, see above))
endif

PACKAGES := jansson libpcre2-8 libutf8proc zlib libelf libcrypto libpng libjpeg libwebp sndfile soxr
# It may be missing: with it the children that try plugins have no network and write nothing (core/device/confine.c).
SECCOMP := $(shell pkg-config --exists libseccomp 2>/dev/null && echo libseccomp)
PACKAGES += $(SECCOMP)
PKG_CFLAGS := $(if $(SECCOMP),-DTN_SECCOMP) $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null) -lltdl -ldnnl -lgomp
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)

# The way from one folder of an installation to another. It holds below DESTDIR, too, and where all of PREFIX is moved.
way = $(call climb,$(if $(filter-out $(PREFIX)/%,$(1) $(2)),$(1) $(2),$(patsubst $(PREFIX)/%,/%,$(1) $(2))))
climb = $(subst $() ,,$(foreach folder,$(subst /, ,$(firstword $(1))),../))$(patsubst /%,%,$(lastword $(1)))
BIN_TO_LIB := $(call way,$(PREFIX)/bin,$(LIBDIR))

OPT ?= -O3
WARN := -Wall -Wextra -Wpedantic
BASE := -std=c17 $(OPT) -g -ffp-contract=off $(WARN) -fPIC -fvisibility=hidden -fopenmp-simd -D_GNU_SOURCE -Iinclude -MMD -MP $(SANITIZE)
# What the library, the program and the plugins are hardened by: a guard on each stack frame that has an array, sizes
# checked at calls of the C library (which takes a compiler that optimises, and the sanitizers do it themselves), targets
# of indirect jumps marked on x86-64, and tables that are read-only from the start. Their bytes do not depend on where
# the tree lies.
OPTIMISED := $(filter-out -O0,$(lastword $(filter -O%,$(OPT) $(CFLAGS))))
FORTIFIED := $(if $(OPTIMISED),$(if $(SANITIZE),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$(shell [ "$$($(CC) -dumpversion | cut -d . -f 1)" -ge 12 ] 2>/dev/null && echo 3 || echo 2)))
HARDEN := -fstack-protector-strong $(FORTIFIED) $(if $(filter x86_64%,$(MACHINE)),-fcf-protection) -ffile-prefix-map=$(CURDIR)=.
HARDEN_LINK := -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack
PLACES := -DTN_SYSCONFDIR='"$(SYSCONFDIR)"' -DTN_BIN_TO_LIB='"$(BIN_TO_LIB)"'
# COVERAGE: flags that core alone is compiled with, and COVERAGE_LINK those that link it (scripts/coverage.sh).
CORE_CFLAGS := $(BASE) $(HARDEN) -Icore $(PKG_CFLAGS) $(PLACES) $(CFLAGS) $(COVERAGE)
PLUGIN_CFLAGS := $(BASE) $(HARDEN) -Iplugins/common $(CFLAGS)
LINK := $(CC) -pthread $(SANITIZE) $(LDFLAGS)

# V=1 shows whole commands, otherwise one short line each.
Q := $(if $(V),,@)
say = $(if $(V),,@echo '  $(1)$@')

# Objects depend on these two files, which change only when their contents do: other flags build everything anew, other
# places what knows them. make install by itself takes what was built as it was built, whatever the flags are now.
remember = $(if $(filter-out $(file <$(BUILD)/$(1)),$(2)),$(shell mkdir -p $(BUILD))$(file >$(BUILD)/$(1),$(2)))
ifneq (,$(and $(BUILDS),$(if $(DRY_RUN),,run)))
$(if $(or $(filter-out install,$(BUILDS)),$(if $(wildcard $(BUILD)/flags),,new)),$(call remember,flags,$(subst $() ,_,$(CC) $(BASE) $(HARDEN) $(HARDEN_LINK) $(PKG_CFLAGS) $(CFLAGS) $(COVERAGE) $(LDFLAGS))))
$(call remember,places,$(subst $() ,_,$(PLACES)))
endif

# The suffix of a file selects its instruction set; other machines leave these files out.
# Files of vectors without the values of variables for debuggers: in gcc they take half of their compile time.
NO_TRACKING := $(if $(findstring clang,$(CC)),,-fno-var-tracking-assignments)
ISA_avx2 := -mavx2 -mfma -mf16c $(NO_TRACKING)
ISA_avxvnni := $(ISA_avx2) -mavxvnni
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl
ISA_avx512vnni := $(ISA_avx512) -mavx512vnni
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_avx512fp16 := $(ISA_avx512) -mavx512fp16
ISA_amx := $(ISA_avx512bf16) -mamx-tile -mamx-bf16
ISA_NAMES := avx2 avxvnni avx512 avx512vnni avx512bf16 avx512fp16 amx
isa_of = $(firstword $(foreach i,$(ISA_NAMES),$(if $(filter %_$(i),$(basename $(1))),$(i))))
isa_flags = $(ISA_$(call isa_of,$(1)))
NOT_HERE := $(if $(filter x86_64%,$(MACHINE)),,$(ISA_NAMES)) $(if $(filter aarch64%,$(MACHINE)),,neon)
keep = $(filter-out $(foreach i,$(NOT_HERE),%_$(i).c),$(1))

CORE_SRC := $(call keep,$(wildcard core/*.c core/*/*.c))
CLI_SRC := $(wildcard cli/*.c)
# tenon serve is a program of its own, so that others do not load what speaks HTTP; without the library it is not built.
HTTP := $(shell pkg-config --exists libmicrohttpd 2>/dev/null && echo libmicrohttpd)
SERVE_SRC := $(if $(HTTP),$(wildcard serve/*.c))
SERVE_CLI := $(patsubst %,cli/%.c,options open output progress input serve digest)
# What speaks MPI lies in a folder of its own beside the plugins; without MPI, or with MPI= (no), it is not built.
ifeq ($(origin MPI),undefined)
MPI := $(shell pkg-config --exists ompi-c 2>/dev/null && echo ompi-c)
endif
MPI_LIB := $(if $(MPI),$(BUILD)/plugins/mpi/open_mpi.so)
COMMON_SRC := $(call keep,$(wildcard plugins/common/*.c))
PLUGIN_DIRS := $(filter-out plugins/common,$(patsubst %/plugin.c,%,$(wildcard plugins/*/plugin.c)))

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
CORE_OBJ := $(call obj,$(CORE_SRC))
LIB := $(BUILD)/libtenon.so.$(VERSION)
PLUGINS := $(patsubst plugins/%,$(BUILD)/plugins/%.so,$(PLUGIN_DIRS))
PROGRAM := $(BUILD)/tenon

SERVER := $(if $(SERVE_SRC),$(BUILD)/tenon-serve)

all: $(LIB) $(PROGRAM) $(SERVER) plugins ## the library, the program and the plugins, in build/
plugins: $(PLUGINS) $(MPI_LIB) # a folder has that name, too

$(BUILD)/obj/core/%.o: core/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,compile )
	$(Q)$(CC) $(CORE_CFLAGS) $(call isa_flags,$<) -c $< -o $@
# These look at each word of a library's variables around each call, where the sanitizers keep many: 7 MB in a plugin of
# this tree, whose variables are looked at in the other builds. Those of the tests, which are small, are looked at here too.
ifneq ($(SANITIZE),)
$(call obj,core/check/state.c core/check/state_memory.c): CORE_CFLAGS := $(filter-out $(SANITIZE) -O1,$(CORE_CFLAGS)) -O2 -DTN_MOST_WORDS=65536
endif
$(BUILD)/obj/cli/%.o: cli/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,compile )
	$(Q)$(CC) $(BASE) $(HARDEN) $(PKG_CFLAGS) $(PLACES) $(CFLAGS) -c $< -o $@
$(BUILD)/serve/page.c: serve/page.html
	@mkdir -p $(@D)
	$(call say,write   )
	$(Q){ echo 'extern const char http_page[];'; echo 'const char http_page[] = {'; od -An -v -tx1 $< | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g'; echo '0};'; } >$@.new && mv $@.new $@
$(BUILD)/obj/serve/page.o: $(BUILD)/serve/page.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,compile )
	$(Q)$(CC) $(BASE) $(HARDEN) $(CFLAGS) -funsigned-char -c $< -o $@
$(BUILD)/obj/serve/%.o: serve/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,compile )
	$(Q)$(CC) $(BASE) $(HARDEN) $(PKG_CFLAGS) $(PLACES) $(CFLAGS) -c $< -o $@
$(BUILD)/obj/plugins/%.o: plugins/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,compile )
	$(Q)$(CC) $(PLUGIN_CFLAGS) $(call isa_flags,$<) -c $< -o $@
$(call obj,core/plugin/kernels_config_read.c cli/open.c): $(BUILD)/places
$(BUILD)/flags $(BUILD)/places: ;

$(LIB): $(CORE_OBJ) core/exports.map
	$(call say,link    )
	$(Q)$(LINK) $(COVERAGE_LINK) -shared -Wl,-soname,libtenon.so.$(SOMAJOR) -Wl,-z,defs $(HARDEN_LINK) -Wl,--version-script=core/exports.map -o $@ $(CORE_OBJ) $(PKG_LIBS) -lm
	@ln -sf $(@F) $(BUILD)/libtenon.so.$(SOMAJOR)
	@ln -sf $(@F) $(BUILD)/libtenon.so
# What links the library holds nothing of it, only names.
$(BUILD)/tenon: $(call obj,$(CLI_SRC)) core/exports.map $(BUILD)/places | $(LIB)
	$(call say,link    )
	$(Q)$(LINK) -pie $(HARDEN_LINK) -o $@ $(call obj,$(CLI_SRC)) -L$(BUILD) -ltenon -ljansson -ledit -lm -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,'$$ORIGIN/$(BIN_TO_LIB)'

SERVE_OBJ := $(call obj,$(SERVE_SRC) $(SERVE_CLI) serve/page.c)
$(BUILD)/tenon-serve: $(SERVE_OBJ) core/exports.map $(BUILD)/places | $(LIB)
	$(call say,link    )
	$(Q)$(LINK) -pie $(HARDEN_LINK) -o $@ $(SERVE_OBJ) -L$(BUILD) -ltenon -ljansson $(shell pkg-config --libs libmicrohttpd) -lm -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,'$$ORIGIN/$(BIN_TO_LIB)'

# Each process that scans plugins reads and hashes them whole: what only debuggers read of them, nine tenths, is kept
# beside them, where gdb and perf look for it. SPLIT_DEBUG=no: within them, for who splits it off by other means.
SPLIT_DEBUG ?= yes
OBJCOPY ?= $(shell $(CC) -print-prog-name=objcopy)
DEBUG_FILE = $(@D)/.debug/$(@F).debug
PLUGIN_LINK = $(LINK) -shared -Wl,-z,defs $(HARDEN_LINK) -Wl,--gc-sections -o $@ $(filter %.o,$^) -L$(BUILD) -ltenon -lm \
  -Wl,-rpath,'$$ORIGIN/..' -Wl,-rpath,'$$ORIGIN/../..' $(if $(filter yes,$(SPLIT_DEBUG)),&& mkdir -p $(@D)/.debug && \
  $(OBJCOPY) --only-keep-debug $@ $(DEBUG_FILE) && $(OBJCOPY) --strip-debug --add-gnu-debuglink=$(DEBUG_FILE) $@)
# A folder that others can write to is not scanned, nor what lies below one.
ABOVE = . $(BUILD) $(wildcard $(BUILD)/tests $(BUILD)/emulated)
define plugin_rule
$(BUILD)/plugins/$(notdir $(1)).so: $(call obj,$(call keep,$(wildcard $(1)/*.c)) $(COMMON_SRC)) core/exports.map | $(LIB)
	@mkdir -p $$(@D)
	$$(call say,link    )
	$$(Q)$$(PLUGIN_LINK)
	@chmod go-w $$@ $$(@D) $$(ABOVE)
endef
$(foreach d,$(PLUGIN_DIRS),$(eval $(call plugin_rule,$(d))))

$(BUILD)/plugins/mpi/open_mpi.so: plugins/mpi/open_mpi/open_mpi.c $(BUILD)/flags | $(LIB)
	@mkdir -p $(@D)
	$(call say,link    )
	$(Q)$(LINK) $(filter-out -MMD -MP,$(BASE)) $(HARDEN) $(CFLAGS) -shared $(HARDEN_LINK) -o $@ $< -L$(BUILD) -ltenon $(shell pkg-config --cflags --libs ompi-c) -Wl,-rpath,'$$ORIGIN/../..' -Wl,-rpath,'$$ORIGIN/../../..'
	@chmod go-w $@ $(@D)

# ---- what people ask for ----------------------------------------------------------------------

demo: all ## builds, and shows the kernels at work on the embedded model
	@scripts/demo.sh $(BUILD)

demo-train: all ## the embedded model learns the project's own pages, in about a minute
	@scripts/demo_train.sh $(BUILD)

include mk/tests.mk

include mk/python.mk

format: ## formats all C files
	@scripts/format.sh

include mk/install.mk

clean: ## removes build/
	rm -rf $(BUILD)

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile mk/*.mk | expand -t 16
	@echo 'Variables: CC, CFLAGS, LDFLAGS, OPT, BUILD, PREFIX, LIBDIR, SYSCONFDIR, DESTDIR; V=1 (whole commands), SETUP=no (installs no packages).'

.PHONY: all plugins tests demo demo-train check check-without reproducible bare asan syntax tsan valgrind faults arm64 bench bench-kernels bench-peers bench-python bench-serve bench-train bench-tokenizers bench-machines npu-count npu-try serve-py soak fuzz fuzzers coverage lint lint-tidy format install uninstall dist deb deb-bare clean help python python-package check-python
.DELETE_ON_ERROR:
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
