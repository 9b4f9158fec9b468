# Where what was built goes. Part of the Makefile.

# Programs that link the library find it without ldconfig: by a run path, unless the loader looks there by itself.
RUN_PATH := $(if $(filter /lib /lib64 /usr/lib /usr/lib64,$(PREFIX)/lib),,-Wl,-rpath,$${libdir} )
DOCS := LICENSE SECURITY.md $(wildcard docs/*.md)
EXAMPLE_FILES := $(wildcard examples/*.c examples/*/*.c examples/*/Makefile examples/*/README.md)
DOC := share/doc/tenon
# Where the shells look for completion by themselves.
COMPLETION_BASH := share/bash-completion/completions/tenon
COMPLETION_ZSH := share/zsh/site-functions/_tenon
TO := $(DESTDIR)$(PREFIX)

install: all ## installs to DESTDIR/PREFIX; an edited kernels.json stays
	install -d $(addprefix $(TO)/,bin include/tenon lib/pkgconfig lib/tenon/plugins etc/tenon share/man/man1 \
	  $(dir $(COMPLETION_BASH) $(COMPLETION_ZSH))) \
	  $(addprefix $(TO)/$(DOC)/,$(sort $(dir $(EXAMPLE_FILES))))
	install -m 755 $(LIB) $(TO)/lib
	ln -sf $(notdir $(LIB)) $(TO)/lib/libtenon.so.$(SOMAJOR)
	ln -sf $(notdir $(LIB)) $(TO)/lib/libtenon.so
	install -m 755 $(PROGRAM) $(TO)/bin
	install -m 644 include/tenon/*.h $(TO)/include/tenon
	install -m 755 $(PLUGINS) $(TO)/lib/tenon/plugins
	install -m 644 docs/tenon.1 $(TO)/share/man/man1
	install -m 644 conf/completion/tenon.bash $(TO)/$(COMPLETION_BASH)
	install -m 644 conf/completion/_tenon $(TO)/$(COMPLETION_ZSH)
	install -m 644 $(DOCS) $(TO)/$(DOC)
	@for file in $(EXAMPLE_FILES); do install -m 644 $$file $(TO)/$(DOC)/$$file || exit; done
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@RUN_PATH@|$(RUN_PATH)|' conf/tenon.pc.in \
	  > $(TO)/lib/pkgconfig/tenon.pc
	chmod 644 $(TO)/lib/pkgconfig/tenon.pc
	@cd $(TO)/etc/tenon && rm -f kernels.json.new && \
	  if [ ! -e kernels.json ] || cmp -s $(CURDIR)/conf/kernels.json kernels.json; then new=kernels.json; \
	  else new=kernels.json.new && echo "$(PREFIX)/etc/tenon/kernels.json was edited and stays; ours is $$new beside it"; fi && \
	  install -m 644 $(CURDIR)/conf/kernels.json $$new

uninstall: ## removes what install put there; other plugins and an edited kernels.json stay
	cd $(TO) && rm -rf include/tenon $(DOC) && rm -f bin/tenon lib/libtenon.so* lib/pkgconfig/tenon.pc \
	  etc/tenon/kernels.json.new share/man/man1/tenon.1 $(COMPLETION_BASH) $(COMPLETION_ZSH) $(addprefix lib/tenon/plugins/,$(notdir $(PLUGINS)))
	cd $(TO) && { ! cmp -s $(CURDIR)/conf/kernels.json etc/tenon/kernels.json || rm -f etc/tenon/kernels.json; }
	-cd $(TO) && rmdir lib/tenon/plugins lib/tenon etc/tenon 2>/dev/null
