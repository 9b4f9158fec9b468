#!/bin/sh
# All tests under ThreadSanitizer, in a build of its own; ends with "N passed, N failed". Without what it needs nothing is
# run, and it says so.
# gcc compiles, and clang's runtime, which has the same interface, takes the place of gcc's: children that try plugins are
# forked while there are threads and start others, at which the runtime of gcc 12 gives up. clang alone will not do:
# plugins are linked with all that they need, and its runtime as a library begins too late for the constructors of others.
# usage: scripts/tsan.sh MAKE BUILD
set -eu
make=$1 build=$2
runtime=$(clang -print-file-name="libclang_rt.tsan-$(uname -m).so" 2>/dev/null || true)
replaced=$(readlink -f "$(gcc -print-file-name=libtsan.so)" || true)
if [ ! -e "$runtime" ] || [ ! -e "$replaced" ]; then
    echo "SKIPPED ThreadSanitizer: it takes gcc's and clang's (Debian: gcc, clang, libclang-rt-*-dev;" \
        'scripts/setup.sh --optional)'
    exit 0
fi
mkdir -p "$build/runtime"
folder=$(cd "$build" && pwd)
name=$(basename "$replaced")
major=${name#libtsan.so.}
ln -sf "$runtime" "$folder/runtime/libtsan.so.${major%%.*}"
export LD_LIBRARY_PATH="$folder/runtime${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# Those children's words go nowhere: what is found goes to files, and each is a failure.
export TEST_REPORTS="$folder/reports"
# Each test is a process, and at the end of one with threads a second would be waited for them. Tests ask for more memory
# than there is, and fault on purpose: that goes on as it does elsewhere.
options=print_suppressions=0:die_after_fork=0:log_path=$TEST_REPORTS/race
options=$options:atexit_sleep_ms=0:allocator_may_return_null=1:handle_segv=0
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:$options:${TSAN_OPTIONS:-}"
# Without addresses drawn at random the sanitizer's map of memory fits on every kernel.
if setarch -R true 2>/dev/null; then
    export TEST_WITH='setarch -R'
fi
# It is slow, and only what hangs is to be ended.
export TEST_SECONDS="${TEST_SECONDS:-6000}" CK_TIMEOUT_MULTIPLIER="${CK_TIMEOUT_MULTIPLIER:-16}"
exec "$make" -j"$(nproc)" CC=gcc BUILD="$build" OPT=-O1 SANITIZE='-fsanitize=thread -fno-omit-frame-pointer' check
