#!/bin/sh
# What `make bench-python` does: installs torch with transformers and peft into BUILD/peers (from PyPI, some GB, once) and
# times kernels in live models beside torch's eager mode and torch.compile, in turns. Prints the table, and writes it to
# docs/performance.md with --write.
# usage: scripts/bench_python.sh [BUILD [ARGUMENT...]]     ARGUMENT: scripts/bench_python/run.py --help has them
set -eu
build=${1:-build}
[ $# -eq 0 ] || shift
scripts/bench_peers/install.sh "$build/peers" torch peft
exec env PYTHONPATH="$build/python" "$build/peers/torch/bin/python" scripts/bench_python/run.py "$build" "$@"
