#!/usr/bin/env python3
"""Kernels in live models beside torch: single modules, prompts, steps of LoRA and apply itself. Each line is one process,
in which eager, torch.compile and Tenon take turns; what is told are medians, and the ratios of the same turns."""
import argparse
import copy
import json
import os
import resource
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench_peers"))
import common

QWEN3 = dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
             num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)
MOE = dict(vocab_size=65536, hidden_size=1024, intermediate_size=3072, num_hidden_layers=18, num_attention_heads=16,
           num_key_value_heads=4, head_dim=64, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=384,
           norm_topk_prob=True, tie_word_embeddings=True)
SHAPES = {"0.6b": ("qwen3", QWEN3), "moe": ("qwen3_moe", MOE)}
WAYS = ("eager", "compile", "tenon")


# ---- one line, in a process of its own -----------------------------------------------------------


class Line:
    """Calls of a line's kind, made in turns."""

    def __init__(self, ask):
        import torch
        import transformers
        import tenon

        self.torch, self.transformers, self.tenon, self.ask = torch, transformers, tenon, ask
        self.tokens = 64 if ask["short"] else 512
        torch.set_num_threads(ask["threads"])
        torch.manual_seed(1)

    def model(self, shape, layers=None, training=False, dtype=None):
        kind, config = SHAPES[shape]
        layers = layers or (2 if self.ask["short"] else config["num_hidden_layers"])
        config = self.transformers.AutoConfig.for_model(kind, **{**config, "num_hidden_layers": layers})
        made = self.transformers.AutoModelForCausalLM.from_config(config, dtype=dtype or self.torch.bfloat16)
        return made.train() if training else made.eval()

    def both(self, model, **more):
        """The model, and one like it with kernels."""
        ours = copy.deepcopy(model)
        applied = self.tenon.apply(ours, **more)
        return model, ours, applied.summary

    def turns(self, calls, repeat):
        """Seconds of each way's call, as lists: repeat times as often as fills a hundredth of a second."""
        times = {way: [] for way in calls}
        counts = {}
        for way, call in calls.items():
            call()
            call()
            begin = time.perf_counter()
            call()
            counts[way] = max(1, min(2000, int(0.01 / (time.perf_counter() - begin))))
        for _ in range(repeat):
            for way, call in calls.items():
                begin = time.perf_counter()
                for _ in range(counts[way]):
                    call()
                times[way].append((time.perf_counter() - begin) / counts[way])
        return times

    def of(self, torchs, ours, call, repeat=None):
        calls = {"eager": lambda: call(torchs), "tenon": lambda: call(ours)}
        if "compile" in self.ask["ways"]:
            fast = self.torch.compile(torchs)
            calls = {"eager": calls["eager"], "compile": lambda: call(fast), "tenon": calls["tenon"]}
        return self.turns(calls, repeat or self.ask["repeat"])

    def module(self, path, call, dtype=None, training=False, **shape):
        torch = self.torch
        kind, config = SHAPES["0.6b"]
        config = {**config, "num_hidden_layers": 1, "vocab_size": 1024, **shape}
        config = self.transformers.AutoConfig.for_model(kind, **config)
        made = self.transformers.AutoModelForCausalLM.from_config(config, dtype=dtype or torch.bfloat16).eval()
        torchs, ours, _ = self.both(made, training=training)
        with torch.set_grad_enabled(training):
            times = self.of(torchs.get_submodule(path), ours.get_submodule(path), call)
        said = next(s for s in self.tenon.report(ours).sites if s.path == path)
        return times, said.kernel and f"{said.calls} calls by {said.kernel}, {said.eager_calls} by torch" or said.reason

    # ---- the lines

    def norm16(self, training=False):
        x = self.torch.randn(1, 16, dtype=self.torch.float32)
        return self.module("model.norm", lambda norm: norm(x), self.torch.float32, training, hidden_size=16,
                           intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=8)

    def norm16_recorded(self):
        return self.norm16(True)

    def norm512(self):
        x = self.torch.randn(1, self.tokens, 1024).bfloat16()
        return self.module("model.norm", lambda norm: norm(x))

    def mlp512(self):
        x = self.torch.randn(1, self.tokens, 1024).bfloat16()
        return self.module("model.layers.0.mlp", lambda mlp: mlp(x))

    def attention512(self):
        torch = self.torch
        x, tables = torch.randn(1, self.tokens, 1024).bfloat16(), torch.randn(2, 1, self.tokens, 128).bfloat16()
        call = lambda a: a(hidden_states=x, position_embeddings=(tables[0], tables[1]), attention_mask=None)
        return self.module("model.layers.0.self_attn", call)

    def prompt(self, shape):
        ids = self.torch.randint(5, 1000, (1, self.tokens))
        torchs, ours, summary = self.both(self.model(shape))
        with self.torch.no_grad():
            return self.of(torchs, ours, lambda m: m(ids, use_cache=False, logits_to_keep=1)), summary

    def prompt_06b(self):
        return self.prompt("0.6b")

    def prompt_moe(self):
        return self.prompt("moe")

    def lora(self, shape):
        import peft

        ids = self.torch.randint(5, 1000, (1, self.tokens))
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
        config = lambda: peft.LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM")
        plain = self.model(shape, training=True)
        other = copy.deepcopy(plain)
        torchs, ours = (peft.get_peft_model(m, config()) for m in (plain, other))
        applied = self.tenon.apply(ours, training=True)

        def step(model):
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            model.zero_grad()

        return self.of(torchs, ours, step), applied.summary

    def lora_06b(self):
        return self.lora("0.6b")

    def lora_moe(self):
        return self.lora("moe")

    def apply(self):
        """Seconds of the first apply, and of another; in place of a way's name."""
        model, times = self.model("0.6b"), {}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for name in ("first", "again"):
            begin = time.perf_counter()
            self.tenon.apply(model)
            times[name] = [time.perf_counter() - begin]
            self.tenon.revert(model)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
        return times, f"largest memory grew by {grown:.0f} MiB; the weights are {weights:.0f}"


