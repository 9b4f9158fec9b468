#!/bin/bash
# The most bytes that each of 1, 2 and 4 ranks has resident from its start to the logits of 32 tokens: no more than the whole
# parts, its share of what is cut, and 150 MB. Prints a line for each. Pages of the file that several ranks have mapped count
# for each of them; made checkpoints lie in memory (/dev/shm), since of a file on a disk the system may map 2 MiB around a row. Not part of make check.
# usage: tests/machines/bytes.sh [MODEL]...      what make_checkpoint --like knows, or folders; qwen3-0.6b
# shellcheck source=tests/machines/mpi.sh
. "$(dirname "$0")/mpi.sh"
limit=900
[ $# -gt 0 ] || set -- qwen3-0.6b
made=$(mktemp -d /dev/shm/tenon-bytes-XXXXXX) || exit 1
trap 'rm -rf "$tmp" "$made"' EXIT
input 32 >"$tmp/in.safetensors"
cat >"$tmp/rank.py" <<'EOF'
import os, resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
with open(sys.argv[1] + "/most." + os.environ["OMPI_COMM_WORLD_RANK"], "w") as file:
    file.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 // 1000000))
sys.exit(status)
EOF
for name in "$@"; do
    model=$name
    if [ ! -d "$name" ]; then
        model=$made/model
        rm -rf "$model"
        "$build/tests/make_checkpoint" --like "$name" "$model" >/dev/null || exit 1
    fi
    for n in 1 2 4; do
        for kind in tensor sums experts pipeline; do
            "$tenon" inspect "$model" --parallel $kind=$n --format json >"$tmp/parts"
            rm -f "$tmp"/most.*
            ranks $n python3 "$tmp/rank.py" "$tmp" "$tenon" logits "$model" --input "$tmp/in.safetensors" --output "$tmp/logits" \
                -t 1 -q --parallel $kind=$n
            ok "$name, $kind of $n: it runs" [ $? = 0 ]
            for ((r = 0; r < n; r++)); do
                most=$(cat "$tmp/most.$r" 2>/dev/null)
                allowed=$(python3 -c 'import json, sys; r = json.load(open(sys.argv[1]))["ranks"][int(sys.argv[2])]
print((r["whole_bytes"] + r["cut_bytes"] + 150_000_000) // 1000000)' "$tmp/parts" $r)
                echo "$name, $kind, rank $r of $n: ${most:-?} MB, $allowed allowed"
                ok "$name, $kind, rank $r of $n: ${most:-?} MB, $allowed allowed" [ "${most:-999999}" -le "$allowed" ]
            done
        done
    done
done
end
