#!/bin/sh
# make install into a folder: what is there works from there, built by the lines that the guide and the examples give,
# with nothing of this tree, and found without ldconfig and LD_LIBRARY_PATH; make uninstall takes it away again and
# leaves what is not its own.
. tests/build/lib.sh
unset LD_LIBRARY_PATH
root=$tmp/root$PREFIX doc=$tmp/root$PREFIX/share/doc/tenon settings=$tmp/root$PREFIX/etc/tenon/kernels.json
make=${MAKE:-make}

# What was built, in a folder that may change.
copy=$tmp/build
mkdir -p "$copy/obj" && cp -a "$build"/flags "$build"/places "$build"/libtenon.so* "$build/tenon" "$build/plugins" "$copy" &&
    cp -a "$build/obj/core" "$build/obj/cli" "$build/obj/plugins" "$copy/obj"
in_tree() {
    "$make" SETUP=no BUILD="$copy" PREFIX="$PREFIX" LIBDIR="$PREFIX/lib" SYSCONFDIR="$PREFIX/etc" DESTDIR="$tmp/root" "$@"
}
# What stands before an author: cc, and a pkg-config for which the installation is where DESTDIR has put it.
mkdir "$tmp/bin" "$tmp/src"
printf '#!/bin/sh\nexec %s "$@"\n' "$cc" >"$tmp/bin/cc"
printf '#!/bin/sh\nexec %s --define-variable=prefix="%s" "$@"\n' "$(command -v pkg-config)" "$root" >"$tmp/bin/pkg-config"
chmod 755 "$tmp/bin/cc" "$tmp/bin/pkg-config"
outside() { # COMMAND: a line of shell, in a folder of its own
    (cd "$tmp/src" && PATH=$tmp/bin:$PATH PKG_CONFIG_PATH=$root/lib/pkgconfig sh -ec "$1")
}
documented() { # FILE: the compiler's line in it, which may go on behind backslashes
    line=$(sed -n -e 's/^[ *]*\(cc .*\)/\1/' -e '/^cc /{' -e ':more' -e '/\\$/{' -e 'N' -e 'b more' -e '}' -e 'p' -e 'q' -e '}' "$1")
    echo "$line"
    [ -n "$line" ] && outside "$line"
}
installed() {
    "$root/bin/tenon" kernels --config "$settings" "$@"
}
lists() {
    installed --json >"$tmp/list" && grep -q "\"$1\"" "$tmp/list" || { cat "$tmp/list"; false; }
}
left() { # FILE...: all that is in the installation
    (cd "$root" && find . -type f -o -type l) | LC_ALL=C sort >"$tmp/rest"
    printf './%s\n' "$@" | diff - "$tmp/rest"
}

check 'make install' in_tree install
for file in lib/libtenon.so lib/libtenon.so.0 include/tenon/tenon.h include/tenon/kernel.h lib/pkgconfig/tenon.pc \
    etc/tenon/kernels.json bin/tenon share/man/man1/tenon.1 share/bash-completion/completions/tenon share/zsh/site-functions/_tenon; do
    check "$file is installed" test -e "$root/$file"
done
for file in docs/*.md; do
    check "$file is installed" cmp "$file" "$doc/$(basename "$file")"
done
for file in examples/*.c examples/*.py examples/*/*; do
    case $file in *.so | *.o) continue ;; esac
    check "$file is installed" cmp "$file" "$doc/$file"
done
check 'nothing installed is writable to others' sh -c "[ -z \"\$(find '$tmp/root' ! -type l -perm /022)\" ]"
check 'pkg-config knows the version' \
    test "$(outside 'pkg-config --modversion tenon')" = "$(sed -n 's/.*TN_VERSION "\(.*\)"/\1/p' include/tenon/tenon.h)"