LINES = {
    "norm16": "RMSNorm of 16 elements",
    "norm16_recorded": "the same, recorded for gradients",
    "norm512": "RMSNorm 512 × 1024, bf16",
    "mlp512": "MLP 512 × 1024 → 3072, bf16",
    "attention512": "attention 512, 16 heads of 128, bf16",
    "prompt_06b": "Qwen3-0.6B, prompt of 512, bf16",
    "prompt_moe": "MoE 1.5 B, prompt of 512, bf16",
    "lora_06b": "LoRA step 1 × 512, Qwen3-0.6B",
    "lora_moe": "LoRA step 1 × 512, MoE 1.5 B",
    "apply": "apply on Qwen3-0.6B, with check",
}


def one(ask):
    import torch
    import transformers

    times, said = getattr(Line(ask), ask["line"])()
    print(json.dumps(dict(times=times, said=said, versions=[torch.__version__, transformers.__version__])))


# ---- all of them ---------------------------------------------------------------------------------


def told(seconds):
    unit, factor = ("µs", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1)
    return f"{seconds * factor:.3g} {unit}"


def row(name, result):
    if "again" in result["times"]:
        first, again = (result["times"][k][0] for k in ("first", "again"))
        return f"| {LINES[name]} | | | {told(first)}; again {told(again)} | | |"
    medians = {way: statistics.median(times) for way, times in result["times"].items()}
    cells = [told(medians[way]) if way in medians else "" for way in WAYS]
    for way in ("eager", "compile"):
        ratios = [a / b for a, b in zip(result["times"].get(way, []), result["times"]["tenon"])]
        cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
    return f"| {LINES[name]} | " + " | ".join(cells) + " |"


def page(results, machine, threads):
    versions = next(iter(results.values()))["versions"]
    return "\n".join([
        f"{machine['cpu']}, {threads} threads, reading {machine['read_gb_per_second']:.0f} GB/s. torch {versions[0]}, transformers {versions[1]}. Medians; ratios are"
        " those of the same turns, above 1 Tenon is faster.",
        "",
        "| | eager | torch.compile | Tenon | of eager | of compile |",
        "|---|---|---|---|---|---|",
        *(row(name, result) for name, result in results.items()),
        "",
        *(f"* {LINES[name]}: {result['said']}." for name, result in results.items()),
    ])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--lines", default=",".join(LINES), help="some of " + ", ".join(LINES))
    parser.add_argument("--ways", default=",".join(WAYS), help="eager and tenon are always there; compile takes minutes")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=9, help="turns of each line")
    parser.add_argument("--short", action="store_true", help="two layers and 64 tokens: to see whether it works")
    parser.add_argument("--write", metavar="FILE", help="write the table between the markers of this page, too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(json.loads(args.one))
    common.end_with_children()
    results = {}
    for name in args.lines.split(","):
        if name not in LINES:
            parser.error(f"--lines has {name!r}, and knows {', '.join(LINES)}")
        common.say(LINES[name])
        ask = dict(line=name, ways=args.ways.split(","), threads=args.threads, repeat=args.repeat, short=args.short)
        try:
            out = common.output_of([sys.executable, os.path.abspath(__file__), args.build, "--one", json.dumps(ask)])
            results[name] = json.loads(out.splitlines()[-1])
            common.say(row(name, results[name]))
        except common.Failed as failed:
            common.say(f"{name} is left out: {failed}")
    if not results:
        sys.exit("nothing was measured")
    text = page(results, common.Files(args.build).machine(args.threads), args.threads)
    print(text)
    if args.short and args.write:
        sys.exit("--short measures nothing that is worth writing")
    common.write_page(text, os.path.join(args.build, "bench-python.md"), "python: make bench-python", args.write)
    return None


if __name__ == "__main__":
    main()
