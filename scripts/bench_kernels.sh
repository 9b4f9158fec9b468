#!/bin/sh
# What `make bench-kernels` does: times the kernels (six minutes on two cores) and writes the tables of
# docs/performance.md from what check_kernels printed, which stays in BUILD/bench-kernels.txt.
# usage: scripts/bench_kernels.sh [BUILD [ARGUMENT...]]     ARGUMENT: for check_kernels, after --bench
set -eu
build=${1:-build}
[ $# -eq 0 ] || shift
page=docs/performance.md
"$build/tests/check_kernels" --bench "$@" | tee "$build/bench-kernels.part"
mv "$build/bench-kernels.part" "$build/bench-kernels.txt"

# Calls of 16 tokens, and norms and rotary embeddings of single tokens, are left to the text file.
awk '
function part(percent, what) {
    goal = what == "mem" ? 85 : what == "cache" ? 100 : 75
    text = percent + 0 " %" (what == "cache" ? "" : " " what)
    return percent + 0 < goal ? "**" text "**" : text
}
NR == 1 { print "**" $0 "**\n"; next }
/^again/ { exit }
/ threads$/ { all = $(NF - 1); printf "| ceilings | 1 thread | %s threads |\n|---|---:|---:|\n", all; next }
/^  .*(GB|GFLOP)\/s$/ {
    name = $1; for (i = 2; i < NF - 2; i++) name = name " " $i
    printf "| %s | %s | %s %s |\n", name, $(NF - 2), $(NF - 1), $NF; next
}
NF < 14 || $(NF - 1) !~ /%$/ { next }
{
    name = $1; for (i = 2; i < NF - 12; i++) name = name " " $i
    if (name ~ / (x16|16x[0-9]+|x128) / || (name ~ /norm|rope/ && name ~ / (x1|1x[0-9]+|(16|32)x128) /)) next
    way = $(NF - 10); key = name SUBSEP way SUBSEP $(NF - 12)
    if (!(key in place)) { place[key] = ++rows; names[rows] = name; ways[rows] = way }
    at = place[key]; column = $(NF - 9) ($(NF - 11) == 1 ? 1 : 2)
    times[at, column] = $(NF - 8) " " $(NF - 7) " | " $(NF - 4) " " $(NF - 3)
    parts[at, column] = part($(NF - 1), $NF)
    if ($(NF - 9) == "cold" && $(NF - 11) == all) {
        eager[at] = $(NF - 2)
        if (way == "fwd" && name ~ /^moe dense MLP.* x4096/) dense = $(NF - 4)
        if (way == "fwd" && name ~ /^moe experts even.* x4096/ && $(NF - 4) > experts + 0) experts = $(NF - 4)
    }
}
END {
    printf "\n| call | | 1 thread | | of ceiling | %s threads | | of ceiling | x eager | in cache, 1 | %s |\n", all, all
    print "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for (at = 1; at <= rows; at++) {
        printf "| %s | %s |", names[at], ways[at]
        for (i = 1; i <= 2; i++) printf " %s | %s |", ((at, "cold" i) in times) ? times[at, "cold" i] : "|", parts[at, "cold" i]
        printf " %s | %s | %s |\n", eager[at], parts[at, "hot1"], parts[at, "hot2"]
    }
    if (dense && experts)
        printf "\nMOE_EXPERTS spread evenly over 64 experts, 4096 tokens: %s GFLOP/s; the same in one dense product: %s (%.0f %%).\n",
               experts, dense, 100 * experts / dense
}' "$build/bench-kernels.txt" >"$build/bench-kernels.md"

awk -v tables="$build/bench-kernels.md" '
/^<!-- end of measured kernels -->/ { inside = 0 }
!inside { print }
/^<!-- measured kernels/ { inside = 1; print ""; while ((getline line < tables) > 0) print line; print "" }
' "$page" >"$build/performance.md"
cat "$build/performance.md" >"$page"
echo "$page and $build/bench-kernels.txt written"
