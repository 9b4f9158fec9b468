#!/bin/sh
# What `make demo-train` shows: the embedded model, which knows one book, learns this project's own pages, but for two that
# are held out; how well it predicts those before and after, and the losses as a picture (with gnuplot). About a minute.
# usage: scripts/demo_train.sh [BUILD [STEPS]]
set -eu
build=${1:-build}
steps=${2:-100}
model=models/demo
tenon=$build/tenon
out=$build/demo-train
held='docs/running.md docs/trust.md'

say() {
    printf '\n%s\n' "$1"
}
perplexities() { # ARGUMENT...: of a model, and its adapter
    for page in $held; do
        found=$("$tenon" perplexity "$@" "$page" --quiet --dtype f32) # a warning stands before the line, not in it
        printf '%-16s %s\n' "$page" "$found"
    done
}

pages=
for page in docs/*.md; do
    case " $held " in *" $page "*) ;; *) pages="$pages $page" ;; esac
done
rm -rf "$out" "$out.svg"
plot=
if command -v gnuplot >/dev/null 2>&1; then plot="--plot $out.svg"; fi

say "1. What $model makes of pages of these docs that it will not be taught"
perplexities $model

say "2. It learns the other pages: all of its weights, $steps steps of 1024 tokens"
# shellcheck disable=SC2086 # our names hold no spaces
"$tenon" train $model $pages --full --precision f32 --out "$out" --steps "$steps" --length 256 --accumulate 4 --lr 2e-3 \
    --save-every 50 --eval docs/trust.md $plot

say "3. The same pages once more"
perplexities "$out"
[ -z "$plot" ] || say "The losses: $out.svg"

say "Next: $tenon run $out \"A kernel \"    $tenon train --help    docs/training.md"
