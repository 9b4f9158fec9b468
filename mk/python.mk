# The Python package. Part of the Makefile. An extension module by CPython's limited API, which any Python from 3.10 on
# loads, beside the library, the program and the plugins in lib/.

PYTHON ?= python3
PACKAGE := $(BUILD)/python/tenon
PACKAGE_FILES := $(wildcard python/tenon/*.py python/tenon/*.pyi python/tenon/py.typed)
EXTENSION := $(PACKAGE)/_tenon.abi3.so
# Asked for once, and only where it is needed.
PYTHON_HEADERS = $(eval PYTHON_HEADERS := $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))'))$(PYTHON_HEADERS)

# CPython keeps functions as pointers to data, which ISO C does not know.
$(BUILD)/obj/python/%.o: python/%.c $(BUILD)/flags $(BUILD)/places
	@mkdir -p $(@D)
	@[ -f $(PYTHON_HEADERS)/Python.h ] || { echo 'tenon: the headers of Python are missing; install python3-dev (scripts/setup.sh --optional)' >&2; exit 1; }
	$(call say,compile )
	$(Q)$(CC) $(filter-out -Wpedantic,$(BASE)) $(HARDEN) -isystem $(PYTHON_HEADERS) $(PLACES) $(CFLAGS) -c $< -o $@
$(EXTENSION): $(call obj,$(wildcard python/src/*.c)) | $(LIB)
	@mkdir -p $(@D)
	$(call say,link    )
	$(Q)$(LINK) -shared $(HARDEN_LINK) -o $@ $^ -L$(BUILD) -ltenon -lm -Wl,-rpath,'$$ORIGIN/lib'

# As it lies in a wheel, but of links: what is changed in python/tenon is there at once.
python: all $(EXTENSION) ## the Python package in build/python, which PYTHONPATH may name
	@ln -sfn $(abspath $(PACKAGE_FILES)) $(PACKAGE)
	@ln -sfn $(abspath $(BUILD)) $(PACKAGE)/lib
	@ln -sfn $(abspath include) $(PACKAGE)/include

PACKAGE_TO ?= $(BUILD)/package/tenon
python-package: all $(EXTENSION)
	install -d $(PACKAGE_TO)/lib/plugins $(PACKAGE_TO)/include/tenon
	install -m 644 $(PACKAGE_FILES) $(PACKAGE_TO)
	install -m 644 include/tenon/*.h $(PACKAGE_TO)/include/tenon
	install -m 755 $(PLUGINS) $(PACKAGE_TO)/lib/plugins
	for file in $(PROGRAM) $(SERVER) $(BUILD)/libtenon.so.$(SOMAJOR) $(EXTENSION); do \
	  $(OBJCOPY) --strip-debug $$file $(PACKAGE_TO)/lib/$${file##*/} || exit; done
	mv $(PACKAGE_TO)/lib/$(notdir $(EXTENSION)) $(PACKAGE_TO)

check-python: ## builds the wheel, installs it into an environment of its own and tests it there; pytest is from PyPI
	@scripts/python.sh $(BUILD) '$(PYTHON)'
