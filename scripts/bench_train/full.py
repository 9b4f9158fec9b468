#!/usr/bin/env python3
"""How fast and how large torch trains all weights of a model on the CPU, in f32 with products in bfloat16 (autocast).

    python full.py MODEL [--tokens 512] [--steps 4] [--threads 2]

One row of random tokens, every position counts; fused AdamW, gradients cut to a norm of 1. Prints one line of JSON: tokens
per second of the median step without the first."""
import argparse
import json
import statistics
import time

import torch
import transformers


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--threads", type=int, default=2)
    return p.parse_args()


def step(model, optimizer, ids):
    begin = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids, num_items_in_batch=ids.numel() - 1).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begin


def main():
    o = arguments()
    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.float32, attn_implementation="sdpa")
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, model.config.vocab_size, (1, o.tokens))
    seconds = [step(model, optimizer, ids) for _ in range(o.steps)]
    print(json.dumps({"tokens_per_second": round(o.tokens / statistics.median(seconds[1:] or seconds), 1)}))


if __name__ == "__main__":
    main()
