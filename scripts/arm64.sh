#!/bin/sh
# Builds everything for AArch64 and checks the kernels (NEON and plain C) and whole models under emulation. The
# libraries come from Debian's arm64 packages, unpacked into a folder of the build: nothing is added to the system but
# the cross compiler and qemu. Where these cannot be had, says SKIPPED. Ends with "N passed, N failed".
# usage: scripts/arm64.sh BUILD
set -u
build=$1
root=$(cd "$build" 2>/dev/null && pwd || { mkdir -p "$build" && cd "$build" && pwd; }) || exit 1
apt=$root/apt sysroot=$root/sysroot

skip() {
    echo "SKIPPED AArch64: $1"
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
}

# Packages of another architecture, chosen by apt-get but with lists, cache and status of their own.
fetch() {
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$sysroot" && : >"$apt/status" || return 1
    set -- -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$apt/state" \
        -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=root
    apt-get "$@" update >/dev/null &&
        apt-get "$@" -y --no-install-recommends --download-only install libc6-dev libgomp1 libstdc++6 libltdl-dev \
            libjansson-dev check libdnnl-dev libpcre2-dev libutf8proc-dev zlib1g-dev libelf-dev libssl-dev \
            libedit-dev libpng-dev libjpeg-dev libwebp-dev libsndfile1-dev libsoxr-dev >/dev/null || return 1
    for package in "$apt"/cache/archives/*.deb; do
        dpkg -x "$package" "$sysroot" || return 1
    done
    touch "$sysroot/complete"
}

[ "$(uname -m)" = aarch64 ] && skip 'this machine is one; make check has done it'
command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || skip 'its libraries come from Debian packages'
scripts/setup.sh --emulation || skip 'no cross compiler or no qemu-user'
[ -e "$sysroot/complete" ] || fetch || skip 'its packages could not be fetched'

PKG_CONFIG_LIBDIR=$sysroot/usr/lib/aarch64-linux-gnu/pkgconfig:$sysroot/usr/share/pkgconfig
PKG_CONFIG_SYSROOT_DIR=$sysroot
export PKG_CONFIG_LIBDIR PKG_CONFIG_SYSROOT_DIR
tests="check_kernels check_models test_codes test_linear_ints test_expert_ints test_golden test_elementwise test_device test_product_tiers"
# gold does not look behind the links to places outside of the packages' folder.
# shellcheck disable=SC2086,SC2046 # words
make -j"$(nproc)" SETUP=no BUILD="$build" CC="aarch64-linux-gnu-gcc --sysroot=$sysroot" CFLAGS=-g0 TEST_LINKER= all \
    $(for t in $tests; do echo "$build/tests/$t"; done) || exit 1

cat >"$root/emulate" <<END
#!/bin/sh
program=\$1 && shift && exec qemu-aarch64-static -L '$sysroot' '$root/tests/'"\$program" "\$@"
END
chmod +x "$root/emulate"
# Of the made-up cases of each group every 24th; those of golden files are run whole. Models without the check before
# use, which calls every kernel some hundred times. One is left out, whose sparse MLP in bf16 is a matter of that check:
# rounding chooses the open gates.
echo 'SKIPPED all but each 24th made-up case of the kernels, and gemma3n_text: emulation is slow'
TENON_BUILD=$root tests/run.sh "$root/emulate check_kernels --tier neon --every 24" "$root/emulate check_kernels tests/data/ops" \
    "$root/emulate check_models tests/data/models --config tests/data/unchecked.json --without gemma3n_text" \
    "$root/emulate test_golden" "$root/emulate test_elementwise" \
    "$root/emulate test_codes" "$root/emulate test_linear_ints" "$root/emulate test_expert_ints" "$root/emulate test_device" "$root/emulate test_product_tiers" tests/build/test_hardened.sh
