"""Ids in all forms, results for others, and what is wrong."""

import array
import gc
import os

import pytest
import tenon
from conftest import TOP, flat

ROWS = [[5, 6, 7, 8], [9, 10, 11, 12]]


@pytest.fixture
def want(llama):
    return llama.logits(ROWS).tolist()


def test_lists(llama, want):
    assert llama.logits(tuple(map(tuple, ROWS))).tolist() == want
    assert llama.logits(range(5, 9)).shape == (1, 4, 264)
    assert llama.logits(array.array("q", ROWS[0])).tolist() == llama.logits(ROWS[0]).tolist()
    assert llama.logits(array.array("i", ROWS[0])).tolist() == llama.logits(ROWS[0]).tolist()


def test_numpy(llama, want):
    numpy = pytest.importorskip("numpy")
    for kind in (numpy.int32, numpy.int64):
        ids = numpy.array(ROWS, kind)
        ids.flags.writeable = False
        wide = numpy.zeros((2, 8), kind)
        wide[:, ::2] = ROWS
        for form in (ids, numpy.asfortranarray(ids), wide[:, ::2], numpy.array(ROWS[::-1], kind)[::-1]):
            assert llama.logits(form).tolist() == want
    assert llama.logits(list(numpy.array(ROWS[0]))).shape == (1, 4, 264)  # numbers of numpy's
    with pytest.raises(TypeError, match="int32 or int64"):
        llama.logits(numpy.array(ROWS, "float32"))
    with pytest.raises(ValueError, match="dimension"):
        llama.logits(numpy.zeros((1, 2, 3), "int64"))


