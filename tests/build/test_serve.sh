#!/bin/sh
# tenon serve, started for each case and asked by Python: texts, the same bits whatever else runs, keys, sockets, limits, requests
# that are none, clients that go away, ends.
. tests/build/lib.sh
if [ ! -x "$build/tenon-serve" ]; then
    echo 'SKIPPED tenon serve: it was built without libmicrohttpd'
elif ! command -v python3 >/dev/null 2>&1; then
    echo 'SKIPPED tenon serve: python3 is not installed'
else
    serves() {
        timeout 1800 python3 tests/build/serve_client.py "$1" "$build/tenon" models/demo
    }
    for case in text same vectors keys unix limits junk gone ends; do
        check "tenon serve: $case" serves "$case"
    done
    check 'tenon serve: a soak' timeout 1800 python3 tests/build/serve_soak.py 5 "$build/tenon" models/demo
fi
not_there() {
    mkdir -p "$tmp/alone" && cp "$build/tenon" "$tmp/alone/" || return 1
    LD_LIBRARY_PATH=$build "$tmp/alone/tenon" serve models/demo 2>"$tmp/said"
    [ $? -eq 3 ] && grep -q 'tenon-serve: .*libmicrohttpd' "$tmp/said"
}
check 'without tenon-serve it says what is missing' not_there
finish
