#!/bin/sh
# What `make bench-machines` does: writes checkpoints with the shapes of Qwen3-0.6B and a mixture of 1.5 billion parameters, and
# runs each cut over two ranks of one thread, beside one process of two, in turns; then messages alone, and with delays as of three
# networks. Prints the tables, and writes them to docs/performance.md with --write.
# usage: scripts/bench_machines.sh [BUILD [ARGUMENT...]]     ARGUMENT: scripts/bench_machines/run.py --help has them
set -eu
build=${1:-build}
[ $# -eq 0 ] || shift
exec scripts/bench_peers/begin.sh bench_machines "$build" '' "$@"
