#!/bin/sh
# What make bench-serve does without its peers: tables of what was measured, and lines measured with the demo model, whatever
# their figures are.
. tests/build/lib.sh
if ! command -v python3 >/dev/null 2>&1; then
    echo 'SKIPPED bench-serve: python3 is not installed'
    finish
fi
export PYTHONDONTWRITEBYTECODE=yes
run=scripts/bench_serve/run.py

helps() {
    scripts/bench_serve.sh "$tmp/none" --help | grep -q -- '--streams' && [ ! -e "$tmp/none" ]
}
check '--help installs nothing' helps
unknown_side() {
    ! python3 $run "$tmp" --sides nobody 2>"$tmp/said" && grep -q "'nobody' is none of tenon, llama, openvino" "$tmp/said"
}
check 'an unknown side is an error' unknown_side
nothing() {
    ! python3 $run "$tmp" --tables 2>"$tmp/said" && grep -q 'nothing was measured' "$tmp/said"
}
check 'no tables of nothing' nothing

# Two rounds; the ratio of a row is the middle of those of the rounds, not that of the middles.
mkdir -p "$tmp/peers"
line() { # ROUND SIDE LINE VALUES
    echo "{\"round\": $1, \"model\": \"m\", \"line\": \"$3\", \"side\": \"$2\", \"version\": \"1.0\", \"threads\": 2, \"dense\": true, \
\"machine\": {\"cpu\": \"A processor\", \"read_gb_per_second\": 40.0}, \"values\": {$4}, \
\"asked\": {\"prompt\": 128, \"answer\": 64, \"requests\": 2, \"shared\": 2000, \"long\": 4000}}"
}
streams() { # ROUND SIDE STREAMS RATE
    line "$1" "$2" "streams $3" "\"tokens_per_second\": $4, \"first\": 0.2, \"first_p99\": 0.3, \"between\": 0.05, \
\"between_p99\": 0.06, \"step\": 0.05, \"client\": 0.01"
}
{
    streams 0 tenon 1 20
    streams 0 llama 1 10
    streams 0 tenon 16 60
    streams 1 tenon 1 30
    streams 1 llama 1 25
    streams 1 tenon 16 90
    line 0 tenon bench '"decode": 20'
    for round in 0 1; do
        line $round tenon prefix '"uncached": 2.0, "cached": 0.05, "cached_tokens": 2000'
        line $round llama prefix '"uncached": 8.0, "cached": 0.04, "cached_tokens": 2000'
        line $round tenon beside '"between": 0.4, "between_p99": 0.5, "steps": 24'
    done
    line 0 tenon mask '"plain": 0.05, "formed": 0.0502, "mask": 0.4, "compiled": 0.05, "vocabulary": 151936'
} >"$tmp/peers/serve.jsonl"
printf 'before\n<!-- measured servers: make bench-serve -->\nold\n<!-- end of measured servers -->\nbehind\n' >"$tmp/page.md"
tells() {
    grep -qxF "$1" "$tmp/page.md" || { cat "$tmp/page.md"; false; }
}
check 'tables are made of what was measured' python3 $run "$tmp" --tables --write "$tmp/page.md"
check 'streams' tells '| 1 stream, tokens/s | 25.0 (20.0 to 30.0) | 17.5 (10.0 to 25.0) | 1.60 | ≥ 1.3 |'
check 'what the others did not do' tells '| 16 streams, tokens/s | 75.0 (60.0 to 90.0) | – | – | ≥ 1.3 |'
check 'a missed goal' tells '| 16 streams over one | **3.00** | – |  | ≥ 4 |'
check 'beside tenon bench' tells '| one stream between its tokens over it | 1.00 |  |  | ≥ 0.98 |'
check 'a cached beginning' tells '| the same where another began alike, ms | 50.0 (50.0) | 40.0 (40.0) | **1.25** | ≤ llama-server |'
check 'and its share' tells '| the second over the first | 0.025 | 0.005 |  | ≤ 1/20 |'
check 'beside a prompt' tells '| the second over the first | 1.25 | – |  | ≤ 3 |'
check 'masks' tells '| mask of 151,936 tokens, ms | **0.400** |  |  | ≤ 0.3 |'
check 'what clients wait for' tells '| 1 | 200, 300; 50, 60 | 200, 300; 50, 60 |'
check 'what was there is replaced' test "$(grep -c '^old$' "$tmp/page.md")" -eq 0
check 'the rest stays' test "$(sed -n '1p;$p' "$tmp/page.md" | tr '\n' ' ')" = 'before behind '

# A folder of the build in which nothing else was measured.
measures() {
    mkdir -p "$tmp/build/peers" || return 1
    for file in "$build"/*; do
        [ "${file##*/}" = peers ] || ln -s "$file" "$tmp/build/" || return 1
    done
    python3 $run "$tmp/build" --models models/demo --sides tenon,openvino --streams 1,3 --prompt 12 --answer 8 --shared 100 --long 1500 \
        --rounds 1 2>"$tmp/said" || { cat "$tmp/said"; return 1; }
    grep -q 'OpenVINO is left out with demo' "$tmp/said" && ! grep -q 'Tenon.*left out' "$tmp/said" || { cat "$tmp/said"; return 1; }
    for name in 'streams 1' 'streams 3' prefix beside bench mask; do
        grep -q "\"line\": \"$name\"" "$tmp/build/peers/serve.jsonl" || { cat "$tmp/said"; return 1; }
    done
}
if [ -x "$build/tenon-serve" ]; then
    check 'every line is measured' measures
else
    echo 'SKIPPED lines of bench-serve: tenon-serve was built without libmicrohttpd'
fi
finish
