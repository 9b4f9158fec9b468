"""torch.compile with kernels inside, without a break in the graph. Skipped without torch and transformers."""

import weakref

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import tenon
from test_bridge import IDS, make, site


def sees_through_weak_references():
    """As forwards on instances need, ours or torch's own: torch 2.4 does not, and breaks the graph there."""
    thing = torch.nn.Linear(2, 2)
    ref = weakref.ref(thing)
    try:
        torch.compile(lambda x: x + ref().in_features, fullgraph=True, backend="eager")(torch.ones(2))
        return True
    except torch._dynamo.exc.Unsupported:
        return False


if not sees_through_weak_references():
    pytest.skip("torch.compile does not see through weak references", allow_module_level=True)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def model():
    made = make()
    yield made
    tenon.revert(made)


def compiled(what, backend="aot_eager"):
    return torch.compile(what, fullgraph=True, backend=backend)


def test_kernels_are_inside(model):
    with torch.no_grad():
        tenon.apply(model)
        for path in ("model.norm", "model.layers.0.mlp"):
            module = model.get_submodule(path)
            run = compiled(module)
            for rows in (3, 1, 5):
                x = torch.randn(rows, 32)
                torch.testing.assert_close(run(x), type(module).forward(module, x), rtol=1e-4, atol=1e-5)
            said = site(tenon.report(model), path)
            assert (said.calls, said.eager_calls) == (3, 0)


def test_a_whole_model(model):
    with torch.no_grad():
        want = model(IDS, use_cache=False).logits
        tenon.apply(model)
        got = compiled(model)(IDS, use_cache=False).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert site(tenon.report(model), "model.layers.0.mlp").calls == 1


def test_inductor(model):
    with torch.no_grad():
        tenon.apply(model)
        mlp, x = model.model.layers[0].mlp, torch.randn(3, 32)
        torch.testing.assert_close(compiled(mlp, "inductor")(x), type(mlp).forward(mlp, x), rtol=1e-4, atol=1e-5)
    assert site(tenon.report(model), "model.layers.0.mlp").calls == 1


def gradients(run, module, rows=3):
    x = torch.randn(rows, 32, generator=torch.Generator().manual_seed(2), requires_grad=True)
    asked = [x, *(p for p in module.parameters() if p.requires_grad)]
    return torch.autograd.grad(run(x).square().sum(), asked)


@pytest.mark.parametrize("frozen", [False, True])
def test_gradients(model, frozen):
    mlp = model.model.layers[0].mlp
    mlp.up_proj.weight.requires_grad_(not frozen)
    want = gradients(mlp, mlp)
    tenon.apply(model, training=True)
    run = compiled(mlp)
    for a, b in zip(gradients(run, mlp), want):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert site(tenon.report(model), "model.layers.0.mlp").calls == 1
    tenon.apply(model, training=False)
    for a, b in zip(gradients(compiled(mlp), mlp), want):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert site(tenon.report(model), "model.layers.0.mlp").calls == 0


def test_a_step_of_a_whole_model(model):
    model.train()
    loss = lambda run: run(IDS, labels=IDS, use_cache=False).loss
    want = torch.autograd.grad(loss(model), list(model.parameters()))
    tenon.apply(model, training=True)
    got = torch.autograd.grad(loss(compiled(model)), list(model.parameters()))
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert site(tenon.report(model), "model.norm").calls == 1


def test_never_stale(model):
    """What changes under compiled code."""
    mlp, x = model.model.layers[0].mlp, torch.randn(3, 32)
    with torch.no_grad():
        tenon.apply(model)
        run = compiled(mlp)
        right = lambda: torch.testing.assert_close(run(x), type(mlp).forward(mlp, x), rtol=1e-4, atol=1e-5)
        right()
        mlp.down_proj.weight.data.mul_(2)
        right()
        mlp.up_proj.weight = torch.nn.Parameter(mlp.up_proj.weight.detach() * 3)
        right()
        handle = mlp.up_proj.register_forward_hook(lambda m, a, out: out * 2)
        right()
        handle.remove()
        assert site(tenon.report(model), "model.layers.0.mlp").eager_calls == 1
        tenon.revert(model)
        right()


def test_hooks_inside_and_gradients(model):
    """Backward is torch's where forward was."""
    mlp = model.model.layers[0].mlp
    tenon.apply(model, training=True)
    run = compiled(mlp)
    gradients(run, mlp)
    mlp.up_proj.register_forward_hook(lambda m, a, out: out * 2)
    for a, b in zip(gradients(run, mlp), gradients(lambda x: type(mlp).forward(mlp, x), mlp)):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_larger_calls(model):
    """They are compared first, as ever."""
    mlp = model.model.layers[0].mlp
    want = gradients(mlp, mlp, 70)
    applied = tenon.apply(model, training=True)
    for a, b in zip(gradients(compiled(mlp), mlp, 70), want):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    said = site(applied, "model.layers.0.mlp")
    assert said.kernel and said._bound.checked == 70 and said.eager_calls == 0
