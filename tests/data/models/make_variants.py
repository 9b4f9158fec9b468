"""Makes the cases of options that no case of transformers has (README.md): random weights and, in float64 by the formulas of the
modeling files, their logits. Plain Python: python3 tests/data/models/make_variants.py [FOLDER]; the same bytes each time."""
import array, json, math, os, random, struct, sys

IDS = [3, 17, 5, 29, 11, 2, 38, 7, 7, 30]
SIZES = dict(vocab_size=40, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=32)
GPT2 = dict(vocab_size=40, n_embd=24, n_layer=2, n_head=3, n_inner=20, n_positions=32)
CASES = {
    "gpt2_scaled": dict(GPT2, model_type="gpt2", scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True),
    "opt_behind": dict(SIZES, model_type="opt", ffn_dim=20, do_layer_norm_before=False, word_embed_proj_dim=12),
    "opt_bare": dict(SIZES, model_type="opt", ffn_dim=20, enable_bias=False, layer_norm_elementwise_affine=False),
    "gpt_neox_turns": dict(SIZES, model_type="gpt_neox", intermediate_size=20, use_parallel_residual=False, rotary_pct=0.5,
                           rotary_emb_base=500, attention_bias=False),
    "phi_norms": dict(SIZES, model_type="phi", intermediate_size=20, num_key_value_heads=1, partial_rotary_factor=0.5, qk_layernorm=True),
    "bloom_normed": dict(model_type="bloom", vocab_size=40, n_embed=24, n_layer=2, num_attention_heads=3,
                         apply_residual_connection_post_layernorm=True),
    "falcon_rw": dict(SIZES, model_type="falcon", alibi=True, bias=True, multi_query=False, parallel_attn=False),
    "falcon_one_norm": dict(SIZES, model_type="falcon", num_attention_heads=6, num_kv_heads=3, new_decoder_architecture=True,
                            num_ln_in_parallel_attn=1, ffn_hidden_size=20, tie_word_embeddings=False),
}
PREFIX = {"gpt2": "transformer.", "opt": "decoder.", "gpt_neox": "gpt_neox.", "phi": "model.", "bloom": "transformer.", "falcon": "transformer."}


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0]


class Weights:
    """Tensors come into being when they are asked for."""

    def __init__(self, prefix, seed):
        self.prefix, self.random, self.tensors = prefix, random.Random(seed), {}

    def __call__(self, name, *shape, around=0.0):
        name = name if name.startswith(("lm_head", "embed_out")) else self.prefix + name
        if name not in self.tensors:
            count, size = math.prod(shape), 0.3 if len(shape) == 1 else 1.5 / math.sqrt(shape[-1])
            self.tensors[name] = shape, array.array("f", (self.random.gauss(around, size) for _ in range(count)))
        shape, flat = self.tensors[name]
        return list(flat) if len(shape) == 1 else [list(flat[i * shape[1]:(i + 1) * shape[1]]) for i in range(shape[0])]

    def linear(self, x, name, out, bias=True):
        return product(x, self(name + ".weight", out, len(x[0])), self(name + ".bias", out) if bias else [0] * out)

    def norm(self, x, name, affine=True):
        n = len(x[0])
        w, b = (self(name + ".weight", n, around=1.0), self(name + ".bias", n)) if affine else ([1] * n, [0] * n)
        return [[(v - sum(r) / n) / math.sqrt(sum((u - sum(r) / n) ** 2 for u in r) / n + 1e-5) * w[i] + b[i] for i, v in enumerate(r)] for r in x]


def product(x, w, b):
    return [[sum(map(float.__mul__, r, c)) + b[j] for j, c in enumerate(w)] for r in x]


def add(*terms):
    return [[sum(v) for v in zip(*rows)] for rows in zip(*terms)]


def columns(x, at, n):
    return [r[at:at + n] for r in x]


def gelu(x):
    return [[0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in r] for r in x]


def gelu_tanh(x):
    return [[0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v ** 3))) for v in r] for r in x]


def relu(x):
    return [[max(v, 0.0) for v in r] for r in x]


