#!/bin/sh
# What libtenon.so exports is a decision: its dynamic symbols are those of tests/data/exports.txt. Plugins export none.
. tests/build/lib.sh

symbols() {
    nm -D --defined-only "$1" | awk '{ print $3 }' | grep -v '^_\(init\|fini\|edata\|end\|_bss_start\)$' | LC_ALL=C sort
}

same() {
    symbols "$build/libtenon.so" >"$tmp/exports.txt"
    diff -u tests/data/exports.txt "$tmp/exports.txt"
}
nothing() {
    [ -z "$(symbols "$1")" ] || { symbols "$1"; false; }
}

# After a change that is meant: nm -D --defined-only build/libtenon.so | awk '{print $3}' | sort > tests/data/exports.txt
check 'libtenon.so exports what tests/data/exports.txt lists' same
for plugin in "$build"/plugins/*.so; do
    [ -e "$plugin" ] && check "$(basename "$plugin") exports nothing" nothing "$plugin"
done
finish
