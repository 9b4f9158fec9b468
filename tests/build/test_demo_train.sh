#!/bin/sh
# A short `make demo-train`: pages that are held out are predicted better behind a few steps; and what `make bench-train`
# measures and makes of it, with a model of its own and without torch.
. tests/build/lib.sh

# PAGE's perplexity before and after, in the order in which they were printed.
falls() {
    grep "^$1 .* perplexity " "$tmp/said" | sed 's/.* perplexity \([0-9.]*\) .*/\1/' >"$tmp/figures"
    cat "$tmp/said"
    [ "$(wc -l <"$tmp/figures")" -eq 2 ] && awk '{ v[NR] = $1 } END { exit !(v[2] < v[1] / 2) }' "$tmp/figures"
}
demo() {
    scripts/demo_train.sh "$build" 8 >"$tmp/said" 2>&1
}
check 'the demo trains' demo
check 'it predicts docs/running.md twice as well' falls docs/running.md
check 'and docs/trust.md' falls docs/trust.md

mkdir -p "$tmp/build/peers" && ln -s "$build/tenon" "$tmp/build/tenon"
bench() {
    python3 scripts/bench_train/run.py "$tmp/build" "$@"
}
printf '%s\n' '<!-- measured training: make bench-train -->' old '<!-- end of measured training -->' >"$tmp/page"
measured() {
    bench --models models/demo --ways f32 --tokens 64 --steps 2 --rounds 1 --peft "$tmp/none" --write "$tmp/page" &&
        grep -q '^| demo | Tenon | f32 | [0-9.]* | [0-9.]* |$' "$tmp/page" && ! grep -q old "$tmp/page"
}
tables() {
    {
        for rate in 10 20 90; do
            echo "{\"model\": \"m\", \"engine\": \"torch\", \"way\": \"f32\", \"rate\": $rate, \"memory\": 1073741824, \"threads\": 2, \"tokens\": 64}"
        done
    } >"$tmp/build/peers/train.jsonl"
    bench --tables | grep -qx '| m | torch | f32 | 20.0 | 1.00 |'
}
if command -v python3 >/dev/null 2>&1; then
    check 'training is measured' measured
    check 'the table has medians' tables
else
    echo 'SKIPPED measuring of training: python3 is not installed'
fi
finish
