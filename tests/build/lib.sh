# What the tests of the build share: counting. Sourced; tmp is a folder that goes away at the end.
# shellcheck shell=sh disable=SC2034
set -u
passed=0 failed=0
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
build=${TENON_BUILD:-$PWD/build}
cc=${CC:-gcc}

# check WHAT COMMAND...: the command must succeed; its output is shown when it does not.
check() {
    what=$1
    shift
    if "$@" >"$tmp/output" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $what"
        sed 's/^/    /' "$tmp/output"
    fi
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
    exit
}
