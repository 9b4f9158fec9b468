"""What the benches beside other programs share: arguments, programs in turns, checkpoints with made-up weights, pages."""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = ("Q4_K_M", "Q8_0")  # "qwen3-0.6b.Q4_K_M": the checkpoint, written by tenon quantize; all programs read that file


def say(text):
    print(text, file=sys.stderr, flush=True)


def numbers(text):
    return [int(n) for n in text.split(",") if n]


def begin_arguments(about):
    """A parser with what all benches take."""
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", help="folder of the build")
    p.add_argument("--tables", action="store_true", help="measure nothing: only write what is there")
    p.add_argument("--urgent", action="store_true", help="let the programs go before other sessions (needs root)")
    p.add_argument("--write", metavar="PAGE", help="put the tables between the page's markers, too")
    return p


# ---- programs ------------------------------------------------------------------------------------


class Failed(Exception):
    pass


URGENT = False


def be_urgent():
    """Programs go before other sessions from now on."""
    global URGENT
    if os.geteuid() != 0 or not os.path.exists("/proc/self/autogroup"):
        sys.exit("--urgent needs root and a kernel that weighs sessions (/proc/self/autogroup)")
    URGENT = True


def own_session():
    """The scheduler weighs sessions, whatever the nice of a process: each program gets one of its own."""
    os.setsid()
    if URGENT:
        with open("/proc/self/autogroup", "w", encoding="ascii") as file:
            file.write("-15")


def end_with_children():
    """Who is ended by SIGTERM ends what runs, too, which has a session of its own and would not hear of it."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def output_of(command, timeout=3600):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout,
                              preexec_fn=own_session, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise Failed(str(error)) from error
    if done.returncode < 0:
        raise Failed(f"ended by signal {-done.returncode}")
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    return done.stdout


# ---- files ---------------------------------------------------------------------------------------


def split_name(model):
    """The checkpoint, and the type that it is quantised to or None."""
    base, _, kind = model.rpartition(".")
    return (base, kind) if kind in TYPES else (model, None)


class Files:
    """What lies in the folder of the build; checkpoints are written when they are first asked for."""

    def __init__(self, build):
        self.build = build
        self.peers = os.path.join(build, "peers")

    def path(self, *parts):
        return os.path.join(self.build, *parts)

    def checkpoint(self, model):
        base, kind = split_name(model)
        file = self.path("bench", model + ".gguf")
        if kind and not os.path.exists(file):
            say(f"writing {file}")
            output_of([self.path("tenon"), "quantize", self.checkpoint(base), file, "--type", kind, "--quiet"])
        if kind:
            return file
        folder = self.path("bench", model)
        if not os.path.isdir(folder):
            say(f"writing {folder}")
            shutil.rmtree(folder + ".part", ignore_errors=True)
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            output_of([self.path("tests", "make_checkpoint"), "--like", model, folder + ".part"])
            os.rename(folder + ".part", folder)
        return folder

    def config(self, model):
        with open(os.path.join(self.checkpoint(split_name(model)[0]), "config.json"), encoding="utf-8") as file:
            return json.load(file)

    def gguf(self, model, dtype):
        if split_name(model)[1]:
            return self.checkpoint(model)
        file = os.path.join(self.peers, "models", f"{model}.{dtype}.gguf")
        if not os.path.exists(file):
            say(f"writing {file}")
            os.makedirs(os.path.dirname(file), exist_ok=True)
            python = sys.executable if dtype == "bf16" else os.path.join(self.peers, "openvino", "bin", "python")
            output_of([python, os.path.join(HERE, "gguf.py"), self.checkpoint(model), file]
                      + (["f16"] if dtype == "f16" else []))
        return file

    def tenon_version(self):
        return output_of([self.path("tenon"), "--version"]).split()[1]

    def llama_version(self):
        with open(os.path.join(self.peers, "llama", "version"), encoding="utf-8") as file:
            return "of llama-cpp-python " + file.read().strip()

    def machine(self, threads):
        """Its processor, and how fast it reads memory and computes at this moment."""
        return json.loads(output_of([self.path("tests", "measure_machine"), str(threads)]))


# ---- pages ---------------------------------------------------------------------------------------


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def add_line(path, line):
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def span(values, digits=0):
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def write_page(page, own, markers, path):
    """To the file own, and between the markers of the page at path, if there is one."""
    with open(own, "w", encoding="utf-8") as file:
        file.write(page + "\n")
    if path:
        put_between(f"<!-- measured {markers} -->", f"<!-- end of measured {markers.split(':')[0]} -->", path, page)


def put_between(begin, end, path, text):
    with open(path, encoding="utf-8") as file:
        page = file.read()
    if begin not in page or end not in page:
        sys.exit(f"{path} has no markers '{begin}' and '{end}'")
    head, rest = page.split(begin, 1)
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + begin + "\n\n" + text + "\n\n" + end + rest.split(end, 1)[1])