for plugin in "$build"/plugins/*.so; do
    [ -e "$plugin" ] && check "$(basename "$plugin") is installed" cmp "$plugin" "$root/lib/tenon/plugins/$(basename "$plugin")"
done
check 'the installed program finds the installed plugins' lists npu_fused_rmsnorm

# The loader looks into /usr/lib by itself, but not into one below DESTDIR.
case $PREFIX in /usr | '') export LD_LIBRARY_PATH="$root/lib" ;; *)
    check 'tenon.pc gives a run path' grep -q -- '-Wl,-rpath,${libdir}' "$root/lib/pkgconfig/tenon.pc" ;;
esac
for source in "$doc"/examples/*.c; do
    cp "$source" "$tmp/src"
    check "$(basename "$source") builds by the line in it" documented "$source"
done
check 'embed runs the demo model' "$tmp/src/embed" models/demo "$root/lib/tenon/plugins" 'And it came'
check 'grouped_matmul runs' "$tmp/src/grouped_matmul" "$root/lib/tenon/plugins"
cp "$doc/examples/hello_kernel/hello_kernel.c" "$tmp/src/my_kernels.c"
check 'a plugin builds by the line of docs/writing-a-kernel.md' documented "$doc/writing-a-kernel.md"
chmod go-w "$tmp/src/my_kernels.so"
cp "$tmp/src/my_kernels.so" "$root/lib/tenon/plugins/"
check 'dropped into the folder it is listed' lists example_fused_rmsnorm
check 'the installed program checks what was built' "$root/bin/tenon" check "$tmp/src/my_kernels.so" --quick
check 'examples/hello_kernel builds by its Makefile' outside "'$make' -C '$doc/examples/hello_kernel' OUT='$tmp'"

# An edited kernels.json is the user's.
sed 's/first-use/always/' conf/kernels.json >"$tmp/edited"
cp "$tmp/edited" "$settings"
check 'make install over it' in_tree install
check 'an edited kernels.json stays' cmp "$tmp/edited" "$settings"
check 'ours lies beside it' cmp conf/kernels.json "$settings.new"
check 'make uninstall' in_tree uninstall
check 'make uninstall leaves what it did not install' left etc/tenon/kernels.json lib/tenon/plugins/my_kernels.so
rm "$root/lib/tenon/plugins/my_kernels.so"
cp conf/kernels.json "$settings"
check 'make install once more' in_tree install
check 'an unchanged kernels.json has nothing beside it' test ! -e "$settings.new"
check 'make uninstall once more' in_tree uninstall
check 'nothing is left' test -z "$(find "$tmp/root" -type f -o -type l)"

# Other places than before, and other flags: only what knows the places changes.
other=$tmp/other/opt/tenon
elsewhere() {
    touch "$tmp/before"
    CFLAGS=-O1 "$make" SETUP=no BUILD="$copy" PREFIX=/opt/tenon LIBDIR=/opt/tenon/lib64 SYSCONFDIR=/etc DESTDIR="$tmp/other" "$@"
}
built() { # [FILE...]: all that is newer than the last call
    (cd "$copy" && find . -type f ! -name '*.d' -newer "$tmp/before") | LC_ALL=C sort >"$tmp/newer"
    for file; do echo "$file"; done | diff - "$tmp/newer"
}
finds() { # CONFIG
    "$other/bin/tenon" kernels --config "$1" --json >"$tmp/list" && grep "$other/lib64/tenon/plugins/npu_rmsnorm.so" "$tmp/list"
}
check 'make install into other places' elsewhere install
# shellcheck disable=SC2046 # one word or none
check 'builds what knows them' built "./$(basename "$build"/libtenon.so.*.*)" ./obj/cli/open.o ./obj/core/plugin/kernels_config_read.o ./places ./tenon \
    $([ ! -e "$build/tenon-serve" ] || echo ./tenon-serve)
check 'make install there once more' elsewhere install
check 'builds nothing' built
check 'tenon.pc has LIBDIR' test "$(PKG_CONFIG_PATH=$other/lib64/pkgconfig pkg-config --variable=plugindir tenon)" = /opt/tenon/lib64/tenon/plugins
check 'kernels.json in SYSCONFDIR names the plugins in LIBDIR' finds "$tmp/other/etc/tenon/kernels.json"
echo '{}' >"$tmp/empty.json"
check 'the program finds them without it' finds "$tmp/empty.json"
check 'the library looks for it in SYSCONFDIR' grep -aq '[^a-z]/etc/tenon/kernels.json' "$other/lib64/libtenon.so.0"
check 'nothing is where LIBDIR and SYSCONFDIR are by themselves' test ! -e "$other/lib" -a ! -e "$other/etc"
check 'make uninstall from there' elsewhere uninstall
check 'nothing is left there' test -z "$(find "$tmp/other" -type f -o -type l)"
finish
