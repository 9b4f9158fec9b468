#!/bin/sh
# What `make bench-serve` does: installs llama-server and OpenVINO GenAI into BUILD/peers (from PyPI, once; what cannot be had
# is left out), writes checkpoints with the shapes of Qwen3-0.6B and a mixture of 1.5 billion parameters, and asks Tenon's server and
# the others in turns. Prints the tables, and writes them to docs/performance.md with --write.
# usage: scripts/bench_serve.sh [BUILD [ARGUMENT...]]     ARGUMENT: scripts/bench_serve/run.py --help has them
set -eu
build=${1:-build}
[ $# -eq 0 ] || shift
exec scripts/bench_peers/begin.sh bench_serve "$build" 'llama-server openvino' "$@"
