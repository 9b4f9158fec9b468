#!/bin/sh
# What `make bench-tokenizers` does: times Tenon's tokenizer beside the reference, tokenizers from PyPI, which is installed
# into BUILD/bench-venv. Prints the table, and writes it to docs/performance.md with --write.
# usage: scripts/bench_tokenizers.sh [BUILD [ARGUMENT...]]     ARGUMENT: scripts/bench_tokenizers.py --help has them
set -eu
build=${1:-build}
[ $# -eq 0 ] || shift
command -v python3 >/dev/null || {
    echo 'bench-tokenizers: python3 is missing; install it with its venv module (Debian: python3-venv)' >&2
    exit 1
}
python="$build/bench-venv/bin/python"
[ -x "$python" ] || python3 -m venv "$build/bench-venv"
"$python" -c 'import tokenizers' 2>/dev/null ||
    "$python" -m pip install -q --disable-pip-version-check tokenizers
exec "$python" scripts/bench_tokenizers.py "$build" "$@"
