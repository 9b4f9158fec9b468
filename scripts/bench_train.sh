#!/bin/sh
# What `make bench-train` does: installs torch, transformers and peft into BUILD/peers (from PyPI, some GB, once), writes
# checkpoints with the shapes of Qwen3-0.6B and of a mixture of 1.5 billion parameters, and trains each with LoRA of rank 8 on
# all linear layers, 512 tokens a step, by Tenon and by torch in turns. Prints the table, and writes it to
# docs/performance.md with --write.
# usage: scripts/bench_train.sh [BUILD [ARGUMENT...]]     ARGUMENT: scripts/bench_train/run.py --help has them
set -eu
build=${1:-build}
[ $# -eq 0 ] || shift
exec scripts/bench_peers/begin.sh bench_train "$build" peft "$@"
