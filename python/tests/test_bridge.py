"""Kernels in live transformers models: what ../shared/python does not try. Skipped without torch and transformers."""

import copy
import gc
import pickle
import weakref

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import tenon
from tenon import _attention, _live, _tenon

CONFIG = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


def make(kind="llama", dtype=torch.float32, **more):
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(kind, **{**CONFIG, **more})
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()


@pytest.fixture
def model():
    made = make()
    yield made
    tenon.revert(made)


def site(applied, path):
    return next(s for s in applied.sites if s.path == path)


IDS = torch.arange(14).reshape(2, 7)


def test_calls_are_counted_with_reasons(model):
    with torch.no_grad(), tenon.apply(model, kernels="npu_fused_rmsnorm"):
        model(IDS)
        norm = model.model.norm
        norm(torch.ones(2, 32, dtype=torch.bfloat16))
        said = site(tenon.report(model), "model.norm")
        assert (said.calls, said.eager_calls) == (1, 1) and "type" in said.why_eager
        norm.variance_epsilon = 0.25
        x = torch.randn(3, 32)
        got = norm(x)
        assert "variance_epsilon" in site(tenon.report(model), "model.norm").why_eager
        assert torch.equal(got, type(norm).forward(norm, x))
        norm.variance_epsilon = 1e-6
        norm(x)
        said = site(tenon.report(model), "model.norm")
        assert (said.calls, said.eager_calls) == (2, 2), "it fits again"


def test_moved_weights_are_pointed_anew(model):
    with torch.no_grad(), tenon.apply(model, kernels="npu_fused_rmsnorm"):
        norm, x = model.model.norm, torch.randn(3, 32)
        norm.weight = torch.nn.Parameter(torch.full((32,), 3.0))
        torch.testing.assert_close(norm(x), type(norm).forward(norm, x))
        norm.weight.data = torch.full((32,), 5.0)
        torch.testing.assert_close(norm(x), type(norm).forward(norm, x))
        norm.weight.data[3] = 7
        torch.testing.assert_close(norm(x), type(norm).forward(norm, x))
        assert site(tenon.report(model), "model.norm").eager_calls == 0


def test_class_forward_that_is_replaced_counts(model):
    with torch.no_grad(), tenon.apply(model, kernels="npu_fused_rmsnorm"):
        norm, cls = model.model.norm, type(model.model.norm)
        own = cls.forward
        try:
            cls.forward = lambda self, x: x * 2
            assert torch.equal(norm(torch.ones(1, 32)), torch.full((1, 32), 2.0))
        finally:
            cls.forward = own


def test_a_former_forward_of_the_instance_comes_back(model):
    norm = model.model.norm
    norm.forward = former = lambda x: x + 1
    with pytest.raises(tenon.VerifyError):
        tenon.apply(model, kernels="npu_fused_rmsnorm")
    assert norm.forward is former
    applied = tenon.apply(model)
    assert site(applied, "model.norm").kernel is None and norm.forward is former
    tenon.revert(model)
    assert norm.forward is former


def test_a_forward_that_was_wrapped_meanwhile_stays(model):
    tenon.apply(model, kernels="npu_fused_rmsnorm")
    norm = model.model.norm
    ours = norm.forward
    norm.forward = wrapper = lambda x: ours(x) + 1
    tenon.revert(model)
    x = torch.randn(2, 32)
    assert norm.forward is wrapper and torch.equal(norm(x), type(norm).forward(norm, x) + 1)
    del norm.forward


def test_copies_and_pickles_of_modules_are_plain(model):
    plain = sorted(vars(model.model.norm))
    tenon.apply(model)
    for make_one in (copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))):
        for module in (model.model.norm, model.model.layers[0].self_attn):
            made = make_one(module)
            assert "forward" not in vars(made) and "__getstate__" not in vars(made)
    assert sorted(vars(copy.deepcopy(model.model.norm))) == plain


def test_shared_config_and_classes_are_untouched(model):
    other = transformers.AutoModelForCausalLM.from_config(model.config).eval()
    impl, forward = model.config._attn_implementation, type(model.model.layers[0].self_attn).forward
    tenon.apply(model)
    assert model.config._attn_implementation == impl and type(model.model.layers[0].self_attn).forward is forward
    assert "forward" not in vars(other.model.layers[0].self_attn)


def test_a_failed_apply_leaves_the_former(model):
    tenon.apply(model)
    with pytest.raises(tenon.KernelError):
        tenon.apply(model, kernels="no_such_kernel")
    with torch.no_grad():
        model(IDS)
    assert site(tenon.report(model), "model.norm").calls == 1


def test_memory_is_freed_without_collecting():
    model = make()
    tenon.apply(model)
    weight = weakref.ref(model.model.layers[0].mlp.gate_proj)
    gc.collect()
    gc.disable()
    try:
        del model
        assert weight() is None, "a cycle through a forward"
    finally:
        gc.enable()


