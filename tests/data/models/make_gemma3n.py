"""Makes the case gemma3n: the whole Gemma 3n with a small tower, of every kind of block that mobilenetv5_300m_enc has.

usage: make_gemma3n.py FOLDER   (torch, transformers 5.23.0, timm 1.0.31)
"""
import copy
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from timm.models._efficientnet_builder import decode_arch_def
from transformers import Gemma3nConfig, Gemma3nForConditionalGeneration

STAGES = [
    ["er_r1_k3_s2_e2_c8", "er_r1_k3_s1_e4_c8"],
    ["uir_r1_a3_k5_s2_e3_c16", "uir_r1_a5_k0_s1_e2_c16"],
    ["uir_r1_a5_k5_s2_e2_c16", "uir_r1_a0_k0_s1_e1_c16", "mqa_r1_k3_h3_v2_s1_d8_c16", "uir_r1_a0_k0_s1_e2_c16"],
    ["uir_r1_a5_k5_s2_e2_c8", "mqa_r1_k3_h2_s1_d16_c8", "uir_r1_a0_k0_s1_e2_c8"],
]
TEXT = dict(
    vocab_size=128, vocab_size_per_layer_input=116, hidden_size=32, hidden_size_per_layer_input=8, intermediate_size=48,
    num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_kv_shared_layers=2,
    sliding_window=8, layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"], max_position_embeddings=256,
    activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0, 0.0], laurel_rank=8, altup_num_inputs=3, pad_token_id=0, bos_token_id=1,
    eos_token_id=2)
IMAGE, BEGIN, END = 117, 100, 116


def make_config():
    vision = dict(
        model_type="gemma3n_vision", architecture="mobilenetv5_300m_enc", hidden_size=2048, vocab_size=4, vocab_offset=116,
        rms_norm_eps=1e-6, do_pooling=False, num_classes=2, initializer_range=0.02,
        model_args=dict(block_args=decode_arch_def(STAGES), stem_size=8, msfa_output_resolution=2))
    audio = dict(
        model_type="gemma3n_audio", hidden_size=16, conf_num_attention_heads=2, conf_num_hidden_layers=1, vocab_offset=120,
        vocab_size=8, input_feat_size=16, sscp_conv_channel_size=[4, 4])
    return dict(
        architectures=["Gemma3nForConditionalGeneration"], model_type="gemma3n", text_config=TEXT, vision_config=vision,
        audio_config=audio, image_token_id=IMAGE, boi_token_id=BEGIN, eoi_token_id=END, audio_token_id=121, boa_token_id=101,
        eoa_token_id=120, vision_soft_tokens_per_image=4, audio_soft_tokens_per_image=4, tie_word_embeddings=True,
        torch_dtype="bfloat16", eos_token_id=2, transformers_version="5.23.0")


def randomise(model):
    for name, p in sorted(model.named_parameters()):
        if p.ndim > 1:
            p.data = torch.randn(p.shape) * (0.3 if "embedding" in name or "embed_tokens" in name else
                                             1.3 / (p[0].numel() ** 0.5))
        elif "gamma" in name:
            p.data = 0.3 + 0.5 * torch.rand(p.shape)
        else:
            p.data = 1 + 0.3 * torch.randn(p.shape) if "bias" not in name else 0.2 * torch.randn(p.shape)
        p.data = p.data.to(torch.bfloat16).float()


def run(model, ids, pixels, dtype):
    model = model.to(dtype)
    with torch.no_grad():
        return model(input_ids=ids, pixel_values=pixels, output_hidden_states=True, use_cache=False)


def make(folder, size=(64, 96), seed=5):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    written = make_config()
    config = Gemma3nConfig.from_dict(copy.deepcopy(written))
    config._attn_implementation = "eager"
    model = Gemma3nForConditionalGeneration(config).eval()
    randomise(model)
    tensors = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()
               if k != "lm_head.weight" and "audio_tower." not in k}
    pixels = torch.rand(2, 3, *size)
    picture = [BEGIN] + [IMAGE] * 4 + [END]
    ids = torch.tensor([[1, 11, 25] + picture + [7, 41, 90] + picture + [33, 118, 5, 60, 8]])
    out = run(model, ids, pixels, torch.float32)
    expected = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels, "logits": out.logits,
                "token_type_ids": (ids == IMAGE).long()}
    hidden = out.hidden_states
    for i, h in enumerate(hidden):
        expected[f"hidden.{i}"] = h if h.ndim == 3 else h[0]
    expected["image_features"] = out.image_hidden_states.reshape(-1, TEXT["hidden_size"])
    greedy, more = ids, []
    for _ in range(16):
        with torch.no_grad():
            token = model(input_ids=greedy, pixel_values=pixels, use_cache=False).logits[0, -1].argmax()
        greedy = torch.cat([greedy, token.view(1, 1)], 1)
        more.append(int(token))
    assert not any(t == IMAGE or t >= 120 for t in more), more
    expected["greedy"] = torch.tensor(more)
    expected["logits_bf16"] = run(model, ids, pixels, torch.bfloat16).logits.float()
    save_file({k: v.contiguous() for k, v in expected.items()}, folder / "expected.safetensors")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(written, indent=1) + "\n")
    return model, out, expected


if __name__ == "__main__":
    _, out, expected = make(sys.argv[1])
    for k, v in expected.items():
        print(k, tuple(v.shape), v.dtype)
    print(expected["greedy"], (expected["logits"] - expected["logits_bf16"]).pow(2).mean().sqrt(), expected["logits"].std())
