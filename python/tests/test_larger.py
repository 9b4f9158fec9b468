"""Calls larger than those that kernels were checked with: each is compared with torch first, as what is wrong only there
passes every check before. Skipped without torch and transformers, or without a C compiler."""

import os
import shutil
import stat
import subprocess
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import tenon
from tenon import _record
from test_bridge import make, site

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("there is no C compiler")
    where = tmp_path_factory.mktemp("plugins")
    out = where / "large_norm.so"
    command = [compiler, "-std=c17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-I", tenon.include_dir()]
    library = os.path.join(tenon.library_dir(), "libtenon.so.0")
    subprocess.run([*command, os.path.join(HERE, "large_norm.c"), "-o", out, library, "-lm"], check=True)
    for path in (out, where):  # plugins that others can write to are refused
        os.chmod(path, os.stat(path).st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
    return where


def compare(norm, rows):
    """What the norm gives, and its gradients, beside torch's own."""
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(rows), requires_grad=True)
    up = torch.randn(rows, 32, generator=torch.Generator().manual_seed(1))
    for forward in (norm, lambda x: type(norm).forward(norm, x)):
        y = forward(x)
        yield y.detach(), *torch.autograd.grad(y, [x, norm.weight], up)


def check(norm, rows):
    for got, want in zip(*compare(norm, rows)):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["none", "forward", "backward"])
def test_a_kernel_that_is_wrong_in_large_calls(folder, monkeypatch, way):
    monkeypatch.setenv("TENON_LARGE", way)
    model = make()
    norm = model.model.norm
    with tenon.apply(model, training=True, plugins=folder):
        assert site(tenon.report(model), "model.norm").kernel == "large_rmsnorm"
        check(norm, 40)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            check(norm, 600)
            tenon.report(model)
        said = site(tenon.report(model), "model.norm")
        if way == "none":
            assert said.kernel and said.calls == 2 and said.eager_calls == 0 and not told
            return
        assert said.kernel is None and said.reason.startswith("refused: large_rmsnorm") and said.calls == 1
        assert "600 tokens" in said.reason and said.reason in str(told[0].message) and said.why_eager == said.reason
        check(norm, 40)
        assert site(tenon.report(model), "model.norm").eager_calls == 2


def test_one_that_was_asked_for_by_name_is_an_error(folder, monkeypatch):
    monkeypatch.setenv("TENON_LARGE", "backward")
    model = make()
    with tenon.apply(model, "large_rmsnorm", training=True, plugins=folder):
        with pytest.raises(tenon.VerifyError, match="600 tokens"):
            model.model.norm(torch.randn(600, 32))
        check(model.model.norm, 600)


def test_inference(folder, monkeypatch):
    """Here gradients are not asked for, and what a forward gives is right, compared or not."""
    monkeypatch.setenv("TENON_LARGE", "forward")
    model = make()
    norm, x = model.model.norm, torch.randn(600, 32)
    with torch.no_grad(), tenon.apply(model, plugins=folder):
        with pytest.warns(RuntimeWarning, match="model.norm: refused"):
            torch.testing.assert_close(norm(x), type(norm).forward(norm, x))
    with torch.no_grad(), tenon.apply(model, check=False, plugins=folder):  # the library compares first calls itself
        torch.testing.assert_close(norm(x), type(norm).forward(norm, x))
        norm(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = site(tenon.report(model), "model.norm")
        assert said.kernel is None and "taken off" in said.reason and said.eager_calls == 1


@pytest.mark.parametrize("what", ["attention", "rope"])
def test_attention_and_rotation(monkeypatch, what):
    """The same, of what Python hands over: a wrong gradient in its place."""
    right = getattr(_record, f"{what}_gradients")

    def wrong(site, first, *more):
        grads = right(site, first, *more)
        tokens = (first if what == "attention" else first[0]).numel() // 32
        return (grads[0] * 1.1, *grads[1:]) if tokens > 50 else grads

    monkeypatch.setattr(_record, f"{what}_gradients", wrong)
    model, ids = make().train(), torch.arange(60).reshape(1, 60)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def gradients():
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    want = gradients()
    with tenon.apply(model, training=True):
        with pytest.warns(RuntimeWarning, match="refused: .* with 60 tokens"):
            got = gradients()
        path = "model.layers.0.self_attn" + (".apply_rotary_pos_emb" if what == "rope" else "")
        assert site(tenon.report(model), path).kernel is None
        other = "model.layers.0.self_attn" + (".apply_rotary_pos_emb" if what == "attention" else "")
        assert site(tenon.report(model), other).kernel
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
