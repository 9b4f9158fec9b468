#!/bin/sh
# What `make bench-peers` does: installs llama.cpp, OpenVINO GenAI and torch with transformers into BUILD/peers (from PyPI,
# some GB, once; what cannot be had is left out), writes checkpoints with the shapes of Qwen3-0.6B, Llama-3.2-1B and a
# mixture of 1.5 billion parameters, some of them quantised by tenon quantize, and runs Tenon and the others in turns. Prints the tables, and writes them to
# docs/performance.md with --write.
# usage: scripts/bench_peers.sh [BUILD [ARGUMENT...]]     ARGUMENT: scripts/bench_peers/run.py --help has them
set -eu
build=${1:-build}
[ $# -eq 0 ] || shift
exec scripts/bench_peers/begin.sh bench_peers "$build" 'llama openvino torch' "$@"
