"""Writes model.gguf, a small Mixtral as llama.cpp's converter has it, and what its exact values compute.

numpy and gguf (0.19) only: the model is written out below, in float64 for the truth, rounded to bfloat16 after each
operation for logits_bf16, with the input of each product in blocks of Q8_0 for logits_act.
"""

import json
import numpy as np
import gguf
from gguf.quants import dequantize, quantize

V, H, I, N, KV, D, E, K, T, STEPS = 64, 64, 64, 4, 2, 16, 4, 2, 13, 16
Q8, Q4 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0


def narrow(x):
    bits = np.float32(x).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


def blocks(x):
    return dequantize(quantize(np.ascontiguousarray(x, np.float32), Q8), Q8).astype(np.float64)


def norm(x, w, r):
    return r(r(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)) * w)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rope(x, r):
    at = np.outer(np.arange(x.shape[0]), 1e4 ** (-np.arange(0, D, 2) / D))[:, None]
    cos, sin, a, b = r(np.cos(at)), r(np.sin(at)), x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([r(r(a * cos) - r(b * sin)), r(r(b * cos) + r(a * sin))], -1)


def forward(w, ids, r=lambda x: x, q=lambda x: x, seen=None):
    """r rounds results, q what meets a quantised matrix; seen takes hidden states, and how clear the choices are."""
    w = {k: r(v) for k, v in w.items()}
    mul = lambda x, name, e=...: r(q(x) @ w[name][e].T)  # noqa: E731
    h = w["token_embd"][ids]
    x = norm(h, w["attn_norm"], r)
    heads = lambda name, n: mul(x, name).reshape(len(ids), n, D)  # noqa: E731
    qs, ks, vs = rope(heads("attn_q", N), r), rope(heads("attn_k", KV), r), heads("attn_v", KV)
    ks, vs = np.repeat(ks, N // KV, 1), np.repeat(vs, N // KV, 1)
    scores = r(np.einsum("thd,shd->hts", qs, ks) / np.sqrt(D)) + np.triu(np.full((len(ids),) * 2, -1e9), 1)
    mixed = r(np.einsum("hts,shd->thd", r(softmax(scores)), vs)).reshape(len(ids), N * D)
    h = r(h + mul(mixed, "attn_output"))
    x = norm(h, w["ffn_norm"], r)
    routes = softmax(r(x @ w["ffn_gate_inp"].T))
    order = np.sort(routes, -1)
    out = np.zeros_like(h)
    for t in range(len(ids)):
        best = np.argsort(-routes[t])[:K]
        for e in best:
            gate, up = mul(x[t : t + 1], "ffn_gate_exps", e), mul(x[t : t + 1], "ffn_up_exps", e)
            y = mul(r(r(gate / (1 + np.exp(-gate))) * up), "ffn_down_exps", e)[0]
            out[t] += r(y * routes[t, e] / routes[t, best].sum())
    last = norm(r(h + r(out)), w["output_norm"], r)
    if seen is not None:
        seen |= {"hidden.0": w["token_embd"][ids], "hidden.1": last}
        seen["gap"] = (1 - order[:, -K - 1] / order[:, -K]).min()
    return mul(last, "token_embd")


def greedy(w, ids):
    """The tokens, and the least margin of one."""
    tokens, margin = list(ids), 1e9
    for _ in range(STEPS):
        logits = forward(w, np.array(tokens))[-1]
        two = np.sort(logits)[-2:]
        margin = min(margin, two[1] - two[0])
        tokens.append(int(logits.argmax()))
    return tokens[len(ids) :], margin


def make(seed):
    g = np.random.default_rng(seed)
    r = lambda *shape: g.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5)  # noqa: E731
    shapes = {"token_embd": (V, H), "attn_q": (N * D, H), "attn_k": (KV * D, H), "attn_v": (KV * D, H)}
    shapes |= {"attn_output": (H, N * D), "ffn_gate_exps": (E, I, H), "ffn_up_exps": (E, I, H)}
    shapes |= {"ffn_down_exps": (E, H, I)}
    raw = {k: quantize(2 * r(*s), Q4 if "exps" in k else Q8) for k, s in shapes.items()}
    for k in ("attn_norm", "ffn_norm", "output_norm"):
        raw[k] = 1 + r(H)
    raw["ffn_gate_inp"] = 4 * r(E, H)
    values = {k: dequantize(v, Q4 if "exps" in k else Q8) if k in shapes else v for k, v in raw.items()}
    return raw, {k: v.astype(np.float64) for k, v in values.items()}, g.integers(3, V, T)


def turned(rows, heads):
    """Rows of q and k as llama.cpp's converter leaves them: halves of a head take turns."""
    return rows.reshape(heads, 2, D // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(raw):
    w = gguf.GGUFWriter("model.gguf", "llama")
    w.add_block_count(1), w.add_context_length(128), w.add_embedding_length(H), w.add_feed_forward_length(I)
    w.add_head_count(N), w.add_head_count_kv(KV), w.add_layer_norm_rms_eps(1e-5), w.add_rope_freq_base(1e4)
    w.add_expert_count(E), w.add_expert_used_count(K), w.add_vocab_size(V), w.add_rope_dimension_count(D)
    w.add_tokenizer_model("llama"), w.add_eos_token_id(2), w.add_bos_token_id(1)
    w.add_token_list(["<unk>", "<s>", "</s>", "▁"] + [chr(33 + i) for i in range(V - 4)])
    w.add_token_scores([-float(i) for i in range(V)])
    w.add_token_types([2, 3, 3] + [1] * (V - 3))
    for k, v in raw.items():
        v = turned(v, N if k == "attn_q" else KV) if k in ("attn_q", "attn_k") else v
        name = k + ".weight" if k in ("token_embd", "output_norm") else "blk.0." + k + ".weight"
        w.add_tensor(name, v, raw_dtype=(Q4 if "exps" in k else Q8) if v.dtype == np.uint8 else None)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def write_expected(tensors):
    header, data = {}, b""
    for k, v in tensors.items():
        kind = "I64" if v.dtype == np.int64 else "F32"
        header[k] = {"dtype": kind, "shape": list(v.shape), "data_offsets": [len(data), len(data) + v.nbytes]}
        data += v.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open("expected.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


for seed in range(1000):  # the first whose choices stand clear of rounding
    raw, values, ids = make(seed)
    seen = {}
    seen["logits"] = forward(values, ids, seen=seen)
    if seen.pop("gap") < 0.1:
        continue
    tokens, margin = greedy(values, ids)
    if margin > 0.02:
        break
write_gguf(raw)
seen |= {"logits_bf16": forward(values, ids, r=narrow), "logits_act": forward(values, ids, q=blocks)}
write_expected({"input_ids": ids[None], "greedy": np.array(tokens)} | {k: np.float32(v)[None] for k, v in seen.items()})
