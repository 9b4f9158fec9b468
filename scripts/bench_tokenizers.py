"""Times encoding and loading with libtenon.so and with the package tokenizers, in turns in one run on one thread, and
prints a table of medians. Times are those of the processor, so that other programs disturb little. Both get the same texts, and must give the same ids. Called by scripts/bench_tokenizers.sh."""
import argparse
import ctypes
import glob
import json
import os
import statistics
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers

MARKS = ("<!-- measured tokenizers: make bench-tokenizers -->", "<!-- end of measured tokenizers -->")


class Tenon:
    """tn_tokenizer_* of include/tenon/text.h."""

    def __init__(self, build):
        self.lib = ctypes.CDLL(os.path.join(build, "libtenon.so"))
        self.libc = ctypes.CDLL(None)
        self.libc.free.argtypes = [ctypes.c_void_p]
        self.lib.tn_tokenizer_open.restype = ctypes.c_void_p
        self.lib.tn_tokenizer_open.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        self.lib.tn_tokenizer_free.argtypes = [ctypes.c_void_p]
        self.lib.tn_tokenizer_encode.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_bool,
                                                 ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

    def open(self, path):
        handle = self.lib.tn_tokenizer_open(path.encode(), None)
        if not handle:
            sys.exit(f"bench-tokenizers: Tenon cannot open {path}")
        return handle

    def close(self, handle):
        self.lib.tn_tokenizer_free(handle)

    def encode(self, handle, text):
        """Seconds, and a function that gives the ids."""
        ids, count = ctypes.POINTER(ctypes.c_int64)(), ctypes.c_size_t()
        start = time.process_time()
        status = self.lib.tn_tokenizer_encode(handle, text, len(text), False, ctypes.byref(ids), ctypes.byref(count), None)
        seconds = time.process_time() - start
        if status != 0:
            sys.exit("bench-tokenizers: Tenon cannot encode the text")
        found = ids[:count.value]
        self.libc.free(ids)
        return seconds, found


class Reference:
    """Without offsets into the text, which Tenon does not give either."""

    def open(self, path):
        return tokenizers.Tokenizer.from_file(path)

    def close(self, handle):
        del handle

    def encode(self, handle, text):
        string = text.decode()
        start = time.process_time()
        encoding = handle.encode_batch_fast([string], add_special_tokens=False)[0]
        seconds = time.process_time() - start
        return seconds, encoding.ids


def read(paths):
    return "\n".join(open(path, encoding="utf-8").read() for path in sorted(paths))


def own_texts():
    """Texts of this tree: part of a book and the documentation, the sources, and many scripts with signs."""
    cases = json.load(open("tests/data/tokenizers/qwen2/cases.json", encoding="utf-8"))
    return {"English": read(["models/demo/heldout.txt"] + glob.glob("*.md") + glob.glob("*/*.md") + glob.glob("*/*/*.md")),
            "C sources": read(glob.glob("core/*/*.c") + glob.glob("plugins/*/*.c")),
            "many scripts": "\n".join(case["text"] for case in cases)}


def texts(options):
    found = own_texts()
    for item in options.text:
        name, path = item.split("=", 1)
        found[name] = read([path])
    size = int(options.megabytes * 1e6)
    whole = {}
    for name, text in found.items():
        data = text.encode()
        repeated = (text + "\n") * (1 + size // len(data))
        whole[name] = (len(data), repeated.encode()[:size].decode(errors="ignore").encode())
    return whole


def in_turns(rounds, programs, action):
    """Medians of what action(name, program) returns; who begins changes from round to round."""
    times = {name: [] for name in programs}
    for i in range(rounds):
        for name in list(programs) if i % 2 else reversed(list(programs)):
            times[name].append(action(name, programs[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def load(program, path):
    start = time.process_time()
    handle = program.open(path)
    seconds = time.process_time() - start
    program.close(handle)
    return seconds


def row(label, what, values, form):
    ours, theirs = values["Tenon"], values["tokenizers"]
    factor = ours / theirs if form.endswith("MB/s") else theirs / ours
    return f"| {label} | {what} | {form % ours} | {form % theirs} | {factor:.1f} |"


def measure(options):
    programs = {"Tenon": Tenon(options.build), "tokenizers": Reference()}
    lines, different = [], []
    for folder in options.tokenizer:
        path, label = os.path.join(folder, "tokenizer.json"), os.path.basename(folder.rstrip("/"))
        seconds = in_turns(options.rounds, programs, lambda _, program: load(program, path))
        lines.append(row(label, f"loading {os.path.getsize(path) / 1e6:.1f} MB", seconds, "%.3f s"))
        handles = {name: program.open(path) for name, program in programs.items()}
        for name, (distinct, text) in texts(options).items():
            ids = {}

            def encode(who, program):
                taken, ids[who] = program.encode(handles[who], text)
                return len(text) / taken / 1e6

            rates = in_turns(options.rounds, programs, encode)
            if ids["Tenon"] != ids["tokenizers"]:
                different.append(f"{label}, {name}")
            shown = f"{distinct / 1e6:.2g} MB" if distinct < len(text) else "all"
            lines.append(row(label, f"{name}, {len(text) / 1e6:.1f} MB, {shown} of it distinct", rates, "%.1f MB/s"))
        for name, program in programs.items():
            program.close(handles[name])
    return lines, different


def processor():
    for line in open("/proc/cpuinfo", encoding="utf-8"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return os.uname().machine


def put_between_marks(page, table):
    text = open(page, encoding="utf-8").read()
    start, end = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    with open(page, "w", encoding="utf-8") as file:
        file.write(text[:start] + "\n" + table + "\n" + text[end:])


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("build", help="folder of the build")
    p.add_argument("--tokenizer", action="append", help="a folder with tokenizer.json; more than one may be given")
    p.add_argument("--text", action="append", default=[], metavar="NAME=FILE", help="another text")
    p.add_argument("--megabytes", type=float, default=4, help="what texts are repeated or cut to")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--note", default="", help="a remark below the table, such as what else the machine did")
    p.add_argument("--write", metavar="PAGE", help="a page with marks for the table")
    options = p.parse_args()
    options.tokenizer = options.tokenizer or ["models/demo"]
    lines, different = measure(options)
    head = [f"{processor()}, one thread, processor time, tokenizers {tokenizers.__version__}, medians of {options.rounds} rounds in turns. {options.note}".rstrip(),
            "", "| vocabulary | what | Tenon | tokenizers | times |", "|---|---|---:|---:|---:|"]
    table = "\n".join(head + lines)
    print(table)
    if different:
        sys.exit("bench-tokenizers: the ids differ: " + "; ".join(different))
    if options.write:
        put_between_marks(options.write, table)


main()
