#!/usr/bin/env python3
"""Tenon and its peers in turns on the same checkpoints: what make bench-peers runs, after everything is installed.

In each round every program runs once for each model and number of threads, and before each it is measured how fast memory
is read and how many operations of bf16 the processor does at that moment. Figures are medians over the rounds. What was
measured stays in BUILD/peers/results.jsonl, a line for each run; the tables go to BUILD/bench-peers.md and, with --write,
between the markers of the page."""
import collections
import json
import os
import statistics
import struct
import sys
import time

from common import HERE, Failed, Files, add_line, be_urgent, begin_arguments, end_with_children, lines_of, numbers, output_of, say, span, split_name, write_page

NAMES = {"tenon": "Tenon", "none": "without kernels", "llama": "llama.cpp", "openvino": "OpenVINO", "torch": "torch"}
PEERS = ["llama", "openvino", "torch"]
OPENVINO_READS = ("llama", "qwen3")  # model types of GGUF files


def arguments():
    p = begin_arguments(__doc__)
    p.add_argument("--models", default="qwen3-0.6b,llama-3.2-1b,moe-1.5b,qwen3-0.6b.Q4_K_M,qwen3-0.6b.Q8_0,moe-1.5b.Q4_K_M",
                   help="names that make_checkpoint --like knows, and these with a type of quantisation")
    p.add_argument("--peers", default=",".join(PEERS), help="which of " + ", ".join(PEERS))
    p.add_argument("--threads", type=numbers, default=[1, 2])
    p.add_argument("--prompts", type=numbers, default=[16, 128, 512, 2048])
    p.add_argument("--contexts", type=numbers, default=[128, 4096], help="positions before decoding")
    p.add_argument("--decode", type=int, default=32, help="tokens decoded")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--add", action="store_true", help="keep what earlier runs measured")
    p.add_argument("--prepare", action="store_true", help="write the checkpoints and end")
    return p.parse_args()


