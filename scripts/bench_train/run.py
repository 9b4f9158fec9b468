#!/usr/bin/env python3
"""Tenon and torch with peft training the same checkpoints in turns: what make bench-train runs, after all is installed.

In each round every way of training runs once for each model, as a process of its own: a few steps of one row of tokens, of
which the first does not count. Figures are medians over the rounds; memory is the most that the process had. What was
measured stays in BUILD/peers/train.jsonl; the table goes to BUILD/bench-train.md and, with --write, between the markers of
the page. The program that trains with torch is given by --peft."""
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench_peers"))
from common import Failed, Files, add_line, be_urgent, begin_arguments, end_with_children, lines_of, own_session, say, write_page  # noqa: E402

TENON = {"bf16 base": ["--precision", "mixed", "--keep", "all"],
         "bf16 base, layers again": ["--precision", "mixed", "--keep", "layers"],
         "f32": ["--precision", "f32"],
         "all weights, mixed": ["--full", "--precision", "mixed"]}
# None: full.py beside this file, which trains all weights.
TORCH = {"bf16 base": ["--mode", "pure"],
         "bf16 base, autocast": ["--mode", "amp"],
         "all bf16": ["--mode", "bf16"],
         "bf16 base, checkpointing": ["--mode", "pure", "--checkpointing"],
         "f32": ["--mode", "f32"],
         "all weights, mixed": None}


def arguments():
    p = begin_arguments(__doc__)
    p.add_argument("--models", default="qwen3-0.6b,moe-1.5b", help="names that make_checkpoint --like knows, or folders")
    p.add_argument("--ways", default="", help="a part of the names of the ways to run; all of them")
    p.add_argument("--peft", default="../shared/training/bench_peft.py", help="the program that trains with torch")
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    return p.parse_args()


def run(command):
    """What it printed, and the most memory that it had, in bytes."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=own_session) as process:
        out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Failed((err.strip().splitlines() or ["no message"])[-1][:200])
    return out, usage.ru_maxrss * 1024


class Bench(Files):
    def __init__(self, options):
        super().__init__(options.build)
        self.o = options
        self.results = os.path.join(self.peers, "train.jsonl")
        self.python = os.path.join(self.peers, "torch", "bin", "python")

    def folder(self, model):
        return model if os.path.isdir(model) else self.checkpoint(model)

    def data(self, model):
        """A row of random tokens for each step."""
        with open(os.path.join(self.folder(model), "config.json"), encoding="utf-8") as file:
            vocabulary = json.load(file)["vocab_size"]
        path, draw = os.path.join(self.peers, "train-data.jsonl"), random.Random(0)
        with open(path, "w", encoding="ascii") as file:
            for _ in range(self.o.steps):
                file.write(json.dumps({"input_ids": [draw.randrange(vocabulary) for _ in range(self.o.tokens)]}) + "\n")
        return path

    def tenon(self, model, way):
        out = os.path.join(self.peers, "train-out")
        shutil.rmtree(out, ignore_errors=True)
        said, memory = run([self.path("tenon"), "train", self.folder(model), self.data(model), "--out", out,
                            "--length", str(self.o.tokens), "--batch", "1", "--accumulate", "1", "--epochs", "1",
                            "--threads", str(self.o.threads), "--save-every", "1000000", *TENON[way]])
        shutil.rmtree(out, ignore_errors=True)
        rates = [float(rate) for rate in re.findall(r"^step .*, ([0-9.]+) tokens/s", said, re.MULTILINE)]
        return statistics.median(rates[1:] or rates), memory

    def torch(self, model, way):
        own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "full.py")
        said, memory = run([self.python, self.o.peft if TORCH[way] else own, self.folder(model), "--tokens",
                            str(self.o.tokens), "--steps", str(self.o.steps), "--threads", str(self.o.threads),
                            *(TORCH[way] or [])])
        return json.loads(said.strip().splitlines()[-1])["tokens_per_second"], memory

    def ways(self):
        torch = TORCH if os.path.exists(self.python) and os.path.exists(self.o.peft) else {}
        all_of_them = [(self.tenon, "Tenon", way) for way in TENON] + [(self.torch, "torch", way) for way in torch]
        return [w for w in all_of_them if self.o.ways in w[2]]

    def measure(self):
        os.makedirs(self.peers, exist_ok=True)
        if os.path.exists(self.results):
            os.remove(self.results)
        for number in range(self.o.rounds):
            for model in self.o.models.split(","):
                ways = self.ways()
                turn = number % len(ways)
                for train, engine, way in ways[turn:] + ways[:turn]:
                    try:
                        rate, memory = train(model, way)
                    except (Failed, ValueError, KeyError, IndexError, OSError) as error:
                        say(f"{engine}, {way}, on {model} is left out: {error}")
                        continue
                    add_line(self.results, {"model": os.path.basename(model), "engine": engine, "way": way, "rate": rate,
                                            "memory": memory, "threads": self.o.threads, "tokens": self.o.tokens})
                    say(f"round {number + 1}, {model}, {engine}, {way}: {rate:.1f} tokens/s, {memory / 2**30:.2f} GiB")
            self.write()

    def write(self):
        page = "\n".join(table(lines_of(self.results)))
        write_page(page, self.path("bench-train.md"), "training: make bench-train", self.o.write)
        return page


def table(lines):
    if not lines:
        yield "Nothing was measured."
        return
    yield f"LoRA of rank 8 on all linear layers (or all weights), {lines[0]['tokens']} tokens a step, {lines[0]['threads']} threads:"
    yield ""
    yield "| model | | | tokens/s | memory, GiB |"
    yield "|---|---|---|---:|---:|"
    groups = {}
    for line in lines:
        groups.setdefault((line["model"], line["engine"], line["way"]), []).append(line)
    for (model, engine, way), runs in groups.items():
        rate, memory = (statistics.median(run[what] for run in runs) for what in ("rate", "memory"))
        yield f"| {model} | {engine} | {way} | {rate:.1f} | {memory / 2**30:.2f} |"


def main():
    o = arguments()
    end_with_children()
    if o.urgent:
        be_urgent()
    bench = Bench(o)
    if not o.tables:
        bench.measure()
    print(bench.write())
    return 0


if __name__ == "__main__":
    sys.exit(main())
