#!/bin/sh
# What README.md shows is what is printed, and its commands work. "..." in a listing stands for anything.
. tests/build/lib.sh

# Every line of the listing, in its order, among the lines that the demo prints.
listing_is_printed() {
    sed -n '/^1\. The plugins/,/^```/p' README.md | sed '$d' >"$tmp/shown"
    [ "$(wc -l <"$tmp/shown")" -ge 8 ] || { echo 'the listing is not found in README.md'; return 1; }
    exec 3<"$tmp/demo"
    while IFS= read -r shown; do
        [ -n "$shown" ] || continue
        # A pattern of the shell: its own signs are quoted, "..." becomes *.
        pattern=$(printf '%s' "$shown" | sed 's/[][*?\\]/\\&/g; s/\.\.\./*/g')
        while :; do
            IFS= read -r printed <&3 || { echo "not printed, or not in this order: $shown"; return 1; }
            # shellcheck disable=SC2254 # it is meant to be a pattern
            case $printed in $pattern) break ;; esac
        done
    done <"$tmp/shown"
}

check 'the demo runs' scripts/demo.sh "$build"
plugins=$(cd "$build/plugins" && pwd)
sed "/^1\\. /s#$build#build#; s#$plugins/#/build/plugins/#" "$tmp/output" >"$tmp/demo"
check 'it prints what README.md shows' listing_is_printed

# A server of the same options at any port listens, and ends when it is asked to.
starts_and_ends() {
    sh -c "exec $1 --port 0" >"$tmp/served" 2>&1 &
    for _ in $(seq 300); do grep -q '^listening on http' "$tmp/served" && break; sleep 0.2; done
    kill -TERM $! 2>/dev/null
    cat "$tmp/served"
    wait $! && grep -q '^listening on http' "$tmp/served"
}
served() {
    if [ -x "$build/tenon-serve" ]; then
        check "$1" starts_and_ends "$1"
    else
        echo "SKIPPED $1: tenon-serve was built without libmicrohttpd"
    fi
}

# The commands under "Use", with models and plugins that are here.
sed -n '/^## Use/,/^## /s/^\(\(printf .* | \)\{0,1\}build\/tenon .*\)/\1/p' README.md | sed 's/ #.*//' >"$tmp/commands"
check 'README.md has commands' test "$(wc -l <"$tmp/commands")" -ge 6
while IFS= read -r line; do
    case $line in
    *--image*) line=$(printf '%s' "$line" | sed 's#MODEL#tests/data/models/qwen2_vl#; s#photo.jpg#tests/data/media/files/exif6_100x60.jpg#') ;;
    *--audio*) line=$(printf '%s' "$line" | sed 's#MODEL#tests/data/models/qwen2_5_omni_thinker#; s#speech.wav#tests/data/media/files/s16_22k_mono.wav#') ;;
    esac
    line=$(printf '%s' "$line" | sed "s#\(^\| \)build/tenon#\1'$build/tenon'#; s#MODEL#models/demo#; s#FILE#models/demo/heldout.txt#; s#PLUGIN.so#'$build/plugins/npu_rope.so' --quick#; s#build/adapter#'$tmp/adapter'#; s#build/merged#'$tmp/merged'#")
    case $line in
    *"' serve "*) served "$line" <&- ;;
    *) check "$line" sh -c "$line" <&- ;;
    esac
done <"$tmp/commands"

# Pages that it names are there.
for page in $(grep -oE '\]\([a-zA-Z/_.-]+\)' README.md | tr -d '])('); do
    check "$page is there" test -e "$page"
done
finish
