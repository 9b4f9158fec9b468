#!/bin/sh
# Builds the library, the program and the plugins twice, in two folders that differ in place and length, under another
# language, time zone, mask of new files and number of jobs, and compares the files byte by byte. Ends with "N passed, N failed".
# usage: scripts/reproducible.sh MAKE FOLDER [VARIABLE=VALUE...]     variables of make, for both
set -u
make=$1
mkdir -p "$2" || exit 1
folder=$(cd "$2" && pwd)
shift 2
one=$folder/one two=$folder/another/folder/with/a/longer/name
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM HUP

# What the build reads, as it lies here.
copy() {
    rm -rf "$1" && mkdir -p "$1" && cp -R Makefile mk include core cli plugins examples tests scripts conf docs LICENSE "$1"
}
copy "$one" && copy "$two" || exit 1
(umask 022 && LC_ALL=C TZ=UTC $make -C "$one" SETUP=no BUILD=build -s -j"$(nproc)" "$@" all) || exit 1
(umask 027 && LC_ALL=C.UTF-8 TZ=Asia/Kathmandu $make -C "$two" SETUP=no BUILD=build -s -j1 "$@" all) || exit 1
passed=0 failed=0
for file in "$one"/build/libtenon.so.*.* "$one"/build/tenon "$one"/build/plugins/*.so; do
    name=${file#"$one"/}
    if cmp "$file" "$two/$name"; then
        passed=$((passed + 1))
        sha256sum "$file" | sed "s|  .*|  $name|"
    else
        failed=$((failed + 1))
        echo "FAILED $name differs between two folders"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
