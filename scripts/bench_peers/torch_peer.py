#!/usr/bin/env python3
"""One measurement of transformers (eager mode) on a checkpoint: tokens a second as one JSON object on the last line.
usage: torch_peer.py FOLDER THREADS PROMPTS CONTEXTS DECODE      lists are separated by commas"""
import json
import sys
import time

import torch
import transformers

folder, threads = sys.argv[1], int(sys.argv[2])
prompts, contexts = ([int(n) for n in text.split(",") if n] for text in sys.argv[3:5])
decode = int(sys.argv[5])
torch.set_num_threads(threads)
torch.manual_seed(1)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def ids(count):
    return torch.randint(5, model.config.vocab_size - 5, (1, count))


def prompt(tokens):
    begin = time.perf_counter()
    out = model(ids(tokens), use_cache=True, logits_to_keep=1)
    return time.perf_counter() - begin, out.past_key_values


def step(cache):
    begin = time.perf_counter()
    model(ids(1), past_key_values=cache, use_cache=True).logits.argmax(-1)
    return time.perf_counter() - begin


with torch.inference_mode():
    result = {"version": f"{torch.__version__}, transformers {transformers.__version__}", "prompt": {}, "decode": {}}
    for tokens in prompts:
        prompt(tokens)
        result["prompt"][tokens] = tokens / prompt(tokens)[0]
    for context in contexts:
        cache = prompt(context)[1]
        step(cache)
        seconds = sorted(step(cache) for _ in range(decode))
        result["decode"][context] = 1 / seconds[len(seconds) // 2]
print(json.dumps(result))
