"""Blocks of experts: rounding may decide which experts a token goes to, and then two right kernels differ in all that
comes of it; a wrong one differs everywhere. Skipped without torch and transformers."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import tenon
from tenon import _check
from test_bridge import make

PATH = "model.layers.0.mlp"
MIXTURE = dict(num_experts=64, num_experts_per_tok=8, moe_intermediate_size=16, norm_topk_prob=True)


def mixture(dtype, seed=1, spread=0.3, **more):
    """A model whose routers tell experts apart as trained ones do."""
    made = make("qwen3_moe", dtype, head_dim=8, **{**MIXTURE, **more})
    random = torch.Generator().manual_seed(seed)
    for name, p in made.named_parameters():
        if ".mlp." in name:
            p.data.copy_(torch.randn(p.shape, generator=random) * (spread if ".gate." in name else 0.2))
    return made


def bound(model):
    """The site of the first block, taken off its module again."""
    with tenon.apply(model, "npu_fused_moe", training=True) as applied:
        return next(s for s in applied.sites if s.path == PATH)._bound


def chosen(logits, part):
    """The experts of each token that has k which are ahead of the others by that part of two per cent, or of what
    rounding to bf16 does to two logits."""
    best = logits.sort(-1, descending=True).values
    ahead = 1 - torch.exp(best[:, 8] - best[:, 7])
    clear = ahead > part * torch.clamp(best[:, 7].abs() / 128, min=0.02)
    return logits.topk(8).indices.sort(-1).values, clear


def test_near_ties_are_no_difference():
    """The kernel takes every block: also where tokens that come as they may go to other experts by rounding alone."""
    model = mixture(torch.bfloat16, 3, num_hidden_layers=3)
    with tenon.apply(model, training=True) as applied:
        for site in applied.sites:
            assert site.op != "MOE_BLOCK" or site.kernel == "npu_fused_moe", site.reason


@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_tokens_that_are_compared(spread):
    """Their choice is that of exact logits by a margin that rounding in bf16 does not bridge, and it is of all tokens."""
    model = mixture(torch.bfloat16, spread=spread)
    site, gate = bound(model), model.get_submodule(PATH).gate.weight
    x = torch.randn(2000, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    unclear = torch.zeros(2000, dtype=torch.bool)
    unclear[site.unclear((x,))] = True
    exact = x.double() @ gate.double().T
    _, clear = chosen(exact, 1.01)
    _, near = chosen(exact, 0.99)
    assert not (clear & unclear).any() and not (~near & ~unclear).any() and unclear.sum() > 50
    right, _ = chosen(exact, 0)
    rounded, _ = chosen((x @ gate.T).float(), 0)
    other = (right != rounded).any(-1)
    assert other.any() and not (other & ~unclear).any(), "rounding moves the choice of these tokens, and of no others"
    drawn, left = _check._drawn(site, 500)
    assert len(left) < 5 and set(site.unclear((drawn[0],))) == set(left)
    assert bound(mixture(torch.float32)).unclear((torch.zeros(3, 32),)) == [0, 1, 2], "where all experts tie"


class Wrong:
    """The site with a kernel that reads other weights than the module's, in calls of one way."""

    def __init__(self, site, way, change):
        self.site, self.way, self.change = site, way, change

    def __getattr__(self, name):
        return getattr(self.site, name)

    def reads(self, call, *arguments):
        right = tuple(p.detach() for p in self.site.params())
        wrong = {".".join(path): p.clone() for path, p in zip(self.site.paths, right)}
        self.change(wrong)
        self.site.point(tuple(wrong.values()))
        try:
            return call(*arguments)
        finally:
            self.site.point(right)

    def forward(self, *arguments):
        return self.reads(self.site.forward, *arguments) if self.way == "forward" else self.site.forward(*arguments)

    def backward(self, *arguments):
        return self.reads(self.site.backward, *arguments) if self.way == "backward" else self.site.backward(*arguments)


def neighbours(wrong):
    wrong["gate.weight"].copy_(wrong["gate.weight"].roll(1, 0))


def two_of_the_router(wrong):
    wrong["gate.weight"][[3, 40]] = wrong["gate.weight"][[40, 3]]


def scaled_router(wrong):
    wrong["gate.weight"].mul_(1.25)


def other_experts(wrong):
    wrong["experts.down_proj"].copy_(wrong["experts.down_proj"].roll(1, 0))


def one_expert(wrong):
    wrong["experts.down_proj"][5].neg_()


def gates_for_ups(wrong):
    wrong["experts.gate_up_proj"].copy_(wrong["experts.gate_up_proj"].roll(16, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize(
    "change", [neighbours, two_of_the_router, scaled_router, other_experts, one_expert, gates_for_ups]
)
def test_wrong_kernels_are_refused(dtype, way, change):
    model = mixture(dtype)
    site, module = bound(model), model.get_submodule(PATH)
    assert _check.why_wrong(_check.rows(Wrong(site, "neither", change), module, True, _check.Memory())) is None
    said = _check.why_wrong(_check.rows(Wrong(site, way, change), module, True, _check.Memory()))
    assert said and said.startswith("differs from the module's own forward")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("expert", [2, 11, 47, 63])
def test_one_wrong_expert_of_many_is_refused(dtype, way, expert):
    """Of which 33 tokens at random would reach two thirds."""

    def change(wrong):
        wrong["experts.down_proj"][expert].neg_()

    model = mixture(dtype, num_experts=256)
    site, module = bound(model), model.get_submodule(PATH)
    assert _check.why_wrong(_check.rows(site, module, True, _check.Memory())) is None
    assert _check.why_wrong(_check.rows(Wrong(site, way, change), module, True, _check.Memory()))


def test_every_expert_is_reached():
    model = mixture(torch.bfloat16, num_experts=256)
    site, gate = bound(model), model.get_submodule(PATH).gate.weight
    site.look()
    x, _ = _check._drawn(site, _check.TOKENS[-1])
    assert len((x[0] @ gate.T).float().topk(8).indices.unique()) == 256


def test_a_router_that_cannot_be_checked():
    model = mixture(torch.bfloat16, spread=1e-4)
    site = next(s for s in tenon.explain(model, check=True).sites if s.path == PATH)
    assert site.kernel is None and "cannot be checked: its router scores nearly the same" in site.reason
