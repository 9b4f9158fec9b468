"""Tests of the package without torch, on models of the tree. What is compared bit for bit, with what the program says, is
computed without kernels, whose choice is the machine's; the others' figures are those of `tenon verify` and of the tests
in C."""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory):
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    os.environ.setdefault("TENON_MEASURE", "no")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a shell's background jobs; programs would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def program():
    def run(*arguments, **more):
        return subprocess.run(
            [sys.executable, "-m", "tenon", *map(str, arguments)], capture_output=True, text=True, timeout=600, **more
        )

    return run


@pytest.fixture(scope="session")
def demo():
    import tenon

    with tenon.Model(TOP / "models/demo", dtype="f32", kernels="none") as model:
        yield model


@pytest.fixture(scope="session")
def llama():
    """A model without a tokenizer."""
    import tenon

    with tenon.Model(TOP / "tests/data/models/llama", dtype="f32", kernels="none") as model:
        yield model


def read(file):
    """Tensors of a safetensors file: name -> (shape, flat tuple)."""
    data = pathlib.Path(file).read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    head, found = json.loads(data[8 : 8 + size]), {}
    for name, about in head.items():
        if name != "__metadata__":
            begin, end = about["data_offsets"]
            letter = {"F32": "f", "I64": "q"}[about["dtype"]]
            found[name] = tuple(about["shape"]), struct.unpack_from(
                f"<{(end - begin) // struct.calcsize(letter)}{letter}", data, 8 + size + begin
            )
    return found


def write(file, **rows):
    """Lists of rows of integers as int64."""
    head, data = {}, b""
    for name, value in rows.items():
        flat = [i for row in value for i in row]
        head[name] = dict(
            dtype="I64", shape=[len(value), len(value[0])], data_offsets=[len(data), len(data) + 8 * len(flat)]
        )
        data += struct.pack(f"<{len(flat)}q", *flat)
    text = json.dumps(head).encode()
    pathlib.Path(file).write_bytes(struct.pack("<Q", len(text)) + text + data)


def flat(nested):
    return [x for item in nested for x in flat(item)] if isinstance(nested, list) else [nested]
