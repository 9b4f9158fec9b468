#!/bin/sh
# All tests under ThreadSanitizer, with clang, in a build of its own; ends with "N passed, N failed". Without clang, or
# without its runtime as a library, nothing is run, and it says so.
# Why clang: children that try plugins are forked while there are threads, and start others; the runtime of gcc 12 gives
# up at that. Why the library: plugins are linked with all that they need.
# usage: scripts/tsan.sh MAKE BUILD
set -eu
make=$1 build=$2
runtime=$(clang -print-file-name="libclang_rt.tsan-$(uname -m).so" 2>/dev/null || true)
if [ ! -e "$runtime" ]; then
    echo "SKIPPED ThreadSanitizer: clang with its runtime is not installed (Debian: clang, libclang-rt-*-dev;" \
        'scripts/setup.sh --optional)'
    exit 0
fi

# Those children's words go nowhere: what is found goes to files, and each is a failure.
mkdir -p "$build"
TEST_REPORTS=$(cd "$build" && pwd)/reports
export TEST_REPORTS
options=print_suppressions=0:die_after_fork=0:log_path=$TEST_REPORTS/race
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:$options:${TSAN_OPTIONS:-}"
# Without addresses drawn at random the sanitizer's map of memory fits on every kernel.
if setarch -R true 2>/dev/null; then
    export TEST_WITH='setarch -R'
fi
# It is slow, and only what hangs is to be ended.
export TEST_SECONDS="${TEST_SECONDS:-6000}" CK_TIMEOUT_MULTIPLIER="${CK_TIMEOUT_MULTIPLIER:-4}"
exec "$make" -j"$(nproc)" CC=clang BUILD="$build" OPT=-O1 check SANITIZE="-fsanitize=thread -fno-omit-frame-pointer \
-shared-libsan -Wl,-rpath,$(dirname "$runtime") -Wno-unused-command-line-argument"
