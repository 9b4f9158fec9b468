#!/bin/sh
# What is handed on: make dist, the tree of the last commit.
. tests/build/lib.sh
make=${MAKE:-make}
git rev-parse -q --verify HEAD >"$tmp/head" 2>/dev/null || {
    echo 'SKIPPED make dist: git is not installed, or this is no repository of its'
    finish
}

dist() { # FOLDER MASK ZONE
    (umask "$2" && TZ=$3 GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=tar.umask GIT_CONFIG_VALUE_0=$2 "$make" SETUP=no BUILD="$tmp/$1" dist)
}
version=$(sed -n 's/.*TN_VERSION "\(.*\)"/\1/p' include/tenon/tenon.h)
tarball=tenon-$version.tar.gz
check 'make dist' dist one 022 UTC
check 'make dist elsewhere' dist two 077 Asia/Kathmandu
check 'the bytes are the same' cmp "$tmp/one/$tarball" "$tmp/two/$tarball"
git ls-tree -r --name-only HEAD | sed "s|^|tenon-$version/|" | LC_ALL=C sort >"$tmp/tracked"
tar -tzf "$tmp/one/$tarball" | grep -v '/$' | LC_ALL=C sort >"$tmp/packed"
check 'it holds what the commit holds' diff "$tmp/tracked" "$tmp/packed"
finish
