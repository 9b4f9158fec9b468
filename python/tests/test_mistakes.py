"""Mistakes that authors of kernels make: each is told where kernels are applied, before any call is performed. In the
place of a wrong kernel stands what Python hands over of a right one. Skipped without torch and transformers."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import tenon
from tenon import _check, _record
from test_bridge import make, site

TYPES = [torch.float32, torch.bfloat16]


def refused(model, op, paths=None):
    """All sites of the operation, or those, are torch's, and the others have kernels."""
    with tenon.apply(model, training=True) as applied:
        for s in applied.sites:
            if s.op == op and (paths is None or s.path in paths):
                assert s.kernel is None and s.reason.startswith("refused: "), s
            else:
                assert s.kernel or s.covered_by or not s.reason.startswith("refused: "), s


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("head", [0, 1])
def test_one_wrong_head(monkeypatch, dtype, which, head):
    """In backward, of queries, keys or values."""
    right = _record.attention_gradients

    def wrong(*arguments):
        grads = right(*arguments)
        grads[which][:, head].neg_()
        return grads

    monkeypatch.setattr(_record, "attention_gradients", wrong)
    refused(make(dtype=dtype), "ATTENTION")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tokens", [2, 32, 33])
def test_one_number_of_tokens(monkeypatch, dtype, tokens):
    """An odd one, an even one, and whole blocks: at the sites of a layer that was not called with it, too."""
    right = _record.row_gradients

    def wrong(site, x, *more):
        gx, grads = right(site, x, *more)
        if x.shape[-2] == tokens and len(grads) == 3:
            gx[..., -1, 0] += gx.abs().max()
        return gx, grads

    monkeypatch.setattr(_record, "row_gradients", wrong)
    refused(make(dtype=dtype, num_hidden_layers=3), "MLP")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("way", ["forward", "rows", "weights"])
def test_what_is_never_written(dtype, way):
    """Memory may hold what is right from a call before."""
    model = make(dtype=dtype)
    with tenon.apply(model, "npu_fused_swiglu", training=True) as applied:
        mlp = next(s for s in applied.sites if s.op == "MLP" and s.kernel)._bound

    class Left:
        """The last row stays as it was."""

        def __getattr__(self, name):
            return getattr(mlp, name)

        def over(self, call, tensor):
            last = tensor[-1].clone()
            call()
            tensor[-1] = last

        def forward(self, ins, outs):
            call = lambda: mlp.forward(ins, outs)
            self.over(call, outs[0]) if way == "forward" else call()

        def backward(self, ins, up, down, params):
            call = lambda: mlp.backward(ins, up, down, params)
            self.over(call, {"rows": down[0], "weights": params[2]}[way]) if way != "forward" else call()

    memory, module = _check.Memory(), model.model.layers[0].mlp
    assert _check.why_wrong(_check.rows(mlp, module, True, memory)) is None
    for _ in range(2):
        assert _check.why_wrong(_check.rows(Left(), module, True, memory)) == (
            "differs from the module's own forward: inf of the bound"
        )
    assert _check.why_wrong(_check.rows(mlp, module, True, memory)) is None
