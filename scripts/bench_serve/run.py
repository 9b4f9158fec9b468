#!/usr/bin/env python3
"""Tenon's server and others in turns on the same checkpoints: what make bench-serve runs, after everything is installed.

In each round, for each model and each line, every server is started anew, with as many places as the line needs, warms up,
is measured and ends; the order turns from line to line and from round to round. Figures are medians over the rounds, ratios
those of the sides of one round. What was measured stays in BUILD/peers/serve.jsonl, a line for each run; the tables go to
BUILD/bench-serve.md and, with --write, between the markers of the page."""
import asyncio
import collections
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import client
import tables

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "bench_peers"))

from common import Failed, Files, add_line, be_urgent, begin_arguments, end_with_children, lines_of, numbers, output_of, own_session, say, write_page  # noqa: E402
from gguf import vocabulary  # noqa: E402

OPENVINO_READS = ("qwen3",)  # model types of GGUF files
LINES = ["streams", "prefix", "beside", "bench", "mask"]
OWN = ("bench", "mask")  # lines that are Tenon's alone
TURNS = 3  # prompts of the lines prefix and beside
# Its masks are those of texts of strings, numbers and lists; it does not end by itself.
FORM = {"type": "array", "minItems": 200, "items": {"type": "object", "required": ["name", "size"], "additionalProperties": False,
                                                   "properties": {"name": {"type": "string"}, "size": {"type": "number"}}}}


def words(text):
    return [word for word in text.split(",") if word]


def arguments():
    p = begin_arguments(__doc__)
    p.add_argument("--models", type=words, default=["qwen3-0.6b", "moe-1.5b"],
                   help="names that make_checkpoint --like knows, and folders of checkpoints")
    p.add_argument("--sides", type=words, default=list(tables.NAMES), help="which of " + ", ".join(tables.NAMES))
    p.add_argument("--lines", type=words, default=LINES, help="which of " + ", ".join(LINES))
    p.add_argument("--streams", type=numbers, default=[1, 4, 16, 64])
    p.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    p.add_argument("--answer", type=int, default=64, help="tokens of each answer")
    p.add_argument("--requests", type=int, default=2, help="of each stream, one after the other")
    p.add_argument("--shared", type=int, default=2000, help="tokens that prompts begin with in the line prefix")
    p.add_argument("--long", type=int, default=4000, help="tokens of the prompts in the line beside")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--wait", type=int, default=600, help="seconds for a server to be ready")
    p.add_argument("--tokenizer", metavar="FOLDER", help="its tokenizer.json in place of one of made-up words, for Tenon")
    p.add_argument("--add", action="store_true", help="keep what earlier runs measured")
    o = p.parse_args()
    for given, known in ((o.sides, tables.NAMES), (o.lines, LINES)):
        for word in given:
            if word not in known:
                p.error(f"'{word}' is none of {', '.join(known)}")
    return o


