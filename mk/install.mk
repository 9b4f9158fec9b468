# Where what was built goes. Part of the Makefile.

# Programs that link the library find it without ldconfig: by a run path, unless the loader looks there by itself.
RUN_PATH := $(if $(filter $(foreach folder,/lib /usr/lib,$(folder) $(folder)64 $(folder)/$(MACHINE)),$(LIBDIR)),,-Wl,-rpath,$${libdir} )
DOCS := LICENSE SECURITY.md $(wildcard docs/*.md)
EXAMPLE_FILES := $(wildcard examples/*.c examples/*.py examples/*/*.c examples/*/Makefile examples/*/README.md)
DOC := share/doc/tenon
# Where the shells look for completion by themselves.
COMPLETION_BASH := share/bash-completion/completions/tenon
COMPLETION_ZSH := share/zsh/site-functions/_tenon
TO := $(DESTDIR)$(PREFIX)
LIB_TO := $(DESTDIR)$(LIBDIR)
CONF_TO := $(DESTDIR)$(SYSCONFDIR)/tenon
# kernels.json with the folder of the plugins as seen from its own.
OUR_CONF = sed 's|\.\./\.\./lib|$(call way,$(SYSCONFDIR)/tenon,$(LIBDIR))|' conf/kernels.json

install: all ## installs what is built below DESTDIR, into PREFIX, LIBDIR and SYSCONFDIR; an edited kernels.json stays
	install -d $(addprefix $(TO)/,bin include/tenon share/man/man1 \
	  $(dir $(COMPLETION_BASH) $(COMPLETION_ZSH))) $(LIB_TO)/pkgconfig $(LIB_TO)/tenon/plugins $(CONF_TO) \
	  $(addprefix $(TO)/$(DOC)/,$(sort $(dir $(EXAMPLE_FILES))))
	install -m 755 $(LIB) $(LIB_TO)
	ln -sf $(notdir $(LIB)) $(LIB_TO)/libtenon.so.$(SOMAJOR)
	ln -sf $(notdir $(LIB)) $(LIB_TO)/libtenon.so
	install -m 755 $(PROGRAM) $(SERVER) $(TO)/bin
	install -m 644 include/tenon/*.h $(TO)/include/tenon
	install -m 755 $(PLUGINS) $(LIB_TO)/tenon/plugins
	$(if $(MPI_LIB),install -d $(LIB_TO)/tenon/plugins/mpi && install -m 755 $(MPI_LIB) $(LIB_TO)/tenon/plugins/mpi)
	install -m 644 docs/tenon.1 $(TO)/share/man/man1
	$(if $(SERVER),ln -sf tenon.1 $(TO)/share/man/man1/tenon-serve.1)
	install -m 644 conf/completion/tenon.bash $(TO)/$(COMPLETION_BASH)
	install -m 644 conf/completion/_tenon $(TO)/$(COMPLETION_ZSH)
	install -m 644 $(DOCS) $(TO)/$(DOC)
	@for file in $(EXAMPLE_FILES); do install -m 644 $$file $(TO)/$(DOC)/$$file || exit; done
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|' \
	  -e 's|@VERSION@|$(VERSION)|' -e 's|@RUN_PATH@|$(RUN_PATH)|' conf/tenon.pc.in >$(LIB_TO)/pkgconfig/tenon.pc
	chmod 644 $(LIB_TO)/pkgconfig/tenon.pc
	@rm -f $(CONF_TO)/kernels.json.new
	@if [ ! -e $(CONF_TO)/kernels.json ] || $(OUR_CONF) | cmp -s - $(CONF_TO)/kernels.json; then new=kernels.json; \
	  else new=kernels.json.new && echo "$(SYSCONFDIR)/tenon/kernels.json was edited and stays; ours is $$new beside it"; fi && \
	  $(OUR_CONF) >$(CONF_TO)/$$new && chmod 644 $(CONF_TO)/$$new

uninstall: ## removes what install put there; other plugins and an edited kernels.json stay
	cd $(TO) && rm -rf include/tenon $(DOC) && rm -f bin/tenon bin/tenon-serve share/man/man1/tenon.1 share/man/man1/tenon-serve.1 $(COMPLETION_BASH) $(COMPLETION_ZSH)
	cd $(LIB_TO) && rm -f libtenon.so* pkgconfig/tenon.pc $(addprefix tenon/plugins/,$(notdir $(PLUGINS)) mpi/open_mpi.so)
	rm -f $(CONF_TO)/kernels.json.new
	$(OUR_CONF) | cmp -s - $(CONF_TO)/kernels.json && rm -f $(CONF_TO)/kernels.json || :
	-rmdir $(LIB_TO)/tenon/plugins/mpi $(LIB_TO)/tenon/plugins $(LIB_TO)/tenon $(CONF_TO) 2>/dev/null

# By the time and the modes of the commit, whatever the settings of git and the mask of new files are here.
DIST := $(BUILD)/tenon-$(VERSION).tar.gz
dist: ## build/tenon-VERSION.tar.gz: the tree of the last commit, the same bytes each time
	@mkdir -p $(BUILD)
	git -c tar.umask=022 -c tar.tar.gz.command='gzip -cn' archive --format=tar.gz --prefix=tenon-$(VERSION)/ -o $(DIST) HEAD

deb: dist ## packages for Debian of the last commit, in build/deb/, judged by lintian
	@scripts/deb.sh $(DIST) $(BUILD)/deb

deb-bare: deb ## the same, installed and tried in a bare Debian made for them, as root; ends with "N passed, N failed"
	@scripts/bare.sh $(BUILD)/bare $(BUILD)/deb
