#!/bin/sh
# make install into a folder: what is there works from there, with pkg-config and nothing of this tree; make uninstall
# takes it away again and leaves plugins of others.
. tests/build/lib.sh
root=$tmp/root$PREFIX
make=${MAKE:-make}

in_tree() {
    "$make" SETUP=no BUILD="$build" PREFIX="$PREFIX" DESTDIR="$tmp/root" "$@"
}
pkg() {
    PKG_CONFIG_PATH=$root/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$tmp/root pkg-config "$@" tenon
}
build_plugin() {
    "$make" -C "$tmp/src/hello_kernel" TENON_CFLAGS="$(pkg --cflags)" TENON_LIBS="$(pkg --libs)" OUT="$tmp"
}
build_program() {
    # shellcheck disable=SC2046
    "$cc" -std=c17 -O2 -Wall -Wextra -Wpedantic -Werror -o "$tmp/embed" "$tmp/src/embed.c" $(pkg --cflags --libs)
}
installed() {
    "$root/bin/tenon" kernels --config "$root/etc/tenon/kernels.json" "$@"
}
lists() {
    installed --json >"$tmp/list" && grep -q "\"$1\"" "$tmp/list" || { cat "$tmp/list"; false; }
}
gone() {
    (cd "$root" && find . -type f -o -type l) >"$tmp/rest"
    echo ./lib/tenon/plugins/hello_kernel.so | diff - "$tmp/rest"
}

check 'make install' in_tree install
for file in lib/libtenon.so lib/libtenon.so.0 include/tenon/tenon.h include/tenon/kernel.h lib/pkgconfig/tenon.pc \
    etc/tenon/kernels.json bin/tenon share/man/man1/tenon.1; do
    check "$file is installed" test -e "$root/$file"
done
check 'nothing installed is writable to others' sh -c "[ -z \"\$(find '$tmp/root' ! -type l -perm /022)\" ]"
check 'pkg-config knows the version' test "$(pkg --modversion)" = "$(sed -n 's/.*TN_VERSION "\(.*\)"/\1/p' include/tenon/tenon.h)"
for plugin in "$build"/plugins/*.so; do
    [ -e "$plugin" ] && check "$(basename "$plugin") is installed" cmp "$plugin" "$root/lib/tenon/plugins/$(basename "$plugin")"
done
check 'the installed program finds the installed plugins' lists npu_fused_rmsnorm

# Out of the tree: only the installed headers and library are in reach.
mkdir "$tmp/src"
cp -r examples/embed.c examples/hello_kernel "$tmp/src"
check 'examples/hello_kernel builds against the installation' build_plugin
check 'examples/embed.c builds against the installation' build_program
check 'it runs the demo model' env LD_LIBRARY_PATH="$root/lib" "$tmp/embed" models/demo "$root/lib/tenon/plugins" 'And it came'
cp "$tmp/hello_kernel.so" "$root/lib/tenon/plugins/"
check 'a plugin dropped into the folder is listed' lists example_fused_rmsnorm
check 'make uninstall' in_tree uninstall
check 'make uninstall leaves only the plugin that it did not install' gone
finish