# ---- servers -------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A program that listens, from its start to its end: `with`. said: the file that takes what it says."""

    def __init__(self, command, port, said, wait):
        self.command, self.port, self.said, self.wait = command, port, said, wait

    def __enter__(self):
        with open(self.said, "wb") as said:
            try:
                self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                                preexec_fn=own_session)
            except OSError as error:
                raise Failed(str(error)) from error
        try:
            self.wait_ready()
        except BaseException:  # who is ended meanwhile leaves no server behind
            self.__exit__()
            raise
        return self

    def wait_ready(self):
        end = time.monotonic() + self.wait
        while not self.ready():
            if self.process.poll() is not None:
                raise Failed(f"it ended with status {self.process.returncode}; see {self.said}")
            if time.monotonic() > end:
                raise Failed(f"it was not ready after {self.wait} s; see {self.said}")
            time.sleep(0.1)

    def ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench(Files):
    def __init__(self, options):
        super().__init__(options.build)
        self.o = options
        self.results = os.path.join(self.peers, "serve.jsonl")
        self.failed = collections.Counter()  # what failed twice is not tried again
        self.with_tokenizer = {}  # folders by model

    # ---- files -----------------------------------------------------------------------------------

    def checkpoint(self, model):
        return model if os.path.isdir(model) else super().checkpoint(model)

    def served(self, model):
        """The checkpoint with a tokenizer: the words of gguf.py, which have as many bytes as those of the other servers."""
        source = self.checkpoint(model)
        if os.path.exists(os.path.join(source, "tokenizer.json")):
            return source
        if model not in self.with_tokenizer:
            self.with_tokenizer[model] = self.give_tokenizer(model, source)
        return self.with_tokenizer[model]

    def give_tokenizer(self, model, source):
        """A folder of links beside a tokenizer."""
        folder = self.path("bench", "serve", os.path.basename(source))
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(source):
            if not os.path.lexists(os.path.join(folder, name)):
                os.symlink(os.path.relpath(os.path.join(source, name), folder), os.path.join(folder, name))
        if self.o.tokenizer:
            with open(os.path.join(self.o.tokenizer, "tokenizer.json"), encoding="utf-8") as file:
                tokenizer = json.load(file)
        else:
            tokenizer = made_up_tokenizer(self.config(model)["vocab_size"])
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
            json.dump(tokenizer, file)
        return folder

    # ---- sides -----------------------------------------------------------------------------------

    def command(self, side, model, port, places, positions):
        """What starts it with room for so many texts of so many tokens."""
        threads = str(self.o.threads)
        if side == "tenon":
            return [self.path("tenon"), "serve", self.served(model), "--port", str(port), "--threads", threads, "--sequences",
                    str(places), "--queue", "512", "--context", str(positions), "--quiet"]
        if side == "llama":
            return [os.path.join(self.peers, "llama", "build", "bin", "llama-server"), "-m", self.gguf(model, "bf16"), "--host",
                    "127.0.0.1", "--port", str(port), "-t", threads, "-np", str(places), "-c", str(places * positions)]
        return [os.path.join(self.peers, "openvino", "bin", "python"), os.path.join(HERE, "openvino_server.py"),
                self.gguf(model, "f16"), str(port), threads, str(places)]

    def version(self, side):
        if side == "tenon":
            return self.tenon_version()
        if side == "llama":
            return self.llama_version()
        return output_of([os.path.join(self.peers, "openvino", "bin", "python"), "-c",
                          "import openvino_genai; print(openvino_genai.__version__)"]).strip()

    def absent(self, side, model):
        """Why it takes no part; None: it does."""
        files = {"tenon": "tenon-serve", "llama": "peers/llama/build/bin/llama-server", "openvino": "peers/openvino/complete"}
        if not os.path.exists(self.path(files[side])):
            return f"there is no {self.path(files[side])}"
        kind = self.config(model)["model_type"]
        return f"it reads no GGUF file of {kind}" if side == "openvino" and kind not in OPENVINO_READS else None

    # ---- lines -----------------------------------------------------------------------------------

    def ids(self, model, what, count):
        """The same for all sides, others in each round; of the middle of the vocabulary, where nothing is special."""
        vocabulary_size = self.config(model)["vocab_size"]
        rng = random.Random(f"{what} {self.number}")
        return [rng.randrange(vocabulary_size // 4, vocabulary_size * 3 // 4) for _ in range(count)]

    def lines(self, model):
        """(name, places, positions, what the client does at a port)"""
        o = self.o
        ids = lambda what, count: self.ids(model, what, count)  # noqa: E731
        for n in o.streams if "streams" in o.lines else []:
            prompts = [[ids(f"stream {n} {i} {k}", o.prompt) for k in range(o.requests)] for i in range(n)]
            yield f"streams {n}", n, o.prompt + o.answer + 8, lambda port, p=prompts: client.streams(port, p, o.answer)
        if "prefix" in o.lines:
            head, tails = ids("head", o.shared), [ids(f"tail {i}", 16) for i in range(1 + TURNS)]
            yield "prefix", 1, o.shared + 32, lambda port: client.prefix(port, head, tails)
        if "beside" in o.lines:
            longs, most = [ids(f"long {i}", o.long) for i in range(TURNS)], o.long // 2
            yield "beside", 2, o.long + o.prompt, lambda port: client.beside(port, ids("decoding", o.prompt), longs, most)
        if "bench" in o.lines:
            yield "bench", 0, 0, None
        if "mask" in o.lines and model == o.models[0]:
            yield "mask", 1, o.prompt + o.answer + 8, lambda port: client.form(port, ids("form", o.prompt), o.answer, FORM)

    def serve(self, side, model, places, positions, ask):
        port = free_port()
        said = os.path.join(self.peers, f"serve-{side}.log")
        with Server(self.command(side, model, port, places, positions), port, said, self.o.wait):
            asyncio.run(client.complete(port, self.ids(model, "warm", 16), 4))
            return asyncio.run(ask(port))

    def bench(self, model):
        """How fast the program decodes by itself, with kernels of the server's kind."""
        root = json.loads(output_of([
            self.path("tenon"), "bench", self.served(model), "--threads", str(self.o.threads), "--prompt", str(self.o.prompt),
            "--context", str(self.o.prompt), "--decode", str(self.o.answer), "--repeat", "1", "--same-bits", "--json",
            "--quiet"]))
        return {"decode": next(r["tokens_per_second"] for r in root["results"]
                               if r["phase"] == "decode" and r["kernels"] == "auto")}

    def masks(self, model):
        """Medians of check_grammar, in milliseconds, with the model's vocabulary."""
        said = output_of([self.path("tests", "check_grammar"), "tests/data/schemas", "--bench", "--tokenizer", self.served(model)])
        found = dict(re.findall(r"^(compiling|masks, first time).*: median ([0-9.]+) ms", said, re.M))
        return {"mask": float(found["masks, first time"]), "compiled": float(found["compiling"]),
                "vocabulary": self.config(model)["vocab_size"]}

    # ---- rounds ----------------------------------------------------------------------------------

    def one(self, side, model, line, now):
        name, places, positions, ask = line
        try:
            values = self.bench(model) if name == "bench" else self.serve(side, model, places, positions, ask)
            if name == "mask":
                values.update(self.masks(model))
        except (Failed, client.Refused, OSError, EOFError, ValueError, KeyError, StopIteration) as error:
            say(f"{tables.NAMES[side]}, {self.title(model)}, {name}: left out: {error}")
            self.failed[side, model, name] += 1
            return
        add_line(self.results, {"round": self.number, "model": self.title(model), "line": name, "side": side,
                                "version": self.versions[side], "threads": self.o.threads, "machine": now, "values": values,
                                "dense": not any("expert" in key for key in self.config(model)),
                                "asked": {k: getattr(self.o, k) for k in ("prompt", "answer", "requests", "shared", "long")}})
        say(f"round {self.number + 1}, {self.title(model)}, {name}, {tables.NAMES[side]}: "
            + ", ".join(f"{k} {v:.4g}" for k, v in values.items()))

    @staticmethod
    def title(model):
        return os.path.basename(os.path.normpath(model))

    def measure(self):
        os.makedirs(self.peers, exist_ok=True)
        if not self.o.add and os.path.exists(self.results):
            os.remove(self.results)
        present = {model: [] for model in self.o.models}
        for model, side in ((m, s) for m in self.o.models for s in self.o.sides):
            why = self.absent(side, model)
            if why:
                say(f"{tables.NAMES[side]} is left out with {self.title(model)}: {why}")
            else:
                present[model].append(side)
        self.versions = {side: self.version(side) for side in set().union(*present.values())}
        before = max((line["round"] for line in lines_of(self.results)), default=-1) + 1 if os.path.exists(self.results) else 0
        for self.number in range(before, before + self.o.rounds):
            for model, sides in present.items():
                for i, line in enumerate(self.lines(model)):
                    now = self.machine(self.o.threads)
                    turn = (self.number + i) % max(1, len(sides))
                    for side in sides[turn:] + sides[:turn]:
                        if self.failed[side, model, line[0]] < 2 and (side == "tenon" or line[0] not in OWN):
                            self.one(side, model, line, now)

    def write(self):
        page = "\n".join(tables.page(lines_of(self.results)))
        write_page(page, self.path("bench-serve.md"), "servers: make bench-serve", self.o.write)
        return page


def made_up_tokenizer(count):
    known = {word: i for i, word in enumerate(vocabulary(count))}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
            "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": known, "merges": []}}


def main():
    end_with_children()
    bench = Bench(arguments())
    if bench.o.urgent:
        be_urgent()
    if not bench.o.tables:
        bench.measure()
    if not os.path.exists(bench.results):
        sys.exit("bench-serve: nothing was measured")
    print(bench.write())
    return 0


if __name__ == "__main__":
    sys.exit(main())
