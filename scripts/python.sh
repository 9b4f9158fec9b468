#!/bin/sh
# What `make check-python` does: builds the wheel as pip does, installs it into an environment of its own, away from the
# tree, and runs the tests of python/tests there, without torch. Ends with "N passed, N failed". What they need of PyPI is
# fetched once; where that cannot be had, or Python's headers are missing (scripts/setup.sh --optional), it says so and does
# nothing. ALSO names packages to install beside, so that tests of the bridge run: 'torch transformers peft kernels'.
# usage: scripts/python.sh BUILD PYTHON
set -u
build=$1 python=$2 place=$1/python also=${ALSO:-}
skip() {
    echo "SKIPPED the Python package: $1"
    exit 0
}
command -v "$python" >/dev/null 2>&1 || skip "$python is not installed"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "$python is older than 3.10"
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))') || exit 1
[ -f "$headers/Python.h" ] || skip 'its headers are missing (python3-dev)'
mkdir -p "$place" && top=$PWD && place=$(cd "$place" && pwd) || exit 1
env=$place/env

# Another Python, or other packages, make another environment, and one that was not finished is begun anew.
if [ "$(cat "$env/whole" 2>/dev/null)" != "$("$python" -VV) $also" ]; then
    rm -rf "$env"
    "$python" -m venv "$env" >"$place/log" 2>&1 || skip "it cannot make an environment (python3-venv): $(tail -n 1 "$place/log")"
    cmake=$(command -v cmake >/dev/null 2>&1 || echo cmake)
    # shellcheck disable=SC2086 # lists
    "$env/bin/pip" -q install pytest numpy scikit-build-core $cmake $also >"$place/log" 2>&1 ||
        skip "what the tests need cannot be had from PyPI: $(tail -n 1 "$place/log")"
    echo "$("$python" -VV) $also" >"$env/whole"
fi
# Neither make above this one nor an environment of the caller's has a say in what is built.
unset MAKEFLAGS MFLAGS MAKELEVEL PYTHONPATH PYTHONHOME
export PYTHONDONTWRITEBYTECODE=1
PATH=$env/bin:$PATH BUILD=$build
export PATH BUILD
rm -rf "$place/wheel"
"$env/bin/pip" wheel -q --no-deps --no-build-isolation -w "$place/wheel" ./python &&
    "$env/bin/pip" install -q --no-deps --force-reinstall "$place"/wheel/*-cp310-abi3-*.whl || exit 1
cd "$place" || exit 1
"$env/bin/python" -m pytest -q -p no:cacheprovider "$top/python/tests" >"$place/log" 2>&1
status=$?
cat "$place/log"
count() {
    sed -n "\$s/^\(.* \)*\([0-9][0-9]*\) $1.*/\2/p" "$place/log"
}
passed=$(count passed) failed=$(count failed) errors=$(count error)
failed=$((${failed:-0} + ${errors:-0}))
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
echo "${passed:-0} passed, $failed failed"
[ "$failed" -eq 0 ]
