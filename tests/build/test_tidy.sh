#!/bin/sh
# make lint-tidy says what it finds and fails then, fails on a file that cannot be read, and looks again at what changed.
. tests/build/lib.sh
if ! command -v clang-tidy >/dev/null 2>&1; then
    echo 'SKIPPED clang-tidy: it is not installed'
    finish
fi

tidy() { # STATUS TEXT FILE...: its exit status, and a text in its output
    status=$1 text=$2
    shift 2
    scripts/tidy.sh "$tmp/stamps" '' "$@" >"$tmp/said" 2>&1
    got=$?
    cat "$tmp/said"
    [ "$got" -eq "$status" ] && grep -q -F -- "$text" "$tmp/said"
}
stamps() { # COUNT: files that need not be looked at again
    [ "$(find "$tmp/stamps" -type f | wc -l)" -eq "$1" ]
}

printf '#include "number.h"\nint main(void)\n{\n    return NUMBER;\n}\n' >"$tmp/clean.c"
printf '#define NUMBER 0\n' >"$tmp/number.h"
printf 'int main(int argc, char **argv)\n{\n    int *p = argc > 1 ? &argc : 0;\n    (void)argv;\n    return *p;\n}\n' >"$tmp/null.c"
printf '#include "not_there.h"\n' >"$tmp/unread.c"
check 'a file without findings' tidy 0 'clang-tidy: 1 files, no findings' "$tmp/clean.c"
check 'it is kept in mind' stamps 1
check 'a null pointer is a failure' tidy 1 'clang-analyzer-core.NullDereference' "$tmp/clean.c" "$tmp/null.c"
check 'the file is named' tidy 1 "FAILED $tmp/null.c" "$tmp/null.c"
check 'a file that cannot be read is a failure' tidy 1 "'not_there.h' file not found" "$tmp/unread.c"
check 'one that is not there is a failure' tidy 1 "FAILED $tmp/none.c" "$tmp/none.c"
check 'what failed is not kept in mind' stamps 1
printf '#define NUMBER *(int *)0\n' >"$tmp/number.h"
check 'a header that changed is looked at' tidy 1 'FAILED' "$tmp/clean.c"
finish
