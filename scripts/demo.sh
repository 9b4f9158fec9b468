#!/bin/sh
# What `make demo` shows: the plugins found, the kernels at work on the embedded model, and what they are worth.
# usage: scripts/demo.sh [BUILD [MODEL]]
set -eu
build=${1:-build}
model=${2:-models/demo}
tenon=$build/tenon
prompt='And it came to pass'

say() {
    printf '\n%s\n' "$1"
}

say "1. The plugins in $build/plugins"
"$tenon" kernels

say "2. Text from $model, with every kernel that fits (the prompt is \"$prompt\")"
"$tenon" --kernels=auto "$model" "$prompt" -n 48 --temperature 0

say "3. The same without kernels: they change the speed, not the meaning"
"$tenon" --kernels=none "$model" "$prompt" -n 48 --temperature 0

say "4. With kernels against without, in tokens per second"
"$tenon" bench "$model" --kernels=auto --against=none --prompt 256 --decode 64 --repeat 5

say "Next: $tenon inspect $model --explain    $tenon verify $model    $tenon --help"
