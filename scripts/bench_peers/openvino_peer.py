#!/usr/bin/env python3
"""One measurement of OpenVINO GenAI on a GGUF file: tokens a second as one JSON object on the last line.
usage: openvino_peer.py FILE.gguf THREADS PROMPTS CONTEXTS DECODE      lists are separated by commas"""
import json
import random
import sys

import numpy
import openvino
import openvino_genai

file, threads = sys.argv[1], int(sys.argv[2])
prompts, contexts = ([int(n) for n in text.split(",") if n] for text in sys.argv[3:5])
decode = int(sys.argv[5])
pipe = openvino_genai.LLMPipeline(file, "CPU", INFERENCE_NUM_THREADS=threads, INFERENCE_PRECISION_HINT="bf16")


def generate(tokens, new):
    """Milliseconds to the first token, and for each further one."""
    ids = numpy.array([[random.randrange(1000, 30000) for _ in range(tokens)]], dtype=numpy.int64)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    metrics = pipe.generate(inputs, config).perf_metrics
    return metrics.get_ttft().mean, metrics.get_tpot().mean


random.seed(1)
result = {"version": openvino_genai.__version__, "prompt": {}, "decode": {}}
for tokens in prompts:
    generate(tokens, 2)
    result["prompt"][tokens] = tokens / generate(tokens, 2)[0] * 1e3
for context in contexts:
    result["decode"][context] = 1e3 / generate(context, decode + 1)[1]
print(json.dumps(result))
