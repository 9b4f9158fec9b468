#!/bin/sh
# What make bench-peers does without its peers: checkpoints as GGUF, and tables of what was measured.
. tests/build/lib.sh
if ! command -v python3 >/dev/null 2>&1; then
    echo 'SKIPPED bench-peers: python3 is not installed'
    finish
fi
# Nothing is written into the tree.
export PYTHONDONTWRITEBYTECODE=yes
run=scripts/bench_peers/run.py

cat >"$tmp/read.py" <<'END'
"""Reads a GGUF file as a stranger would: its tensors fill it, and some say what the checkpoint's say."""
import json, struct, sys
data, folder = open(sys.argv[1], "rb").read(), sys.argv[2]
at = 0
def take(form):
    global at
    values = struct.unpack_from("<" + form, data, at)
    at += struct.calcsize("<" + form)
    return values[0] if len(values) == 1 else values
def text():
    global at
    size = take("Q")
    at += size
    return data[at - size:at].decode()
def value(kind):
    if kind == 8: return text()
    if kind == 9:
        of, count = take("IQ")
        return [value(of) for _ in range(count)]
    return take({4: "I", 5: "i", 6: "f", 7: "?"}[kind])
magic, version, tensors, keys = take("4sIQQ")
assert (magic, version) == (b"GGUF", 3), (magic, version)
fields = {}
for _ in range(keys):
    name = text()
    fields[name] = value(take("I"))
found = {}
for _ in range(tensors):
    name = text()
    shape = [take("Q") for _ in range(take("I"))]
    found[name] = (shape, *take("IQ"))
begin = -(-at // 32) * 32
config = json.load(open(folder + "/config.json"))
arch = fields["general.architecture"]
assert fields[arch + ".block_count"] == config["num_hidden_layers"] == 1
assert len(fields["tokenizer.ggml.tokens"]) == config["vocab_size"] == 300
sizes = {0: 4, 1: 2, 30: 2}
end = 0
for name, (shape, kind, offset) in found.items():
    assert offset == -(-end // 32) * 32, (name, offset, end)
    count = 1
    for n in shape: count *= n
    end = offset + count * sizes[kind]
assert begin + end == len(data), (begin + end, len(data))
raw = open(folder + "/model.safetensors", "rb").read()
(head,) = struct.unpack_from("<Q", raw)
listed = json.loads(raw[8:8 + head])
def ours(name):
    first, last = listed[name]["data_offsets"]
    return raw[8 + head + first:8 + head + last]
def theirs(name):
    shape, kind, offset = found[name]
    count = sizes[kind]
    for n in shape: count *= n
    return data[begin + offset:begin + offset + count]
assert theirs("blk.0.attn_v.weight") == ours("model.layers.0.self_attn.v_proj.weight")
assert theirs("token_embd.weight") == ours("model.embed_tokens.weight")
norm = ours("model.norm.weight")
assert theirs("output_norm.weight") == b"".join(b"\0\0" + norm[i:i + 2] for i in range(0, len(norm), 2))
if "num_experts" in config:
    assert theirs("blk.0.ffn_up_exps.weight") == b"".join(
        ours(f"model.layers.0.mlp.experts.{e}.up_proj.weight") for e in range(config["num_experts"]))
q, mine = theirs("blk.0.attn_q.weight"), ours("model.layers.0.self_attn.q_proj.weight")
assert sorted(q) == sorted(mine) and (q == mine) == (arch != "llama")
if arch == "llama": # rows 0 and half a head, then 1 and one more
    row, half = 2 * config["hidden_size"], config["head_dim"] // 2
    assert q[:2 * row] == mine[:row] + mine[half * row:(half + 1) * row]
    assert q[2 * row:3 * row] == mine[row:2 * row]
END

converts() { # MODEL
    "$build/tests/make_checkpoint" --like "$1" --layers 1 --vocab 300 "$tmp/$1" >/dev/null &&
        python3 scripts/bench_peers/gguf.py "$tmp/$1" "$tmp/$1.gguf" &&
        python3 "$tmp/read.py" "$tmp/$1.gguf" "$tmp/$1"
}
for model in tiny-qwen3 tiny-moe llama-3.2-1b; do
    check "$model becomes GGUF" converts $model
    rm -rf "${tmp:?}/$model"*
done

# Two rounds of three programs; the median of two is their mean.
mkdir -p "$tmp/peers"
machine='"machine": {"cpu": "A processor", "threads": 2, "read_gb_per_second": 40.0, "bf16_gflops": 1000.0}'
line() { # ENGINE RATE-OF-PROMPT RATE-OF-DECODING MORE
    echo "{\"model\": \"m\", \"threads\": 2, \"engine\": \"$1\", \"version\": \"1.0\", \
\"rates\": {\"prompt 128\": $2, \"decode 128\": $3}, $machine$4}"
}
more=', "prompt 128": {"operations": 1e9, "bytes": 1e7}, "decode 128": {"operations": 1e9, "bytes": 1e9},
"memory": {"peak_bytes": 3000000000, "weight_bytes": 2000000000, "cache_bytes": 900000000}, "start_seconds": 0.25'
{
    line tenon 700 30 "$(echo "$more" | tr '\n' ' ')"
    line llama 300 24 ''
    line torch 400 10 ''
    line tenon 900 34 "$(echo "$more" | tr '\n' ' ')"
    line llama 300 31 ''
} >"$tmp/peers/results.jsonl"
printf 'before\n<!-- measured peers: make bench-peers -->\nold\n<!-- end of measured peers -->\nbehind\n' >"$tmp/page.md"
tells() {
    grep -qxF "$1" "$tmp/page.md" || { cat "$tmp/page.md"; false; }
}
check 'tables are made of what was measured' python3 $run "$tmp" --tables --write "$tmp/page.md"
check 'a row for prompts' tells '| prompt of 128 | 2 | **800 (700–900)** | 300 (300–300) | 400 | 2.00 | 2.67 | 80 % bf16 |'
check 'and for decoding, where the ranges of two overlap' tells '| decoding behind 128 | 2 | **32.0 (30.0–34.0)** | 27.5 (24.0–31.0) | 10.0 | (1.16) | (1.16) | 80 % mem |'
check 'start and memory' tells 'Start to the logits of one token, whole process: 0.25 s. Peak memory: 3000 MB, with weights of 2000 MB and a cache of 900 MB: 100 MB more.'
check 'what was there is replaced' test "$(grep -c '^old$' "$tmp/page.md")" -eq 0
check 'the rest stays' test "$(sed -n '1p;$p' "$tmp/page.md" | tr '\n' ' ')" = 'before behind '
check 'the same again' sh -c "cp '$tmp/page.md' '$tmp/first'; python3 $run '$tmp' --tables --write '$tmp/page.md' && cmp '$tmp/first' '$tmp/page.md'"

no_markers() {
    echo plain >"$tmp/plain.md"
    ! python3 $run "$tmp" --tables --write "$tmp/plain.md" 2>"$tmp/said" && grep -q 'has no markers' "$tmp/said"
}
check 'a page without markers is an error' no_markers
unknown_peer() {
    ! scripts/bench_peers/install.sh "$tmp/none" nobody 2>"$tmp/said" && grep -q '^usage: ' "$tmp/said"
}
check 'an unknown peer is an error' unknown_peer
finish