def test_modes_go_to_torch(model):
    with tenon.apply(model, kernels="npu_fused_rmsnorm"):
        norm, x = model.model.norm, torch.randn(4, 32)
        want = type(norm).forward(norm, x)
        torch.testing.assert_close(torch.func.vmap(norm)(x), want)
        assert "torch.func" in site(tenon.report(model), "model.norm").why_eager
        params = {k: v.detach() * 2 for k, v in norm.named_parameters()}
        torch.testing.assert_close(torch.func.functional_call(norm, params, (x,)), want * 2)


def test_many_rows_and_no_rows():
    """More rows than a kernel takes at once, forward and backward."""
    model = make()
    mlp = model.model.layers[0].mlp
    with tenon.apply(model, training=True):
        for rows in (0, 5000):
            x = torch.randn(rows, 32, requires_grad=True)
            got = torch.autograd.grad(mlp(x).square().sum(), [x, *mlp.parameters()])
            want = torch.autograd.grad(type(mlp).forward(mlp, x).square().sum(), [x, *mlp.parameters()])
            for a, b in zip(got, want):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        assert site(tenon.report(model), "model.layers.0.mlp").eager_calls == 0
    with torch.no_grad(), tenon.apply(model):
        x = torch.randn(5000, 32)
        torch.testing.assert_close(mlp(x), type(mlp).forward(mlp, x), rtol=1e-4, atol=1e-5)


def test_paths_of_other_heads_and_base_models():
    config = transformers.AutoConfig.for_model("llama", **CONFIG, num_labels=3)
    config.pad_token_id = 0
    for made, norm in (
        (transformers.AutoModelForSequenceClassification.from_config(config).eval(), "model.norm"),
        (transformers.AutoModel.from_config(config).eval(), "norm"),
    ):
        with torch.no_grad():
            want = made(IDS)[0]
            with tenon.apply(made) as applied:
                assert site(applied, norm).kernel == "npu_fused_rmsnorm"
                torch.testing.assert_close(made(IDS)[0], want, rtol=1e-4, atol=1e-5)


def mask_of(seen, dtype=torch.bool):
    return seen if dtype == torch.bool else torch.where(seen, torch.zeros((), dtype=dtype), torch.finfo(dtype).min)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.bfloat16, torch.float16])
def test_masks_as_indices(dtype):
    def ask(seen, window=0, zeros=True):
        q, k = torch.empty(1, seen.shape[-2], dtype=torch.int32), torch.empty(1, seen.shape[-1], dtype=torch.int32)
        good = _tenon.mask_indices(mask_of(seen[None, None], dtype), window, zeros, q, k)
        return (q[0].tolist(), k[0].tolist()) if good else None

    t = torch.arange(5)
    causal = t[None] <= t[:, None]
    assert ask(causal) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert ask(torch.ones(5, 5, dtype=torch.bool)) == ([4] * 5, [0, 1, 2, 3, 4])
    padded = causal & (t >= 2)[None]
    assert ask(padded) == ([-1, -1, 2, 3, 4], [-1, -1, 2, 3, 4])
    assert ask(padded, zeros=False) is None, "eager attention gives such a query the mean of all"
    assert ask(causal & (t[:, None] - t[None] < 2), window=2) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert ask(causal & (t[:, None] - t[None] < 2)) is None, "a window that the site has not"
    assert ask(causal, window=2) is None, "no window where the site has one"
    blocks = causal & (t[:, None] // 3 == t[None] // 3)
    assert ask(blocks) is None, "two texts in one row"


def test_a_mask_that_biases_is_left_to_torch():
    q, k = torch.empty(1, 2, dtype=torch.int32), torch.empty(1, 2, dtype=torch.int32)
    assert not _tenon.mask_indices(torch.tensor([[[[0.0, -1.0], [0.0, 0.0]]]]), 0, True, q, k)


def test_globals_are_looked_up_when_they_are_used():
    names = {"__builtins__": __builtins__, "a": 1, "b": 2}
    exec("def f(x=3):\n    return a, b, x, len('four')", names)
    made = _attention.over(names["f"], {"a": 10})
    assert made() == (10, 2, 3, 4)
    names["b"] = 20
    assert made() == (10, 20, 3, 4) and names["f"]() == (1, 20, 3, 4)


def test_packed_sequences_are_right(model):
    """Positions that begin again make a mask of blocks, which goes to torch's attention."""
    places = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    with torch.no_grad():
        want = model(IDS[:1], position_ids=places, use_cache=False).logits
        with tenon.apply(model):
            got = model(IDS[:1], position_ids=places, use_cache=False).logits
            said = site(tenon.report(model), "model.layers.0.self_attn")
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert said.eager_calls == 1 and "mask" in said.why_eager


def test_explain_has_reasons(model):
    sites = tenon.explain(model, kernels="npu_fused_rope").sites
    assert all(s.reason or s.kernel or s.covered_by for s in sites)
    assert {s.op for s in sites if s.kernel} == {"ROPE"}


def test_report_of_nothing(model):
    assert tenon.report(model).sites == [] and "no kernels" in str(tenon.report(model))
    tenon.revert(model)


def test_plain_paths():
    assert _live.plain("base_model.q_proj.base_layer.weight") == "base_model.q_proj.weight"
