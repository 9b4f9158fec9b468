#!/bin/sh
# What libtenon.so exports is a decision: its dynamic symbols are those of tests/data/exports.txt. Plugins export none, and
# have no thread-local variables: what changes in one from call to call, the check of a kernel refuses.
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

stateless() {
    ! readelf -sW "$1" | awk '$4 == "TLS" && $7 != "UND"' | grep .
}

# After a change that is meant: nm -D --defined-only build/libtenon.so | awk '{print $3}' | sort > tests/data/exports.txt
check 'libtenon.so exports what tests/data/exports.txt lists' same
for plugin in "$build"/plugins/*.so; do
    [ -e "$plugin" ] || continue
    check "$(basename "$plugin") exports nothing" nothing "$plugin"
    check "$(basename "$plugin") has no thread-local variables" stateless "$plugin"
done
finish
