"""Kernels by the ways of other packages: LLaMA-Factory's kernel_config, and mappings of `kernels`. Each is skipped where
its package is missing."""

import copy
import gc
import sys
import types

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import tenon
from test_bridge import IDS, make

# ---- LLaMA-Factory ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["function", "object"])
def form(request):
    """The two forms of its registry, as far as a kernel sees them."""
    kernels = {}

    class KernelPlugin:
        def __init__(self, name):
            self.name = name

        def register(self, method="__call__"):
            def decorator(what):
                kernels[self.name] = what
                return what

            return decorator

        def __call__(self, *args, **kwargs):
            return kernels[self.name](*args, **kwargs)

        def __getattr__(self, name):
            return getattr(kernels[self.name], name)

    names = "llamafactory.v1.plugins.model_plugins.kernels".split(".")
    modules = {".".join(names[: i + 1]): types.ModuleType(".".join(names[: i + 1])) for i in range(len(names))}
    modules[".".join(names)].interface = modules[".".join(names) + ".interface"] = types.ModuleType("interface")
    modules[".".join(names)].interface.KernelPlugin = KernelPlugin
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        patch.delitem(sys.modules, "tenon.llamafactory", raising=False)
        import tenon.llamafactory

        yield request.param, KernelPlugin
    sys.modules.pop("tenon.llamafactory", None)


def use(form, model, **config):
    kind, plugin = form
    if kind == "function":
        return plugin("tenon")(model=model, **config)
    return plugin("tenon").apply(model=model, config={"name": "tenon", **config}, require_logits=True)


def test_llamafactory(form):
    model = make()
    assert use(form, model, include_kernels="auto") is model
    assert {s.op for s in tenon.report(model).sites if s.kernel} >= {"RMS_NORM", "MLP", "ATTENTION", "ROPE"}
    use(form, model, include_kernels="npu_fused_rmsnorm, npu_fused_rope")
    assert {s.op for s in tenon.report(model).sites if s.kernel} == {"RMS_NORM", "ROPE"}
    use(form, model, include_kernels=True)
    assert "MLP" in {s.op for s in tenon.report(model).sites if s.kernel}
    tenon.revert(model)
    assert use(form, model, include_kernels=False) is model and not tenon.report(model).sites


def test_llamafactory_refuses(form):
    model = make()
    with pytest.raises(tenon.UsageError, match="include_kernels"):
        use(form, model, include_kernel="auto")
    with pytest.raises(tenon.UsageError, match="int"):
        use(form, model, include_kernels=3)
    with pytest.raises(tenon.KernelError, match="npu_fused_rmsnorm"):
        use(form, model, include_kernels="npu_fused_rmsnrm")
    with pytest.warns(RuntimeWarning, match="chunk_size"):
        use(form, model, include_kernels="npu_fused_rope", chunk_size=32)
    with pytest.warns(RuntimeWarning, match="no kernel was applied.*f64"):
        use(form, make(dtype=torch.float64), include_kernels="auto")
    tenon.revert(model)


def test_llamafactory_itself():
    interface = pytest.importorskip("llamafactory.v1.plugins.model_plugins.kernels.interface")
    import tenon.llamafactory

    model = make()
    if hasattr(interface, "apply_kernels"):
        interface.apply_kernels(model, {"name": "tenon", "include_kernels": "npu_fused_rmsnorm"}, require_logits=True)
    else:
        interface.KernelPlugin("tenon")(model=model, include_kernels="npu_fused_rmsnorm")
    assert {s.op for s in tenon.report(model).sites if s.kernel} == {"RMS_NORM"}
    tenon.revert(model)


# ---- kernels ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch):
    """The package, with a class that it may replace the forward of, whichever version transformers wants."""
    package = pytest.importorskip("kernels")
    cls = type(make().model.norm)
    monkeypatch.setattr(cls, "kernel_layer_name", "RMSNorm", raising=False)
    monkeypatch.setattr(cls, "kernel_condition", staticmethod(lambda module: True), raising=False)
    return package


