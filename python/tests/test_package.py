"""What is in the package: modules, files, the program."""

import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys

import pytest
import tenon
from conftest import TOP


def test_imports_alone():
    code = "import sys, tenon; print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_version(program):
    header = (TOP / "include/tenon/tenon.h").read_text()
    assert re.search('TN_VERSION "(.*)"', header)[1] == tenon.__version__
    assert f'version = "{tenon.__version__}"' in (TOP / "python/pyproject.toml").read_text()
    assert program("--version").stdout.splitlines()[0] == f"tenon {tenon.__version__}"


def test_files():
    here = pathlib.Path(tenon.__file__).parent
    for name in ("py.typed", "_tenon.pyi", "lib/libtenon.so.0", "lib/tenon", "lib/plugins/npu_rmsnorm.so"):
        assert (here / name).is_file(), name
    assert {h.name for h in pathlib.Path(tenon.include_dir(), "tenon").iterdir()} == {
        h.name for h in (TOP / "include/tenon").iterdir()
    }
    assert (pathlib.Path(tenon.library_dir()) / "libtenon.so.0").is_file()


def test_stubs_name_what_is_there():
    stub = (TOP / "python/tenon/_tenon.pyi").read_text()
    for name in ("Model", "Stream", "Tensor"):
        body = re.search(rf"^class {name}\b.*?(?=^class |\Z)", stub, re.M | re.S)[0]
        real = {n for n in vars(getattr(tenon._tenon, name)) if n not in ("__doc__", "__module__", "__repr__")}
        assert set(re.findall(r"def (\w+)", body)) == real, name


def test_errors():
    codes = {
        tenon.DeclinedError: 1,
        tenon.InternalError: -1,
        tenon.UsageError: -2,
        tenon.KernelError: -3,
        tenon.InputError: -4,
        tenon.VerifyError: -5,
        tenon.MemoryError: -6,
        tenon.CancelledError: -7,
    }
    for kind, code in codes.items():
        error = tenon.errors.of(code, "here", "what; how")
        assert type(error) is kind and isinstance(error, tenon.Error)
        assert (error.code, error.where, error.message, str(error)) == (code, "here", "what; how", "here: what; how")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and str(again) == str(error)
    assert str(tenon.Error(-2, "", "what")) == "what"
    assert issubclass(tenon.MemoryError, MemoryError)


def test_program_status(program):
    assert program("no-such-command").returncode == 2
    failed = program("inspect", TOP / "no-such-model")
    assert failed.returncode == 4 and "no-such-model" in failed.stderr
    listed = program("kernels")
    assert listed.returncode == 0 and "npu_fused_rmsnorm" in listed.stdout, listed.stderr


LONG = [
    "run",
    str(TOP / "tests/data/models/llama"),
    "--tokens",
    "1,2,3",
    "-n",
    "1000000",
    "-c",
    "1000000",
    "--ignore-eos",
    "--kernels=none",
    "-q",
    "-t",
    "1",
]


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_program_signals(number, status):
    with subprocess.Popen(
        [sys.executable, "-m", "tenon", *LONG], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout.read(1)  # it writes ids: it computes
        child.send_signal(number)
        child.stdout.read()
        assert child.wait() == status


def test_program_pipe():
    """A reader that goes away ends it, as it ends the program itself."""
    status = []
    for command in ([sys.executable, "-m", "tenon"], [os.path.join(tenon.library_dir(), "tenon")]):
        with subprocess.Popen([*command, *LONG], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert child.stdout.read(1)
            child.stdout.close()
            status.append(child.wait())
    assert status[0] == status[1]


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_pages(page):
    """What the pages show works."""
    code = re.search(r"```python\n(.*?)```", (TOP / page).read_text(), re.S)[1].replace('"MODEL"', '"models/demo"')
    code = code.replace("max_tokens=100)", "max_tokens=100, temperature=0)")  # a text that is drawn may be short
    out = subprocess.run([sys.executable, "-c", code], cwd=TOP, capture_output=True, text=True, timeout=600)
    assert out.returncode == 0 and len(out.stdout.split()) > 10, out.stderr