class Bench(Files):
    def __init__(self, options):
        super().__init__(options.build)
        self.o = options
        self.results = os.path.join(self.peers, "results.jsonl")
        self.failed = collections.Counter()  # what failed twice is not tried again

    # ---- files -----------------------------------------------------------------------------------

    def prepare(self):
        for model in self.o.models.split(","):
            self.checkpoint(model)
            for peer, dtype in (("llama", "bf16"), ("openvino", "f16")):
                if self.present(peer, model):
                    self.gguf(model, dtype)
        return 0

    # ---- programs --------------------------------------------------------------------------------

    def tenon(self, model, threads):
        """Both choices of kernels; prompts with decoding behind the first context, then the other contexts."""
        results, extra = {"tenon": {}, "none": {}}, {}
        for i, context in enumerate(self.o.contexts or [0]):
            prompts = self.o.prompts if i == 0 and self.o.prompts else [16]
            command = [self.path("tenon"), "bench", self.checkpoint(model), "--threads", str(threads), "--repeat", "1",
                       "--prompt", ",".join(map(str, prompts)), "--context", str(context), "--decode",
                       str(self.o.decode if self.o.contexts else 0), "--profile", "--json", "--quiet"]
            root = json.loads(output_of(command))
            for r in root["results"]:
                if r["phase"] == "decode" or i == 0:
                    key = f"{r['phase']} {r['context'] if r['phase'] == 'decode' else r['tokens']}"
                    results["tenon" if r["kernels"] == "auto" else "none"][key] = r["tokens_per_second"]
            for case in root["profile"]:
                key = f"{case['phase']} {case['context'] if case['phase'] == 'decode' else case['tokens']}"
                extra[key] = {what: sum(row[what] for row in case["rows"]) / case["tokens"]
                              for what in ("operations", "bytes")}
            memory = root["memory"]
        extra["memory"] = {k: memory[k] for k in ("peak_bytes", "weight_bytes", "cache_bytes")}
        extra["start_seconds"] = self.start(model, threads)
        return [("tenon", self.tenon_version(), results["tenon"], extra), ("none", "", results["none"], {})]

    def start(self, model, threads):
        """Seconds of a whole process that computes the logits of one token."""
        ids, logits = (os.path.join(self.peers, name) for name in ("ids.safetensors", "logits.safetensors"))
        header = json.dumps({"input_ids": {"dtype": "I64", "shape": [1, 1], "data_offsets": [0, 8]}}).encode()
        with open(ids, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + struct.pack("<q", 100))
        begin = time.perf_counter()
        output_of([self.path("tenon"), "logits", self.checkpoint(model), "--input", ids, "--output", logits,
                   "--kernels=auto", "--threads", str(threads), "--quiet"])
        return time.perf_counter() - begin

    def llama(self, model, threads):
        program = os.path.join(self.peers, "llama", "build", "bin", "llama-bench")
        common = [program, "-m", self.gguf(model, "bf16"), "-t", str(threads), "-r", "1", "-o", "json"]
        rates = {}
        for context in self.o.contexts:
            for r in json.loads(output_of(common + ["-p", "0", "-n", str(self.o.decode), "-d", str(context)])):
                rates[f"decode {r['n_depth']}"] = r["avg_ts"]
        if self.o.prompts:
            for r in json.loads(output_of(common + ["-n", "0", "-p", ",".join(map(str, self.o.prompts))])):
                rates[f"prompt {r['n_prompt']}"] = r["avg_ts"]
        return [("llama", self.llama_version(), rates, {})]

    def python_peer(self, name, what, threads):
        command = [os.path.join(self.peers, name, "bin", "python"), os.path.join(HERE, name + "_peer.py"), what,
                   str(threads), ",".join(map(str, self.o.prompts)), ",".join(map(str, self.o.contexts)),
                   str(self.o.decode)]
        root = json.loads(output_of(command).strip().splitlines()[-1])
        rates = {f"{phase} {n}": rate for phase in ("prompt", "decode") for n, rate in root[phase].items()}
        return [(name, root["version"], rates, {})]

    def openvino(self, model, threads):
        return self.python_peer("openvino", self.gguf(model, "f16"), threads)

    def torch(self, model, threads):
        return self.python_peer("torch", self.checkpoint(model), threads)

    def present(self, peer, model):
        """Is it installed, and does it know such models?"""
        files = {"llama": "llama/build/bin/llama-bench", "openvino": "openvino/complete", "torch": "torch/complete"}
        if not os.path.exists(os.path.join(self.peers, files[peer])):
            return False
        if peer == "torch" and split_name(model)[1]:
            return False
        return peer != "openvino" or self.config(model)["model_type"] in OPENVINO_READS

    # ---- rounds ----------------------------------------------------------------------------------

    def one(self, engine, model, threads, number):
        now = self.machine(threads)
        try:
            measured = getattr(self, engine)(model, threads)
        except (Failed, ValueError, KeyError, IndexError, OSError) as error:
            say(f"{NAMES[engine]} on {model} is left out: {error}")
            self.failed[engine, model, threads] += 1
            return
        for name, version, rates, extra in measured:
            line = {"model": model, "threads": threads, "engine": name, "version": version, "rates": rates, "machine": now,
                    **extra}
            add_line(self.results, line)
            say(f"round {number + 1}, {threads} thread{'s' * (threads > 1)}, {model}, {NAMES[name]}, read "
                f"{now['read_gb_per_second']:.1f} GB/s: " + ", ".join(f"{k} {v:.1f}" for k, v in rates.items()))

    def measure(self):
        os.makedirs(self.peers, exist_ok=True)
        if not self.o.add and os.path.exists(self.results):
            os.remove(self.results)
        models = self.o.models.split(",")
        for number in range(self.o.rounds):
            for threads in self.o.threads:
                for model in models:
                    engines = ["tenon"] + [p for p in self.o.peers.split(",") if p and self.present(p, model)]
                    turn = number % len(engines)
                    for engine in engines[turn:] + engines[:turn]:
                        if self.failed[engine, model, threads] < 2:
                            self.one(engine, model, threads, number)
            self.write()

    # ---- tables ----------------------------------------------------------------------------------

    def write(self):
        page = "\n".join(tables(lines_of(self.results)))
        write_page(page, self.path("bench-peers.md"), "peers: make bench-peers", self.o.write)
        return page


def versions_of(lines):
    versions = {}
    for line in lines:
        if line["version"]:
            versions[line["engine"]] = line["version"]
    return "; ".join(f"{NAMES[e]} {v}" for e, v in sorted(versions.items(), key=lambda item: list(NAMES).index(item[0])))


def rate_text(rate):
    return "–" if rate is None else f"{rate:.0f}" if rate >= 99.5 else f"{rate:.1f}"


def cell_text(rates):
    """The median, and the least and the most."""
    if not rates:
        return "–"
    spread = f" ({rate_text(min(rates))}–{rate_text(max(rates))})" if len(rates) > 1 else ""
    return rate_text(statistics.median(rates)) + spread