def rotate(x, size, theta):
    rows = [list(r) for r in x]
    for t, r in enumerate(rows):
        for i in range(size // 2):
            c, s, a, b = math.cos(t * theta ** (-2 * i / size)), math.sin(t * theta ** (-2 * i / size)), r[i], r[i + size // 2]
            r[i], r[i + size // 2] = a * c - b * s, b * c + a * s
    return rows


def attend(q, k, v, scale, bias=lambda head, place: 0.0):
    """Lists of heads, of which q may have more; bias by head and place of the key."""
    out = [[] for _ in q[0]]
    for h in range(len(q)):
        keys, values = k[h * len(k) // len(q)], v[h * len(k) // len(q)]
        for t, row in enumerate(q[h]):
            p = [math.exp(sum(map(float.__mul__, row, keys[j])) * scale + bias(h, j)) for j in range(t + 1)]
            out[t] += [sum(p[j] * values[j][i] for j in range(t + 1)) / sum(p) for i in range(len(values[0]))]
    return out


def split(x, k, group, d):
    """Queries of each key head, its key, its value, and so on."""
    step = (group + 2) * d
    q = [columns(x, i // group * step + i % group * d, d) for i in range(k * group)]
    return q, [columns(x, i * step + group * d, d) for i in range(k)], [columns(x, i * step + (group + 1) * d, d) for i in range(k)]


def slopes(heads):
    n = 2 ** int(math.log2(heads))
    return [2 ** (-8 * (i + 1) / n) for i in range(n)] + [2 ** (-4 * (2 * i + 1) / n) for i in range(heads - n)]


def gpt2(c, w):
    n, heads = c["n_embd"], c["n_head"]
    turned = lambda x, name, out: product(x, list(zip(*w(name + ".weight", len(x[0]), out))), w(name + ".bias", out))
    words = w("wte.weight", c["vocab_size"], n)
    h = add([words[i] for i in IDS], w("wpe.weight", c["n_positions"], n))
    for i in range(c["n_layer"]):
        p = f"h.{i}."
        x = turned(w.norm(h, p + "ln_1"), p + "attn.c_attn", 3 * n)
        q, k, v = [[columns(x, j * n + a * n // heads, n // heads) for a in range(heads)] for j in range(3)]
        h = add(h, turned(attend(q, k, v, 1 / (i + 1)), p + "attn.c_proj", n))
        h = add(h, turned(gelu_tanh(turned(w.norm(h, p + "ln_2"), p + "mlp.c_fc", c["n_inner"])), p + "mlp.c_proj", n))
    return product(w.norm(h, "ln_f"), words, [0] * len(words))


def opt(c, w):
    n, heads, bias, affine = c["hidden_size"], c["num_attention_heads"], c.get("enable_bias", True), c.get("layer_norm_elementwise_affine", True)
    before, width, d = c.get("do_layer_norm_before", True), c.get("word_embed_proj_dim", n), n // heads
    words = w("embed_tokens.weight", c["vocab_size"], width)
    h = [words[i] for i in IDS]
    h = w.linear(h, "project_in", n, False) if width != n else h
    h = add(h, w("embed_positions.weight", c["max_position_embeddings"] + 2, n)[2:])
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        x = w.norm(h, p + "self_attn_layer_norm", affine) if before else h
        q, k, v = [[columns(y, a * d, d) for a in range(heads)] for y in (w.linear(x, p + f"self_attn.{z}_proj", n, bias) for z in "qkv")]
        h = add(h, w.linear(attend(q, k, v, d ** -0.5), p + "self_attn.out_proj", n, bias))
        h = h if before else w.norm(h, p + "self_attn_layer_norm", affine)
        x = w.norm(h, p + "final_layer_norm", affine) if before else h
        h = add(h, w.linear(relu(w.linear(x, p + "fc1", c["ffn_dim"], bias)), p + "fc2", n, bias))
        h = h if before else w.norm(h, p + "final_layer_norm", affine)
    h = w.norm(h, "final_layer_norm", affine) if before else h
    h = w.linear(h, "project_out", width, False) if width != n else h
    return product(h, words, [0] * len(words))


def gpt_neox(c, w):
    n, heads = c["hidden_size"], c["num_attention_heads"]
    d, theta = n // heads, c["rotary_emb_base"]
    words, size = w("embed_in.weight", c["vocab_size"], n), int(d * c["rotary_pct"])
    h = [words[i] for i in IDS]
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        q, k, v = split(w.linear(w.norm(h, p + "input_layernorm"), p + "attention.query_key_value", 3 * n, False), heads, 1, d)
        o = attend([rotate(x, size, theta) for x in q], [rotate(x, size, theta) for x in k], v, d ** -0.5)
        h = add(h, w.linear(o, p + "attention.dense", n, False))
        x = w.linear(w.norm(h, p + "post_attention_layernorm"), p + "mlp.dense_h_to_4h", c["intermediate_size"])
        h = add(h, w.linear(gelu(x), p + "mlp.dense_4h_to_h", n))
    return w.linear(w.norm(h, "final_layer_norm"), "embed_out", len(words), False)


def phi(c, w):
    n, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    d = n // heads
    words, turn = w("embed_tokens.weight", c["vocab_size"], n), lambda x: rotate(x, int(d * c["partial_rotary_factor"]), 10000)
    h = [words[i] for i in IDS]
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        x = w.norm(h, p + "input_layernorm")
        q, k, v = [[columns(y, a * d, d) for a in range(len(y[0]) // d)]
                   for y in (w.linear(x, p + f"self_attn.{z}_proj", m * d) for z, m in (("q", heads), ("k", kv), ("v", kv)))]
        q, k = [turn(w.norm(y, p + "self_attn.q_layernorm")) for y in q], [turn(w.norm(y, p + "self_attn.k_layernorm")) for y in k]
        h = add(h, w.linear(attend(q, k, v, d ** -0.5), p + "self_attn.dense", n),
                w.linear(gelu_tanh(w.linear(x, p + "mlp.fc1", c["intermediate_size"])), p + "mlp.fc2", n))
    return w.linear(w.norm(h, "final_layernorm"), "lm_head", len(words))


def bloom(c, w):
    n, heads = c["n_embed"], c["num_attention_heads"]
    words, d, m = w("word_embeddings.weight", c["vocab_size"], n), n // heads, slopes(heads)
    h = w.norm([words[i] for i in IDS], "word_embeddings_layernorm")
    for i in range(c["n_layer"]):
        p = f"h.{i}."
        x = w.norm(h, p + "input_layernorm")
        q, k, v = split(w.linear(x, p + "self_attention.query_key_value", 3 * n), heads, 1, d)
        o = attend(q, k, v, d ** -0.5, lambda head, place: m[head] * place)
        x = w.norm(add(x, w.linear(o, p + "self_attention.dense", n)), p + "post_attention_layernorm")
        h = add(x, w.linear(gelu_tanh(w.linear(x, p + "mlp.dense_h_to_4h", 4 * n)), p + "mlp.dense_4h_to_h", n))
    return product(w.norm(h, "ln_f"), words, [0] * len(words))


def falcon(c, w):
    n, heads, bias, alibi = c["hidden_size"], c["num_attention_heads"], c.get("bias", False), c.get("alibi", False)
    kv, d, m = c.get("num_kv_heads", heads), n // heads, [bf16(s) for s in slopes(heads)]
    words, turn = w("word_embeddings.weight", c["vocab_size"], n), lambda x: x if alibi else rotate(x, d, 10000)
    h = [words[i] for i in IDS]
    for i in range(c["num_hidden_layers"]):
        p = f"h.{i}."
        x = w.norm(h, p + "input_layernorm")
        q, k, v = split(w.linear(x, p + "self_attention.query_key_value", n + 2 * kv * d, bias), kv, heads // kv, d)
        lean = (lambda head, place: bf16(m[head] * place) * d ** -0.5) if alibi else (lambda head, place: 0.0)
        o = w.linear(attend([turn(y) for y in q], [turn(y) for y in k], v, d ** -0.5, lean), p + "self_attention.dense", n, bias)
        x = x if c.get("parallel_attn", True) else w.norm(add(h, o), p + "post_attention_layernorm")
        x = w.linear(gelu(w.linear(x, p + "mlp.dense_h_to_4h", c.get("ffn_hidden_size", 4 * n), bias)), p + "mlp.dense_4h_to_h", n, bias)
        h = add(h, o, x)
    h = w.norm(h, "ln_f")
    return product(h, words, [0] * len(words)) if c.get("tie_word_embeddings", True) else w.linear(h, "lm_head", len(words), False)


def write(path, tensors):
    header, data = {}, b""
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


for number, (case, config) in enumerate(CASES.items()):
    folder = os.path.join(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)), case)
    kind = config["model_type"]
    weights = Weights(PREFIX[kind], number + 1)
    logits = globals()[kind](config, weights)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(dict(config, torch_dtype="float32"), f, indent=1)
        f.write("\n")
    write(os.path.join(folder, "model.safetensors"), [(n, "F32", list(s), a.tobytes()) for n, (s, a) in sorted(weights.tensors.items())])
    flat = array.array("f", (v for row in logits for v in row))
    write(os.path.join(folder, "expected.safetensors"), [("input_ids", "I64", [1, len(IDS)], struct.pack(f"<{len(IDS)}q", *IDS)),
                                                         ("logits", "F32", [1, len(IDS), config["vocab_size"]], flat.tobytes())])
