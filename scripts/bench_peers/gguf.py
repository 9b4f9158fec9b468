#!/usr/bin/env python3
"""Writes a checkpoint of make_checkpoint as GGUF, which llama.cpp and OpenVINO read: qwen3, qwen3_moe or llama.
The vocabulary is made up, since the checkpoint has none and only ids are fed.
usage: gguf.py FOLDER OUT.gguf [f16]      f16 (needs numpy): matrices as f16, for readers without bf16"""
import array
import json
import mmap
import os
import struct
import sys

ALIGNMENT = 32
F32, F16, BF16 = 0, 1, 30  # types of tensors
BYTES = {F32: 4, F16: 2, BF16: 2}

# Ours under model.layers.N. and llama.cpp's under blk.N.
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
}
EXPERT = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


class Checkpoint:
    """The tensors of a folder, as they lie in its files."""

    def __init__(self, folder):
        self.config = json.load(open(os.path.join(folder, "config.json")))
        self.tensors = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                self.add(os.path.join(folder, name))

    def add(self, path):
        file = open(path, "rb")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (length,) = struct.unpack("<Q", data[:8])
        for name, t in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                assert t["dtype"] == "BF16", f"{name}: {t['dtype']}, not BF16"
                begin, end = (8 + length + offset for offset in t["data_offsets"])
                self.tensors[name] = (t["shape"], memoryview(data)[begin:end])


def widened(data):
    """bf16 as f32: each number behind two bytes of zeros."""
    wide = array.array("I", (number << 16 for number in array.array("H", bytes(data))))
    return wide.tobytes()


def halved(data):
    import numpy
    wide = numpy.frombuffer(data, dtype=numpy.uint16).astype(numpy.uint32) << 16
    return wide.view(numpy.float32).astype(numpy.float16).tobytes()


def in_pairs(rows, heads, data):
    """llama.cpp rotates neighbours where this family rotates halves: rows i and i + half of a head next to each other."""
    row = len(data) // rows
    half = rows // heads // 2
    order = (h * 2 * half + j * half + i for h in range(heads) for i in range(half) for j in range(2))
    return b"".join(data[r * row:(r + 1) * row] for r in order)


def tensor_list(checkpoint):
    """(name, shape, pieces), one after the other as they will lie; pieces are read when they are written."""
    c, tensors = checkpoint.config, checkpoint.tensors
    turned = {"self_attn.q_proj": c["num_attention_heads"], "self_attn.k_proj": c["num_key_value_heads"]}
    for ours, theirs in OUTER.items():
        if ours + ".weight" in tensors:
            shape, data = tensors[ours + ".weight"]
            yield theirs + ".weight", shape, [data]
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for ours, theirs in LAYER.items():
            if at + ours + ".weight" in tensors:
                shape, data = tensors[at + ours + ".weight"]
                if c["model_type"] == "llama" and ours in turned:
                    data = in_pairs(shape[0], turned[ours], data)
                yield f"blk.{layer}.{theirs}.weight", shape, [data]
        for ours, theirs in EXPERT.items():
            experts = [f"{at}mlp.experts.{e}.{ours}.weight" for e in range(c.get("num_experts", 0))]
            if experts:
                shape = tensors[experts[0]][0]
                yield f"blk.{layer}.{theirs}.weight", [len(experts)] + shape, [tensors[e][1] for e in experts]


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def field(key, value):
    """One key of the header; what Python calls it says which type it gets."""
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value[0], str):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return text(key) + struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def vocabulary(count):
    """Bytes in the spelling of GPT-2, then made-up words."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in plain]
    spelt = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [spelt[b] for b in range(256)] + [f"word{i}" for i in range(256, count)]


def fields(c, f16):
    name = c["model_type"].replace("_", "")
    yield "general.architecture", name
    yield "general.name", "random weights"
    yield "general.alignment", ALIGNMENT
    yield "general.file_type", 1 if f16 else 32
    yield "general.quantization_version", 2
    yield name + ".block_count", c["num_hidden_layers"]
    yield name + ".context_length", c["max_position_embeddings"]
    yield name + ".embedding_length", c["hidden_size"]
    yield name + ".feed_forward_length", c["intermediate_size"]
    yield name + ".attention.head_count", c["num_attention_heads"]
    yield name + ".attention.head_count_kv", c["num_key_value_heads"]
    yield name + ".attention.key_length", c["head_dim"]
    yield name + ".attention.value_length", c["head_dim"]
    yield name + ".attention.layer_norm_rms_epsilon", float(c["rms_norm_eps"])
    yield name + ".rope.freq_base", float(c["rope_theta"])
    yield name + ".rope.dimension_count", c["head_dim"]
    yield name + ".vocab_size", c["vocab_size"]
    if "num_experts" in c:
        yield name + ".expert_count", c["num_experts"]
        yield name + ".expert_used_count", c["num_experts_per_tok"]
        yield name + ".expert_feed_forward_length", c["moe_intermediate_size"]
    words = vocabulary(c["vocab_size"])
    yield "tokenizer.ggml.model", "gpt2"
    yield "tokenizer.ggml.pre", "qwen2"
    yield "tokenizer.ggml.tokens", words
    # Without a token of its own kind OpenVINO cannot build the tokenizer, which nobody uses here.
    special = (c["bos_token_id"], c["eos_token_id"])
    yield "tokenizer.ggml.token_type", [3 if i in special else 1 for i in range(len(words))]
    yield "tokenizer.ggml.merges", [words[ord("a")] + " " + words[ord("b")]]
    yield "tokenizer.ggml.bos_token_id", c["bos_token_id"]
    yield "tokenizer.ggml.eos_token_id", c["eos_token_id"]
    yield "tokenizer.ggml.add_bos_token", False


def type_of(name, shape, f16):
    """Vectors and the router stay f32, as llama.cpp wants them."""
    return F32 if len(shape) == 1 or "ffn_gate_inp" in name else F16 if f16 else BF16


def write(folder, out, f16):
    checkpoint = Checkpoint(folder)
    header = [field(key, value) for key, value in fields(checkpoint.config, f16)]
    listed, offset, tensors = [], 0, 0
    for name, shape, _ in tensor_list(checkpoint):
        kind, count = type_of(name, shape, f16), 1
        for n in shape:
            count *= n
        listed.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset))
        offset += -(-count * BYTES[kind] // ALIGNMENT) * ALIGNMENT
        tensors += 1
    with open(out + ".part", "wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, tensors, len(header)) + b"".join(header + listed))
        for name, shape, pieces in tensor_list(checkpoint):
            kind = type_of(name, shape, f16)
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            for piece in pieces:
                file.write(widened(piece) if kind == F32 else halved(piece) if kind == F16 else piece)
    os.replace(out + ".part", out)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2], len(sys.argv) == 4 and sys.argv[3] == "f16")
