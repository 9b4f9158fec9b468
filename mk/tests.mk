# How tests, examples and their tools are built, and what runs them. Part of the Makefile.

CHECK_LIBS := $(shell pkg-config --libs check 2>/dev/null || echo -lcheck)
TEST_CFLAGS := $(BASE) -Icore -Itests/support $(PKG_CFLAGS) $(CFLAGS)

SUPPORT_SRC := $(wildcard tests/support/*.c)
# TEST_FOLDERS: of these folders of tests only. WITHOUT: names that are left out, with one % each, as make takes them.
# Under the sanitizers these are left out, too: see CHECKS.
TEST_FOLDERS ?= *
LEFT_OUT := $(WITHOUT) $(if $(HTTP),,test_http%) $(if $(SANITIZE),test_faults test_api_memory test_extremes test_cli_shadow test_ascend_grads test_ascend_kernels test_ascend_ops %.sh)
TEST_SRC := $(filter-out $(SUPPORT_SRC) $(foreach t,$(LEFT_OUT),$(wildcard tests/*/$(subst %,*,$t).c)),$(wildcard $(TEST_FOLDERS:%=tests/%/test_*.c)))
TEST_SCRIPTS := $(filter-out $(foreach t,$(LEFT_OUT),$(wildcard tests/*/$(subst %,*,$t))),$(wildcard $(TEST_FOLDERS:%=tests/%/test_*.sh)))
TOOL_DIRS := $(patsubst %/main.c,%,$(wildcard tests/*/main.c))
BAD_PLUGIN_SRC := $(filter-out tests/bad_plugins/test_%,$(wildcard tests/bad_plugins/*.c tests/bad_kernels/*.c))
EMULATED := $(if $(filter x86_64%,$(MACHINE)),$(patsubst plugins/%,$(BUILD)/emulated/plugins/%.so,$(PLUGIN_DIRS)))
TESTS := $(foreach t,$(TEST_SRC),$(BUILD)/tests/$(basename $(notdir $(t))))
TOOLS := $(patsubst tests/%,$(BUILD)/tests/%,$(TOOL_DIRS))
BAD_PLUGINS := $(BAD_PLUGIN_SRC:tests/%.c=$(BUILD)/tests/%.so)
SIM_LIBS := $(foreach d,ascend_sim ascend_sim_old,$(patsubst %,$(BUILD)/tests/$(d)/lib%.so,ascendcl nnopbase opapi))
EXAMPLES := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))
SLOW_MPI := $(if $(MPI),$(BUILD)/tests/slow_mpi.so)

tests: all $(BUILD)/tests/fault_preload.so $(TESTS) $(TOOLS) $(EMULATED) $(BAD_PLUGINS) $(EXAMPLES) $(BUILD)/tests/hello_kernel/hello_kernel.so $(SIM_LIBS) $(SLOW_MPI)

$(BUILD)/obj/tests/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,compile )
	$(Q)$(CC) $(TEST_CFLAGS) $(call isa_flags,$<) -c $< -o $@

# Programs that embed the library see its public headers and nothing else.
$(BUILD)/examples/%: examples/%.c $(LIB) $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,link    )
	$(Q)$(LINK) -std=c17 $(OPT) -g $(WARN) -Iinclude $(CFLAGS) -o $@ $< -L$(BUILD) -ltenon -Wl,-rpath,'$$ORIGIN/..'

# The same plugins with the tile instructions of AMX in C, for checks on machines that have none: only the files that use
# them are compiled anew.
EMULATED_SRC = $(filter %_amx.c,$(call keep,$(wildcard $(1)/*.c) $(COMMON_SRC)))
$(BUILD)/obj/emulated/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,compile )
	$(Q)$(CC) $(PLUGIN_CFLAGS) $(ISA_avx512bf16) -DTN_EMULATE_AMX -c $< -o $@
define emulated_rule
$(BUILD)/emulated/plugins/$(notdir $(1)).so: $(call obj,$(filter-out $(EMULATED_SRC),$(call keep,$(wildcard $(1)/*.c)) $(COMMON_SRC))) \
  $(EMULATED_SRC:%.c=$(BUILD)/obj/emulated/%.o) $(LIB)
	@mkdir -p $$(@D)
	$$(call say,link    )
	$$(Q)$$(PLUGIN_LINK)
	@chmod go-w $$@ $$(@D) $$(ABOVE)
endef
$(foreach d,$(PLUGIN_DIRS),$(eval $(call emulated_rule,$(d))))

# Tests see the inside of core: they link its objects and export them to the plugins that they load. Of some two hundred
# links each takes a quarter of the time by gold, where the compiler has it.
TEST_LINKER = $(eval TEST_LINKER := $(shell echo 'int main(void) { return 0; }' | $(CC) -fuse-ld=gold -x c - -o /dev/null 2>/dev/null && echo -fuse-ld=gold))$(TEST_LINKER)
TEST_LINK = $(LINK) $(TEST_LINKER) $(COVERAGE_LINK) -rdynamic -o $@ $(filter %.o,$^) $(CHECK_LIBS) $(PKG_LIBS) -lm -Wl,-rpath,'$$ORIGIN/..'
define test_rule
$(BUILD)/tests/$(basename $(notdir $(1))): $(call obj,$(1) $(SUPPORT_SRC)) $(CORE_OBJ)
	@mkdir -p $$(@D)
	$$(call say,link    )
	$$(Q)$$(TEST_LINK)
endef
$(foreach t,$(TEST_SRC),$(eval $(call test_rule,$(t))))
# What is fuzzed is replayed by a test.
$(BUILD)/tests/test_fuzz_corpus: $(call obj,$(filter-out %/fuzz_http.c,$(wildcard tests/fuzz/fuzz_*.c)))
# An allocator that fails, in the program that wants one.
$(BUILD)/tests/test_memory: $(call obj,tests/faults/failing_memory.c $(wildcard tests/faults/memory_pieces*.c))
# The rule by which check_models judges logits in bf16.
$(BUILD)/tests/test_rounding: $(call obj,$(patsubst %,tests/check_models/%.c,golden media near rounding run))
# The public functions as the headers have them, to be called with what they must refuse.
$(BUILD)/api/api_calls.h: tests/api/calls.awk $(wildcard include/tenon/*.h)
	@mkdir -p $(@D)
	$(call say,write   )
	$(Q)awk -f $^ >$@.new && mv $@.new $@
$(call obj,tests/api/calls.c): $(BUILD)/api/api_calls.h
$(call obj,tests/api/calls.c): TEST_CFLAGS += -I$(BUILD)/api
$(BUILD)/tests/test_api: $(call obj,$(patsubst %,tests/api/%.c,calls values values_pointers values_world))
$(BUILD)/tests/test_api: | $(BUILD)/plugins/npu_rmsnorm.so
# Those of what plugins share see that too.
$(call obj,$(wildcard tests/kernels/*.c)): TEST_CFLAGS += -Iplugins -Iplugins/common
$(foreach t,$(wildcard tests/kernels/test_*.c),$(BUILD)/tests/$(basename $(notdir $(t)))): $(call obj,$(COMMON_SRC))
$(BUILD)/tests/test_expert_ints: $(call obj,$(wildcard plugins/cpu_quantised/experts*.c))
# Those of the server link what they look at of it, which takes no more than core does.
SPLITTER_OBJ := $(call obj,$(wildcard serve/splitter*.c))
$(patsubst tests/serve/%.c,$(BUILD)/tests/%,$(wildcard tests/serve/test_splitter*.c)): $(SPLITTER_OBJ) $(call obj,tests/serve/split.c)
$(BUILD)/tests/test_splitter: $(call obj,tests/faults/failing_memory.c)
$(BUILD)/tests/test_fuzz_corpus $(BUILD)/fuzz_toolcall: $(SPLITTER_OBJ)
# Those of the API answer it in the place of HTTP.
TRANSPORT_SRC := $(wildcard serve/http*.c) serve/keys.c
API_OBJ := $(call obj,$(filter-out $(TRANSPORT_SRC) serve/main.c,$(wildcard serve/*.c)) cli/digest.c)
$(patsubst tests/serve/%.c,$(BUILD)/tests/%,$(wildcard tests/serve/test_api*.c)): $(API_OBJ) $(call obj,tests/serve/asked.c)
# Those of HTTP answer in the place of the API.
HTTP_TESTS := $(patsubst tests/serve/%.c,$(BUILD)/tests/%,$(wildcard tests/serve/test_http*.c))
HTTP_LIBS := $(shell pkg-config --libs libmicrohttpd 2>/dev/null)
$(HTTP_TESTS) $(BUILD)/fuzz_http: $(call obj,$(TRANSPORT_SRC) serve/page.c)
$(HTTP_TESTS): $(call obj,tests/serve/wire.c)
$(HTTP_TESTS): CHECK_LIBS += $(HTTP_LIBS)
$(BUILD)/tests/test_http_corpus: $(call obj,tests/fuzz/fuzz_http.c)
$(BUILD)/fuzz_http: PKG_LIBS += $(HTTP_LIBS)
$(BUILD)/tests/test_api_memory: $(call obj,tests/faults/failing_memory.c)
$(call obj,tests/npu_count/main.c): TEST_CFLAGS += -Iplugins/common
define tool_rule
$(BUILD)/tests/$(notdir $(1)): $(call obj,$(call keep,$(wildcard $(1)/*.c)) $(SUPPORT_SRC)) $(CORE_OBJ)
	@mkdir -p $$(@D)
	$$(call say,link    )
	$$(Q)$$(TEST_LINK)
endef
$(foreach d,$(TOOL_DIRS),$(eval $(call tool_rule,$(d))))

# One file each, as an author outside of this tree would build it, so that no guard of the compiler comes before ours. Folders that others can write to are not scanned.
# Of two, how they are linked is what matters: tests write other names over these long ones.
LONG := $(subst $(eval) ,/,$(foreach i,1 2 3 4 5 6 7 8,/a/place/that/is/not/there))
BAD_LINK_dependency := -Wl,-soname,lib_that_plugins_of_the_tests_need.so.1
BAD_LINK_needs_library := $(BUILD)/tests/bad_plugins/dependency.so -Wl,-rpath,$(LONG)
BAD_LINK_in_use_library := -Wl,-soname,libin_use.so.1
BAD_LINK_in_use := $(BUILD)/tests/bad_plugins/in_use_library.so -Wl,-rpath,'$$ORIGIN'
BAD_LINK_threads_kernel := -fopenmp
BAD_LINK_factor_library := -Wl,-soname,libfactor.so.1
BAD_LINK_calls_library := $(BUILD)/tests/bad_plugins/factor_library.so -Wl,-rpath,'$$ORIGIN/lib'
$(BUILD)/tests/bad_plugins/calls_library.so: $(BUILD)/tests/bad_plugins/factor_library.so
$(BUILD)/tests/bad_plugins/needs_library.so: $(BUILD)/tests/bad_plugins/dependency.so
$(BUILD)/tests/bad_plugins/in_use.so: $(BUILD)/tests/bad_plugins/in_use_library.so
$(BUILD)/tests/bad_%.so: tests/bad_%.c $(wildcard tests/bad_plugins/*.h tests/bad_kernels/*.h include/tenon/*.h) $(LIB)
	@mkdir -p $(@D)
	$(call say,link    )
	$(Q)$(CC) $(filter-out -MMD -MP $(HARDEN),$(PLUGIN_CFLAGS)) -shared -Wl,-z,now $(if $(filter %/missing_symbol,$*),,-Wl,-z,defs) -o $@ $< \
	  $(BAD_LINK_$(notdir $*)) -L$(BUILD) -ltenon -lm -Wl,-rpath,'$$ORIGIN/../..'
	@chmod go-w $@ $(@D) $(ABOVE)

# Failures of the system, for the tests of faults.
$(BUILD)/tests/fault_preload.so: tests/faults/fault_preload.c tests/faults/faults.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,link    )
	$(Q)$(CC) $(filter-out -MMD -MP $(SANITIZE),$(BASE)) -fno-builtin -fexceptions $(CFLAGS) -shared -Wl,-z,defs -o $@ $<
$(addprefix $(BUILD)/tests/,test_faults test_ends): | $(BUILD)/tests/fault_preload.so $(PROGRAM) $(PLUGINS)
$(BUILD)/tests/test_faults: | $(BUILD)/tests/make_checkpoint

# PCRE2 without its compiler, for valgrind; Ctrl-C at a moment that no test would meet.
$(BUILD)/tests/no_jit.so: tests/text/no_jit.c
$(BUILD)/tests/late_interrupt.so: tests/cli/late_interrupt.c
$(BUILD)/tests/test_cli_talk: | $(BUILD)/tests/late_interrupt.so
$(BUILD)/tests/no_jit.so $(BUILD)/tests/late_interrupt.so: $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,link    )
	$(Q)$(CC) $(filter-out -MMD -MP $(SANITIZE),$(BASE)) $(CFLAGS) -shared -o $@ $(filter %.c,$^)

# Messages of MPI that are late, where MPI is (tests/machines).
$(BUILD)/tests/slow_mpi.so: tests/slow_mpi/slow_mpi.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,link    )
	$(Q)$(CC) $(filter-out -MMD -MP $(SANITIZE),$(BASE)) $(CFLAGS) -shared -o $@ $< $(shell pkg-config --cflags ompi-c)

# The simulator of an NPU's libraries, and once more without the symbols that older versions of them lack.
SIM_OBJ_ascendcl := $(call obj,$(patsubst %,tests/ascend_sim/%.c,state runtime memory stream values))
SIM_OBJ_nnopbase := $(call obj,$(patsubst %,tests/ascend_sim/%.c,objects executor))
SIM_OBJ_opapi := $(call obj,tests/ascend_sim/view.c $(wildcard tests/ascend_sim/op_*.c))
SIM_NEEDS_nnopbase := ascendcl
SIM_NEEDS_opapi := nnopbase ascendcl
$(call obj,$(wildcard tests/ascend_sim/*.c)): TEST_CFLAGS += -Iplugins/common
define sim_rule
$(BUILD)/tests/$(1)/lib$(2).so: $(filter-out $(if $(filter %_old,$(1)),%/op_newer.o),$(SIM_OBJ_$(2))) $(patsubst %,$(BUILD)/tests/$(1)/lib%.so,$(SIM_NEEDS_$(2)))
	@mkdir -p $$(@D)
	$$(call say,link    )
	$$(Q)$$(LINK) -shared -Wl,-soname,$$(@F) -Wl,-z,defs -Wl,-z,now -o $$@ $$(filter %.o,$$^) -L$$(@D) $(SIM_NEEDS_$(2):%=-l%) -lm \
	  -Wl,-rpath,'$$$$ORIGIN'
	@chmod go-w $$@ $$(@D) $$(ABOVE)
endef
$(foreach d,ascend_sim ascend_sim_old,$(foreach l,ascendcl nnopbase opapi,$(eval $(call sim_rule,$(d),$(l)))))
$(call obj,tests/support/npu_pair.c $(wildcard tests/ascend/*.c)): TEST_CFLAGS += -Iplugins/common
$(patsubst %.c,$(BUILD)/tests/%,$(notdir $(wildcard tests/ascend/test_*.c tests/ascend_sim/test_*.c))): | $(SIM_LIBS)
$(patsubst tests/ascend/%.c,$(BUILD)/tests/%,$(wildcard tests/ascend/test_*.c)): | $(PROGRAM) $(PLUGINS)

# By its own Makefile, out of tree.
$(BUILD)/tests/hello_kernel/hello_kernel.so: $(wildcard examples/hello_kernel/* include/tenon/*.h) $(LIB)
	@mkdir -p $(@D)
	$(call say,build   )
	$(Q)$(MAKE) --no-print-directory -s -B -C examples/hello_kernel OUT=$(abspath $(@D)) CC='$(CC)' CFLAGS='-O2 $(SANITIZE)' \
	  TENON_CFLAGS=-I$(abspath include) TENON_LIBS='-L$(abspath $(BUILD)) -ltenon'
	@chmod go-w $(@D) $(ABOVE)

# ---- what people ask for ----------------------------------------------------------------------

CPU_FLAGS := $(shell grep -m 1 '^flags' /proc/cpuinfo 2>/dev/null)
# A processor with tiles checks the real ones.
HAS_AMX := $(filter amx_bf16,$(CPU_FLAGS))

# Each program with its arguments, those that take longest first. The scripts check what is not code: headers, exports,
# installation, set-up. Under the sanitizers they are left out, fewer made-up sites are drawn, and of made-up cases for
# the kernels each fourth of plain C is run: the other tiers run on the golden cases there, and between guard pages
# everywhere. Models are run without the check before use, so that no kernel that it would refuse is spared the comparison; that
# check has tests of its own, at the sites of models, too (test_first_use, test_gradients). But for one whose sparse MLP
# in bf16 is a matter of that check: rounding chooses the open gates. Left out under the sanitizers are, too, the walk
# over failures, of requests, too: its library and theirs both want to come first; extreme weights and shadows of the program, which
# others try; what the kernels compute on the simulated NPU (test_ascend and test_ascend_steps run models on it); and
# under AddressSanitizer the soak, which takes ten minutes there and looks at resident memory. ascend.so brings a device
# and mpi.so a group, and no kernels. BRIEF: models as under the sanitizers, each twelfth made-up case, no made-up sites of plugins.
TOOL := $(BUILD)/tests
FEWER := $(or $(SANITIZE),$(BRIEF))
EVERY_MADE_UP := $(if $(BRIEF),12,$(if $(SANITIZE),4))
# What TENON_CPU names: the same bits in any call, in every tier but the machine's own, which is tried without it.
BATCH_CPUS := $(if $(FEWER),,$(if $(filter avx512f,$(CPU_FLAGS)),$(if $(filter avx512_fp16,$(CPU_FLAGS)),avx512bf16) avx512 avx2,$(if $(filter avx_vnni,$(CPU_FLAGS)),avx2)) c)
# In plain C and under the sanitizers, which are slow, and in BRIEF: models of several kinds of mixers, norms and experts.
SOME_MODELS := $(addprefix tests/data/models/,llama bloom qwen3_moe qwen3_next deepseek_v3 gpt_oss mamba2 lfm2_moe)
# Of each way of keeping what came before: keys, rings, states, both, chosen ones, frequencies that follow the length. Under the
# sanitizers test_engine alone looks at engines.
ENGINE_MODELS := $(addprefix tests/data/models/,llama gpt_oss lfm2_moe $(if $(FEWER),,qwen3_moe mamba2 deepseek_v32 qwen3_next deepseek_v3 falcon_h1 gemma3n_text llama_dynamic phi3_longrope))
LONGEST := $(addprefix %/,test_faults test_packages.sh test_extremes test_first_use test_ascend_grads test_api test_gradients)
longest_first = $(foreach l,$(LONGEST),$(filter $(l),$(1))) $(filter-out $(LONGEST),$(1))
CHECKS := '$(TOOL)/check_kernels$(if $(SANITIZE), --tier c)$(EVERY_MADE_UP:%= --every %)' '$(TOOL)/check_kernels tests/data/ops' \
  $(if $(HAS_AMX),,$(if $(SANITIZE),,'$(TOOL)/check_kernels --emulate') '$(TOOL)/check_kernels --emulate tests/data/ops') \
  $(if $(wildcard ../shared/quantised/blocks),'$(TOOL)/check_kernels --blocks ../shared/quantised/blocks') \
  '$(TOOL)/check_models --hidden --config tests/data/unchecked.json --without gemma3n_text tests/data/models' '$(TOOL)/check_tokenizers tests/data/tokenizers' \
  $(if $(SANITIZE),,'$(TOOL)/check_models $(if $(HAS_AMX),,--emulate )--batch tests/data/models/llama tests/data/models/qwen3_moe') \
  '$(TOOL)/check_models --batch --config tests/data/unchecked.json $(if $(FEWER),$(SOME_MODELS),tests/data/models)' \
  $(foreach cpu,$(BATCH_CPUS),'env TENON_CPU=$(cpu) $(TOOL)/check_models --batch --config tests/data/unchecked.json $(if $(filter c,$(cpu)),$(SOME_MODELS),tests/data/models)') \
  $(if $(SANITIZE),,'$(TOOL)/check_engine $(ENGINE_MODELS)') \
  '$(TOOL)/check_models --parallel tensor=2 --config tests/data/unchecked.json $(if $(FEWER),$(SOME_MODELS),tests/data/models)' \
  '$(TOOL)/check_models --parallel pipeline=2 --config tests/data/unchecked.json $(if $(FEWER),$(SOME_MODELS),tests/data/models)' \
  '$(TOOL)/check_models --parallel pipeline=2,tensor=2 --config tests/data/unchecked.json $(SOME_MODELS)' \
  '$(TOOL)/check_models --parallel pipeline=2,sums=3 --config tests/data/unchecked.json $(addprefix tests/data/models/,llama gpt_oss)' \
  '$(TOOL)/check_models --parallel tensor=3 --config tests/data/unchecked.json $(SOME_MODELS)' \
  '$(TOOL)/check_models --parallel sums=2 --config tests/data/unchecked.json $(if $(FEWER),$(SOME_MODELS),tests/data/models)' \
  '$(TOOL)/check_models --parallel sums=3 --config tests/data/unchecked.json $(SOME_MODELS)' \
  '$(TOOL)/check_models --parallel experts=2 --config tests/data/unchecked.json $(addprefix tests/data/models/,qwen3_moe deepseek_v3 gpt_oss gemma4_text_moe)' \
  '$(TOOL)/check_training $(if $(FEWER),$(SOME_MODELS),tests/data/models) --differences' \
  $(if $(wildcard ../shared/training),'$(TOOL)/check_training --formats ../shared/training/formats.json') \
  $(if $(wildcard ../shared/training),$(if $(BRIEF),,'$(TOOL)/check_training ../shared/training/cases ../shared/training/gradients --kernels none --kernels auto')) \
  '$(TOOL)/check_media tests/data/media' $(if $(wildcard ../shared/media),'$(TOOL)/check_media ../shared/media') \
  '$(TOOL)/check_grammar tests/data/schemas' '$(TOOL)/check_templates tests/data/templates' $(if $(wildcard ../shared/chat-templates),'$(TOOL)/check_templates ../shared/chat-templates') \
  $(if $(findstring address,$(SANITIZE))$(filter soak,$(WITHOUT)),,'$(TOOL)/soak $(if $(SANITIZE),1,10) $(BUILD)/plugins') \
  '$(TOOL)/check_models --hidden tests/data/models/gemma3n_text' \
  $(foreach t,$(call longest_first,$(TESTS) $(TEST_SCRIPTS)),'$t') \
  $(if $(BRIEF),,$(foreach p,$(filter-out %/ascend.so %/mpi.so,$(PLUGINS)) $(TOOL)/hello_kernel/hello_kernel.so,'$(PROGRAM) check $(if $(SANITIZE),--quick )$p'))
check: tests ## builds and runs all tests; ends with "N passed, N failed"
	@TENON_LSAN='$(LSAN)' TENON_BUILD='$(abspath $(BUILD))' PREFIX='$(PREFIX)' CC='$(CC)' MAKE='$(MAKE_COMMAND)' TEST_JOBS=$${TEST_JOBS:-$$(nproc)} tests/run.sh $(CHECKS)

# The flags of folders that have some of their own do not get in each other's way.
syntax: $(BUILD)/api/api_calls.h ## has the compiler read the C files of the tests, and writes nothing
	@printf '%s\n' $(if $(MPI),$(wildcard tests/*/*.c),$(filter-out tests/slow_mpi/%,$(wildcard tests/*/*.c))) | xargs -n 16 -P "$$(nproc)" $(CC) $(filter-out -MMD -MP,$(TEST_CFLAGS)) -Iplugins -Iplugins/common -I$(BUILD)/api $(if $(MPI),$(shell pkg-config --cflags $(MPI))) -fsyntax-only

# What is found where something may be missing (scripts/setup.sh), and what it says then.
SPARED_TESTS := $(notdir $(basename $(wildcard tests/plugin/test_*.c))) test_confine test_describe test_cli_check test_cli_kernels \
  test_cli_in_use test_cli_profile test_cli_usage \
  $(addprefix test_,$(addsuffix .sh,abi bench_peers bench_serve completion exports headers manual serve setup tidy))
check-without: tests ## builds and tests without libseccomp, graphviz, zsh, ...: what a machine may lack, hidden
	@scripts/without.sh '$(MAKE_COMMAND)' $(BUILD)/without $(BUILD) $(SPARED_TESTS)

reproducible: ## builds twice in two folders, and compares the files byte by byte
	@scripts/reproducible.sh '$(MAKE_COMMAND)' $(BUILD)/reproducible CC='$(CC)' OPT='$(OPT)'

# What this does to the system it does to a folder of its own.
bare: ## both commands of the README in a bare Debian made for them, as root; ends with "N passed, N failed"
	@scripts/bare.sh $(BUILD)/bare

# Leaks count as failures. Suppressions, each with its reason: tests/sanitizers.supp.
SANITIZERS := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=undefined,float-cast-overflow -fno-omit-frame-pointer
asan: ## all tests again under AddressSanitizer and UndefinedBehaviorSanitizer
	@ASAN_OPTIONS=detect_leaks=1:$$ASAN_OPTIONS LSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitizers.supp:print_suppressions=0 \
	  UBSAN_OPTIONS=print_stacktrace=1 $(MAKE) BUILD=$(BUILD)/asan OPT=-O1 CFLAGS=-g1 SANITIZE='$(SANITIZERS)' check

# Suppressions, each with its reason: tests/tsan.supp.
tsan: ## all tests again under ThreadSanitizer
	@scripts/tsan.sh '$(MAKE_COMMAND)' $(BUILD)/tsan

# The tests of reading what others wrote: checkpoints, dictionaries, templates, plugins. Suppressions: tests/valgrind.supp.
# At the end of a process the C library is not asked to free what it holds: it would write streams of the program out in
# children that end without that.
VALGRIND := env LD_PRELOAD=$(abspath $(BUILD))/tests/no_jit.so \
  valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect \
  --errors-for-leak-kinds=definite --run-libc-freeres=no --run-cxx-freeres=no --suppressions=$(CURDIR)/tests/valgrind.supp
READERS := base checkpoint bad_models dataset fuzz pictures sounds text template plugin
valgrind: tests $(BUILD)/tests/no_jit.so ## the tests that read files and open plugins, under valgrind
	@command -v valgrind >/dev/null 2>&1 || { echo 'valgrind is not installed (scripts/setup.sh --optional)'; exit 1; }
	@TENON_BUILD='$(abspath $(BUILD))' TEST_WITH='$(VALGRIND)' TEST_SECONDS=6000 CK_TIMEOUT_MULTIPLIER=16 TEST_JOBS=$${TEST_JOBS:-$$(nproc)} tests/run.sh \
	  $(patsubst %.c,$(TOOL)/%,$(notdir $(foreach d,$(READERS),$(wildcard tests/$d/test_*.c))))

# LeakSanitizer by itself, which a program that was built without it can be given; with clang it is gcc's, too.
LSAN = $(wildcard $(shell gcc -print-file-name=liblsan.so 2>/dev/null))

# One part of the walk for each processor, all at once. ONLY='run malloc': this command, and kind of calls. EVERY=yes:
# every call, where otherwise those of one path are tried once or twice.
FAULT_PARTS = $(shell nproc)
faults: tests ## every failure of the system below, at every place; an hour or more; ONLY='run malloc', EVERY=yes
	@seq 0 $$(($(FAULT_PARTS) - 1)) | TENON_LSAN='$(LSAN)' TENON_BUILD='$(abspath $(BUILD))' xargs -P $(FAULT_PARTS) -I PART \
	  $(TOOL)/test_faults $(if $(EVERY),--every,--all) --part PART/$(FAULT_PARTS) $(ONLY)

arm64: ## builds for AArch64 and checks kernels and models under emulation (qemu-user)
	@scripts/arm64.sh $(BUILD)/arm64

bench: tests ## measures kernels and models on this machine
	@scripts/bench.sh $(BUILD)

npu-count: all $(TOOL)/make_checkpoint $(TOOL)/npu_count $(SIM_LIBS) ## counts what an Ascend device would be asked to do for a token and a prompt, on its simulator
	@scripts/npu_count.sh $(BUILD)

npu-try: all $(TOOL)/check_kernels $(TOOL)/check_models ## for a machine with an Ascend chip: everything to run there, and one log to send back; QUICK=1 for less
	@scripts/npu_try.sh $(BUILD)

bench-kernels: tests ## times the kernels against the machine's ceilings, and writes the tables of docs/performance.md
	@scripts/bench_kernels.sh $(BUILD)

# ARGS: what scripts/bench_peers/run.py --help has, such as ARGS='--models qwen3-0.6b --rounds 1'.
bench-peers: all $(TOOL)/make_checkpoint $(TOOL)/measure_machine ## measures beside llama.cpp, OpenVINO and torch, installed in build/; writes docs/performance.md
	@scripts/bench_peers.sh $(BUILD) --write docs/performance.md $(ARGS)

# ARGS: what scripts/bench_train/run.py --help has, such as ARGS='--models qwen3-0.6b --rounds 1'.
bench-train: all $(TOOL)/make_checkpoint ## measures training beside torch and peft, installed in build/; writes docs/performance.md
	@scripts/bench_train.sh $(BUILD) --write docs/performance.md $(ARGS)

# ARGS: what scripts/bench_serve/run.py --help has, such as ARGS='--models qwen3-0.6b --streams 1,16'.
bench-serve: all $(TOOL)/make_checkpoint $(TOOL)/measure_machine $(TOOL)/check_grammar ## measures tenon serve beside llama-server and OpenVINO, installed in build/; writes docs/performance.md
	@scripts/bench_serve.sh $(BUILD) --write docs/performance.md $(ARGS)

# ARGS: what scripts/bench_machines/run.py --help has, such as ARGS='--models qwen3-0.6b --rounds 1'.
bench-machines: all $(TOOL)/make_checkpoint $(TOOL)/measure_messages $(SLOW_MPI) ## measures a model cut over two ranks beside one process, and with delays of networks; writes docs/performance.md
	@scripts/bench_machines.sh $(BUILD) --write docs/performance.md $(ARGS)

# ARGS: what scripts/bench_python/run.py --help has, such as ARGS='--lines norm512,mlp512 --ways eager,tenon'.
bench-python: python $(TOOL)/measure_machine ## times kernels in live models beside torch and torch.compile, installed in build/; writes docs/performance.md
	@scripts/bench_python.sh $(BUILD) --write docs/performance.md $(ARGS)

# ARGS: what scripts/bench_tokenizers.py --help has, such as ARGS='--tokenizer FOLDER --write docs/performance.md'.
bench-tokenizers: $(LIB) ## times the tokenizer beside the package tokenizers, installed in build/
	@scripts/bench_tokenizers.sh $(BUILD) $(ARGS)

# What cases of other people's clients take: python run.py ... of such a folder of cases.
serve-py: ## a Python with the clients that the server is tried with, in build/serve-py
	@python3 -m venv $(BUILD)/serve-py && $(BUILD)/serve-py/bin/pip -q install openai httpx pytest numpy jsonschema langchain-openai

SECONDS ?= 3600
soak: all $(TOOL)/soak ## works for SECONDS in one process, and serves clients that vanish: memory stays flat, answers stay the same
	@$(TOOL)/soak $(SECONDS) $(BUILD)/plugins
	@[ ! -x $(BUILD)/tenon-serve ] || python3 tests/build/serve_soak.py $(SECONDS) $(BUILD)/tenon models/demo

# What it finds goes to tests/data/fuzz, where the tests replay it. SECONDS: for each of NAMES, which FUZZ_SECONDS is, too.
FUZZ_NAMES := $(filter-out $(if $(HTTP),,http),$(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c)))
NAMES ?= $(FUZZ_NAMES)
FUZZ_SECONDS ?= $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),60)
fuzz: ## searches for files that break a reader, with clang; SECONDS=60 each, NAMES='tokenizer ...'
	@scripts/fuzz.sh '$(MAKE_COMMAND)' $(BUILD)/fuzz $(FUZZ_SECONDS) $(NAMES)
fuzzers: $(FUZZ_NAMES:%=$(BUILD)/fuzz_%)
$(BUILD)/fuzz_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $(CORE_OBJ)
	$(call say,link    )
	$(Q)$(LINK) $(FUZZ_LINK) -rdynamic -o $@ $(filter %.o,$^) $(PKG_LIBS) -lm

coverage: ## which lines of core the tests run, with clang; FOLDERS='text plugin' runs those of tests/ only
	@scripts/coverage.sh '$(MAKE_COMMAND)' $(BUILD)/coverage $(FOLDERS)

lint: ## looks through core, cli, serve, plugins and the Python package with cppcheck
	@scripts/lint.sh $(BUILD)/lint
lint-tidy: ## the same with clang-tidy (.clang-tidy), and the examples; FILES='core/text/*.c' for some
	@CC='$(CC)' scripts/tidy.sh $(BUILD)/lint-tidy '$(PKG_CFLAGS)' $(FILES)
