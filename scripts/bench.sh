#!/bin/sh
# What `make bench` measures: every kernel variant, then whole models with kernels against without, on checkpoints with
# real shapes and random weights. They are written to BUILD/bench (about 4.5 GB) and stay there for the next time.
# usage: scripts/bench.sh [BUILD [MODEL...]]     MODEL: names that make_checkpoint --like knows
set -eu
build=${1:-build}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- qwen3-0.6b moe-1.5b
"$build/tests/check_kernels" --bench
mkdir -p "$build/bench"
for model in "$@"; do
    folder=$build/bench/$model
    if [ ! -d "$folder" ]; then
        rm -rf "$folder.part"
        "$build/tests/make_checkpoint" --like "$model" "$folder.part"
        mv "$folder.part" "$folder"
    fi
    "$build/tenon" bench "$folder" --kernels=auto --against=none --prompt 128,512 --decode 64
done