def kernelized(kernels, model, mode, **more):
    import tenon.hf

    with kernels.use_kernel_mapping(tenon.hf.layers(model, **more)), kernels.use_kernel_mapping({}):
        return kernels.kernelize(model, mode=mode, device="cpu")


def test_layers(kernels):
    model, other = make(), make()
    with torch.no_grad():
        want = model(IDS).logits
        kernelized(kernels, model, kernels.Mode.INFERENCE)
        assert type(model.model.norm.forward.__func__).__name__ == "function" and "forward" in vars(model.model.norm)
        torch.testing.assert_close(model(IDS).logits, want, rtol=1e-4, atol=1e-5)
        layer = model.model.norm.forward.__func__.__closure__
        found = next(c.cell_contents for c in layer if hasattr(c.cell_contents, "forwards"))
        bound = found.forwards[model.model.norm].__closure__
        calls = next(c.cell_contents for c in bound if hasattr(c.cell_contents, "eager_calls"))
        assert (calls.calls, calls.eager_calls) == (1, 0)
        model.model.norm.variance_epsilon = 0.25
        x = torch.randn(3, 32)
        assert torch.equal(model.model.norm(x), type(model.model.norm).forward(model.model.norm, x))
        assert calls.eager_calls == 1, "it is looked at as ever"
        norm = other.model.norm  # another model's module with this layer
        assert torch.equal(found.load().forward(norm, x), type(norm).forward(norm, x))


def test_layers_with_gradients(kernels):
    model = make().train()
    loss = lambda: model(IDS, labels=IDS, use_cache=False).loss
    want = torch.autograd.grad(loss(), list(model.parameters()))
    kernelized(kernels, model, kernels.Mode.TRAINING, training=True)
    for a, b in zip(torch.autograd.grad(loss(), list(model.parameters())), want):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    inference = make().train()
    kernelized(kernels, inference, kernels.Mode.TRAINING, training=False)
    assert inference.model.norm.forward.__func__ is type(inference.model.norm).forward, "it has no backward"


def test_layers_keep_nothing(kernels):
    import tenon.hf

    mapping = tenon.hf.layers(make())
    assert set(mapping) >= {"RMSNorm", "LlamaMLP", "LlamaAttention"}
    gc.collect()
    assert not mapping["RMSNorm"]["cpu"].forwards, "a mapping keeps no model alive"
    assert copy.deepcopy(mapping)["RMSNorm"]["cpu"] is mapping["RMSNorm"]["cpu"]


# ---- locks -----------------------------------------------------------------------------------------------------------


def test_pins():
    """What was locked is applied again; any other plugin is an error, also one that was not there."""
    model = make()
    with tenon.apply(model) as applied:
        lock = applied.lock()
    with tenon.apply(model, pins=lock) as again:
        assert again.lock() == lock
    with tenon.apply(model, pins={name: entry["sha256"] for name, entry in lock["plugins"].items()}) as again:
        assert again.lock() == lock
    left = lock["plugins"].pop("npu_rmsnorm")
    with pytest.raises(tenon.KernelError, match="npu_rmsnorm: is not pinned, and its kernel npu_fused_rmsnorm"):
        tenon.apply(model, pins=lock)
    assert not tenon.report(model).sites, "nothing is left of what failed"
    with tenon.apply(model, "auto,-npu_fused_rmsnorm", pins=lock) as others:
        assert set(others.lock()["plugins"]) == set(lock["plugins"])
    lock["plugins"]["npu_rmsnorm"] = {**left, "sha256": "0" * 64}
    with pytest.raises(tenon.KernelError, match="sha256 is"):
        tenon.apply(model, pins=lock)
    for wrong in ("lock.json", {"plugins": {"npu_rope": {}}}, {"plugins": []}):
        with pytest.raises(tenon.UsageError, match="pins"):
            tenon.apply(model, pins=wrong)
