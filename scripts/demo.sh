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

# What a model says after the prompt with these kernels, and which they are. Speeds are for the comparison in the end:
# one short text is over too soon to tell any.
text() {
    said=$("$tenon" --kernels="$1" "$model" "$prompt" -n 48 --temperature 0 2>&1) || {
        printf '%s\n' "$said" >&2
        exit 1
    }
    printf '%s\n' "$said" | sed '/^prompt: /d'
}

say "1. The plugins in $build/plugins"
"$tenon" kernels

say "(Before their first use on a machine kernels are checked and timed, which takes some seconds.)"
"$tenon" inspect "$model" >/dev/null
"$tenon" run --kernels=auto "$model" "$prompt" -n 48 --temperature 0 --quiet >/dev/null

say "2. Text from $model, with every kernel that fits (the prompt is \"$prompt\")"
text auto

say "3. The same without kernels: they change the speed, not the meaning"
text none

say "4. With kernels against without, in tokens per second"
"$tenon" bench "$model" --kernels=auto --against=none --prompt 256 --decode 64 --repeat 5

say "Next: $tenon inspect $model --explain    $tenon verify $model    $tenon --help"