def ratio_text(mine, other):
    """Of the medians; in parentheses where the ranges overlap, so that it says nothing."""
    if not mine or not other:
        return "–"
    text = f"{statistics.median(mine) / statistics.median(other):.2f}"
    return f"({text})" if min(mine) <= max(other) and min(other) <= max(mine) else text


def limit_text(mine, extra, machine):
    """Against the longer of two times: the bytes at memory's rate, the operations on the fastest arithmetic, as both were
    measured before those very runs."""
    if not mine:
        return "–"
    runs = list(zip(mine, extra, machine))
    part, kind = max((statistics.median(r * work["bytes"] * 1e-9 / now["read_gb_per_second"] for r, work, now in runs), "mem"),
                     (statistics.median(r * work["operations"] * 1e-9 / now["bf16_gflops"] for r, work, now in runs), "bf16"))
    return f"{100 * part:.0f} % {kind}"


def row_of(phase, threads, by_engine, engines):
    rates = {e: [l["rates"][phase] for l in by_engine[e] if phase in l["rates"]] for e in engines}
    own = [l for l in by_engine["tenon"] if phase in l["rates"] and phase in l]
    mine, peers = rates["tenon"], [rates[e] for e in engines if e in PEERS and rates[e]]
    kind, size = phase.split()
    cells = [f"prompt of {size}" if kind == "prompt" else f"decoding behind {size}", str(threads)]
    cells += [f"**{cell_text(mine)}**" if e == "tenon" else cell_text(rates[e]) for e in engines]
    cells += [ratio_text(mine, max(peers, key=statistics.median) if peers else None), ratio_text(mine, rates.get("llama")),
              limit_text([l["rates"][phase] for l in own], [l[phase] for l in own], [l["machine"] for l in own])]
    return "| " + " | ".join(cells) + " |"


def model_table(model, lines):
    engines = [e for e in NAMES if any(l["engine"] == e for l in lines)]
    yield f"**{model}**, tokens per second"
    yield ""
    yield "| | threads | " + " | ".join(NAMES[e] for e in engines) + " | × best peer | × llama.cpp | of limit |"
    yield "|---|---:|" + "---:|" * (len(engines) + 3)
    phases = list(dict.fromkeys(p for l in lines for p in l["rates"]))
    phases.sort(key=lambda p: (p.startswith("decode"), int(p.split()[1])))
    for threads in sorted({l["threads"] for l in lines}):
        by_engine = collections.defaultdict(list)
        for line in lines:
            if line["threads"] == threads:
                by_engine[line["engine"]].append(line)
        for phase in phases:
            if any(phase in l["rates"] for l in by_engine["tenon"]):
                yield row_of(phase, threads, by_engine, engines)
    own = [l for l in lines if l["engine"] == "tenon"]
    if own:
        memory = own[-1]["memory"]
        more = (memory["peak_bytes"] - memory["weight_bytes"] - memory["cache_bytes"]) / 1e6
        yield ""
        yield (f"Start to the logits of one token, whole process: {min(l['start_seconds'] for l in own):.2f} s. Peak memory: "
               f"{memory['peak_bytes'] / 1e6:.0f} MB, with weights of {memory['weight_bytes'] / 1e6:.0f} MB and a cache of "
               f"{memory['cache_bytes'] / 1e6:.0f} MB" + (f": {more:.0f} MB more." if more >= 0 else
                                                         "; experts that no token chose are never read."))


def tables(lines):
    machines = [l["machine"] for l in lines]
    counts = collections.Counter((l["engine"], l["model"], l["threads"]) for l in lines)
    yield f"**{machines[-1]['cpu']}**, {time.strftime('%Y-%m-%d', time.gmtime())}; {versions_of(lines)}. Medians of " \
          f"{span(list(counts.values()))} rounds (the least and the most), programs in turns."
    for threads in sorted({l["threads"] for l in lines}):
        here = [l["machine"] for l in lines if l["threads"] == threads]
        yield f"Before the runs {threads} thread{'s' * (threads > 1)} read {span([m['read_gb_per_second'] for m in here])} GB/s " \
              f"and did {span([m['bf16_gflops'] for m in here])} GFLOP/s of bf16."
    for model in dict.fromkeys(l["model"] for l in lines):
        yield ""
        yield from model_table(model, [l for l in lines if l["model"] == model])


def main():
    end_with_children()
    bench = Bench(arguments())
    if bench.o.urgent:
        be_urgent()
    if bench.o.prepare:
        return bench.prepare()
    if not bench.o.tables:
        bench.measure()
    print(bench.write())
    return 0


if __name__ == "__main__":
    sys.exit(main())