class Strange:
    """Somebody's tensor, by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def test_dlpack_in(llama, want):
    numpy = pytest.importorskip("numpy")
    for kind in (numpy.int32, numpy.int64):
        wide = numpy.zeros((2, 8), kind)
        wide[:, ::2] = ROWS
        for form in (numpy.array(ROWS, kind), numpy.asfortranarray(numpy.array(ROWS, kind)), wide[:, ::2]):
            assert llama.logits(Strange(form)).tolist() == want
    for bad, error in (
        (numpy.zeros(3, "float32"), TypeError),
        (numpy.zeros(3, "int16"), TypeError),
        (numpy.zeros((1, 1, 1), "int64"), ValueError),
    ):
        with pytest.raises(error):
            llama.logits(Strange(bad))


def test_results(llama, want):
    numpy = pytest.importorskip("numpy")
    out = llama.logits(ROWS)
    assert out.dtype == "float32" and out.__dlpack_device__() == (1, 0) and "(2, 4, 264)" in repr(out)
    shared, copied, plain = numpy.from_dlpack(out), numpy.from_dlpack(out, copy=True), numpy.asarray(out)
    assert shared.ctypes.data == plain.ctypes.data != copied.ctypes.data and shared.ctypes.data % 64 == 0
    del out
    gc.collect()
    assert shared.tolist() == copied.tolist() == plain.tolist() == want


def test_results_by_hand(llama):
    out = llama.logits(ROWS)
    out.__dlpack__()  # a capsule that nobody takes
    for wrong in (dict(stream=1), dict(dl_device=(2, 0))):
        with pytest.raises(BufferError):
            out.__dlpack__(**wrong)
    with pytest.raises(TypeError):
        out.__dlpack__(1)
    with pytest.raises(TypeError):
        tenon.Tensor()


@pytest.mark.parametrize(
    "ids, error, words",
    [
        ([], tenon.InputError, "at least one"),
        ([[]], tenon.InputError, "at least one"),
        ([1, 264], tenon.InputError, "vocabulary"),
        ([-1], tenon.InputError, "vocabulary"),
        ([2**70], OverflowError, None),
        ([[1, 2], [3]], ValueError, "rows of"),
        ([[1], 2], TypeError, "integers"),
        ([1, [2]], TypeError, None),
        ([1.0], TypeError, None),
        (["1"], TypeError, None),
        ([[[1]]], TypeError, None),
        (7, TypeError, "list of integers"),
        (None, TypeError, "list of integers"),
        (b"abc", TypeError, "list of integers"),
        ({1: 2}, TypeError, "list of integers"),
    ],
)
def test_wrong_ids(llama, ids, error, words):
    for use in (llama.logits, llama.embeddings, llama.generate, llama.perplexity):
        with pytest.raises(error, match=words if use == llama.logits else None) as e:
            use(ids)
        assert "\n" not in str(e.value)


def test_wrong_calls(llama, demo):
    for error, words, use in [
        (tenon.UsageError, "one text", lambda: llama.generate(ROWS)),
        (tenon.UsageError, "max_tokens", lambda: llama.generate([1], max_tokens=0)),
        (tenon.UsageError, "max_tokens", lambda: llama.generate([1], max_tokens=2**62)),
        (tenon.UsageError, "context", lambda: llama.generate([1], context=-1)),
        (tenon.UsageError, "context", lambda: llama.generate([1], context=2**62)),
        (tenon.UsageError, "temperature", lambda: llama.generate([1], temperature=-1.0)),
        (tenon.UsageError, "top_p", lambda: llama.generate([1], temperature=1.0, top_p=2.0)),
        (TypeError, None, lambda: llama.generate([1], max_tokens="4")),
        (TypeError, "no_such", lambda: llama.generate([1], no_such=1)),
        (tenon.UsageError, "tokenizer", lambda: llama.generate([1], stop="x")),
        (TypeError, None, lambda: demo.generate([1], stop=[1])),
        (tenon.UsageError, None, lambda: demo.generate([1], stop=[""])),
        (tenon.UsageError, "NUL", lambda: demo.generate([1], stop="a\0b")),
        (tenon.InputError, "tokenizer", lambda: llama.generate("a text")),
        (tenon.InputError, "512", lambda: demo.generate([1] * 513)),
        (tenon.UsageError, "mask", lambda: llama.logits([1, 2], mask=[1])),
        (tenon.UsageError, "window", lambda: llama.perplexity([1, 2], window=0)),
        (tenon.InputError, "two tokens", lambda: llama.perplexity([1])),
        (tenon.InputError, "prompt", lambda: demo.generate("")),
    ]:
        with pytest.raises(error, match=words) as e:
            use()
        assert "\n" not in str(e.value)


def test_wrong_models(tmp_path):
    demo = TOP / "models/demo"
    for error, words, use in [
        (tenon.InputError, "no-such", lambda: tenon.Model(tmp_path / "no-such")),
        (tenon.InputError, "config.json", lambda: tenon.Model(tmp_path)),
        (tenon.Error, "int7", lambda: tenon.Model(demo, dtype="int7")),
        (tenon.KernelError, "tpu", lambda: tenon.Model(demo, device="tpu")),
        (tenon.KernelError, "npu_no_such", lambda: tenon.Model(demo, kernels="npu_no_such")),
        (tenon.UsageError, "threads", lambda: tenon.Model(demo, threads=-1)),
        (tenon.UsageError, "revision", lambda: tenon.Model(demo, revision="main")),
        (tenon.UsageError, "revision", lambda: tenon.Model("org/name@a", revision="b")),
        (TypeError, None, lambda: tenon.Model(7)),
        (TypeError, "progress", lambda: tenon.Model(demo, progress=1)),
        (TypeError, None, lambda: tenon.Model(demo, threads="2")),
        (ValueError, None, lambda: tenon.Model("a\0b")),
    ]:
        with pytest.raises(error, match=words) as e:
            use()
        assert "\n" not in str(e.value)


def test_name_of_bytes(tmp_path):
    """Folders have names of bytes, which need not be text."""
    folder = os.fsencode(tmp_path) + b"/\xff m"
    os.symlink(os.fsencode(TOP / "models/demo"), folder)
    for path in (folder, os.fsdecode(folder)):
        with tenon.Model(path, kernels="none") as model:
            assert os.path.samefile(model.folder, folder) and model.generate("And", max_tokens=1).text


def test_dtypes():
    class OfTorch:
        def __str__(self):
            return "torch.bfloat16"

    for given, name in ((OfTorch(), "bf16"), ("float16", "f16"), ("auto", "bf16"), (None, "bf16")):
        with tenon.Model(TOP / "models/demo", dtype=given, kernels=False) as model:
            assert model.dtype == name


def test_kernels_config():
    with tenon.Model(TOP / "models/demo", kernels=["auto", "-npu_fused_moe"]) as model:
        assert "npu_fused_rmsnorm" in model.kernels and "npu_fused_moe" not in model.kernels


def test_broken_tokenizer(tmp_path, demo):
    for name in ("config.json", "model.safetensors"):
        os.symlink(TOP / "models/demo" / name, tmp_path / name)
    (tmp_path / "tokenizer.json").write_text("{")
    with tenon.Model(tmp_path, dtype="f32", kernels="none") as model:
        with pytest.warns(RuntimeWarning, match="no text"):
            assert model.generate([1, 2], max_tokens=2, temperature=0).text is None
        with pytest.raises(tenon.InputError, match="tokenizer.json"):
            model.generate("a text")


def test_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--org--some"
    (repo / "snapshots").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs/v2").write_text(commit)
    os.symlink(TOP / "models/demo", repo / "snapshots" / commit)
    for model in (tenon.Model("org/some", revision="v2", kernels="none"), tenon.Model("org/some@v2", kernels="none")):
        assert os.path.samefile(model.folder, TOP / "models/demo")
        assert model.generate("And", max_tokens=2, temperature=0).text  # the tokenizer is found, too
        model.close()
    for name, revision, words in (
        ("org/some", None, "hf download org/some"),
        ("org/some", "v9", "v9"),
        ("org/some", "../v2", ""),
        ("../org/some", "v2", ""),
        ("org/other", "v2", "org/other"),
    ):
        with pytest.raises(tenon.InputError, match=words or None) as e:
            tenon.Model(name, revision=revision)
        assert "\n" not in str(e.value)
