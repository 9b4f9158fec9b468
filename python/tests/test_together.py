"""Threads, signals, forks, callbacks."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import pytest
import tenon
from conftest import TOP

LLAMA = str(TOP / "tests/data/models/llama")


def test_threads(llama):
    want = {n: llama.generate([n, 2, 3], max_tokens=20, temperature=0, ignore_eos=True).ids for n in range(4)}
    logits = llama.logits([1, 2, 3]).tolist()
    wrong = []

    def work(n):
        for i in range(6):
            if llama.generate([n, 2, 3], max_tokens=20, temperature=0, ignore_eos=True).ids != want[n]:
                wrong.append(n)
            if [t.id for t in llama.stream([n, 2, 3], max_tokens=20, temperature=0, ignore_eos=True)] != want[n]:
                wrong.append(n)
            next(llama.stream([n, 2, 3], max_tokens=20, temperature=0))  # left while others compute
            if llama.logits([1, 2, 3]).tolist() != logits:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# A thread that has used a processor for so long is in a call that computes, however long it took to begin.
COMPUTES = """
import os, sys, threading, time, _thread, tenon
model = tenon.Model(sys.argv[1], kernels="none")
def await_computing(thread):
    clock = time.pthread_getcpuclockid(thread.ident)
    begin = time.clock_gettime(clock)
    while time.clock_gettime(clock) < begin + 0.2:
        time.sleep(0.01)
def endless():
    model.generate([1, 2, 3], max_tokens=10**6, context=10**6, ignore_eos=True)
"""
INTERRUPTED = COMPUTES + """
def later():
    await_computing(threading.main_thread())
    _thread.interrupt_main()
try:
    threading.Thread(target=later, daemon=True).start()
    {use}
except KeyboardInterrupt:
    print("interrupted")
print(len(model.generate([1, 2, 3], max_tokens=5, ignore_eos=True).ids))
"""


@pytest.mark.parametrize(
    "use",
    [
        "model.generate([1, 2, 3], max_tokens=10**6, context=10**6, ignore_eos=True)",
        "[t for t in model.stream([1, 2, 3], max_tokens=10**6, context=10**6, ignore_eos=True)]",
        "model.generate([1] * 200000, max_tokens=2, context=200002)",
        "model.logits([1] * 100000)",
        "model.perplexity([1] * 10**6, window=10**6)",
    ],
    ids=["generate", "stream", "prompt", "logits", "perplexity"],
)
def test_interrupted(use):
    """Another thread gets to run meanwhile, which ends the call; the model goes on to work."""
    out = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(use=use), LLAMA], capture_output=True, text=True, timeout=600
    )
    assert out.stdout.split() == ["interrupted", "5"], out.stderr


def test_waiting_is_interrupted():
    code = COMPUTES + """
busy = threading.Thread(target=endless, daemon=True)
busy.start()
await_computing(busy)
try:
    threading.Thread(target=lambda: (time.sleep(0.2), _thread.interrupt_main()), daemon=True).start()
    model.logits([1])
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)
"""
    out = subprocess.run([sys.executable, "-c", code, LLAMA], capture_output=True, text=True, timeout=600)
    assert out.stdout.strip() == "interrupted", out.stderr


def test_progress_raises():
    def stop(*_):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        tenon.Model(LLAMA, kernels="none", progress=stop)
    wants = []
    model = tenon.Model(LLAMA, kernels="auto", progress=lambda *_: wants and stop())
    wants.append(True)
    with pytest.raises(LookupError, match="enough"):
        model.verify()
    wants.clear()
    assert model.verify() and model.generate([1], max_tokens=3, ignore_eos=True).stop == "length"


def test_called_from_within():
    found = []

    def progress(*_):
        if found and not found[0]:
            found[0] = "asked"
            with pytest.raises(tenon.UsageError, match="this thread uses it"):
                model.logits([1])

    model = tenon.Model(LLAMA, kernels="auto", progress=progress)
    found.append("")
    model.verify()
    assert found == ["asked"]


def test_fork(llama):
    want = llama.generate([1, 2, 3], max_tokens=10, temperature=0, ignore_eos=True).ids
    stream = llama.stream([1, 2, 3], max_tokens=10, temperature=0, ignore_eos=True)
    assert next(stream).id == want[0]
    child = os.fork()
    if child == 0:
        good = (
            llama.generate([1, 2, 3], max_tokens=10, temperature=0, ignore_eos=True).ids == want
            and [t.id for t in stream] == want[1:]
        )
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [t.id for t in stream] == want[1:]


def test_fork_while_busy():
    code = COMPUTES + """
busy = threading.Thread(target=endless, daemon=True)
busy.start()
await_computing(busy)
child = os.fork()
if child == 0:
    try:
        model.logits([1])
    except tenon.UsageError as e:
        print(e, flush=True)
    del model
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""
    out = subprocess.run([sys.executable, "-c", code, LLAMA], capture_output=True, text=True, timeout=600)
    assert "another thread used it when the process was forked" in out.stdout, out.stderr


def test_nothing_keeps_it():
    class Watcher:
        def progress(self, *_):
            pass

    watcher = Watcher()
    watcher.model = tenon.Model(LLAMA, kernels="none", progress=watcher.progress)
    stream = watcher.model.stream([1, 2], ignore_eos=True)
    next(stream)
    gone = weakref.ref(watcher)
    del watcher, stream
    gc.collect()
    assert gone() is None


def test_end_of_process():
    """What is left open goes with the interpreter, without a word."""
    code = "import sys, tenon\nm = tenon.Model(sys.argv[1], kernels='none')\ns = m.stream([1, 2], ignore_eos=True)\nnext(s)\nx = m.logits([1])\nc = x.__dlpack__()"
    out = subprocess.run([sys.executable, "-c", code, LLAMA], capture_output=True, text=True, timeout=600)
    assert out.returncode == 0 and not out.stderr
