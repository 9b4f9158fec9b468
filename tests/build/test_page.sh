#!/bin/sh
# The page of tenon serve in a browser without a window: what is typed, streamed, stopped, refused, on a small screen too.
. tests/build/lib.sh
if [ ! -x "$build/tenon-serve" ]; then
    echo 'SKIPPED the page: tenon serve was built without libmicrohttpd'
elif ! command -v chromium >/dev/null 2>&1; then
    echo 'SKIPPED the page: chromium is not installed (scripts/setup.sh --optional)'
elif ! command -v python3 >/dev/null 2>&1; then
    echo 'SKIPPED the page: python3 is not installed'
else
    page() {
        timeout 1800 python3 tests/build/page_client.py "$1" "$build/tenon" models/demo chromium
    }
    for case in talk stop key narrow gone; do
        check "the page: $case" page "$case"
    done
fi
finish
