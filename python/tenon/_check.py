"""Is a site's kernel right? Against the module's own forward, on its own weights, one token and many."""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import torch

from . import _record
from .errors import DeclinedError, Error, UsageError, VerifyError

TOKENS = (1, 33)  # what kernels are checked with when they are applied
ONCE = (2, 32)  # and once for each shape: even numbers, and whole blocks with nothing behind them
WIDE = 32768  # features from which on a linear layer is spared what others are checked with beside TOKENS

TAKEN_OFF = "differs from the plain implementation, and was taken off"


def _noise(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _first(out: Any) -> torch.Tensor:
    return out[0] if isinstance(out, tuple) else out


def _types(site: Any) -> torch.dtype:
    return {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[site.dtype]


_TRIES = 24
_AIM = 5.0  # logits of tokens at random are as far apart as the length of a router's row


class Memory:
    """For results that are compared: full of what the library tells as never written, and used again, since fresh pages
    cost more than comparing does. What empty gave is valid until begin."""

    def __init__(self) -> None:
        self.chunk, self.used = torch.empty(0, dtype=torch.uint8), 0

    def begin(self) -> None:
        self.used = 0

    def empty(self, shape: tuple, dtype: torch.dtype) -> torch.Tensor:
        size = math.prod(shape) * dtype.itemsize
        if self.used + size > self.chunk.numel():
            self.chunk, self.used = torch.empty(size + (1 << 24), dtype=torch.uint8), 0
        piece = self.chunk[self.used : self.used + size].fill_(0xFF)
        self.used += -(-size // 64) * 64
        return piece.view(dtype).view(shape)


def _aims(site: Any) -> torch.Tensor | None:
    """For each expert what brings a token to it: one that no token comes to could be wrong unseen."""
    router = site.facts()["router"]
    if router is None:
        return None
    rows = site.params()[router].detach().float()
    return _AIM * rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-20)


def _drawn(site: Any, tokens: int) -> tuple[torch.Tensor, list[int]]:
    """Tokens whose choice of experts rounding cannot change, as core's checks draw them, and the numbers of the few for
    which none was found: two right routers may differ there. Of many tokens there is one more for each expert."""
    random = torch.Generator().manual_seed(tokens)
    aims = _aims(site) if tokens >= TOKENS[-1] else None
    aim = torch.zeros(tokens, site.in_width) if aims is None else torch.cat((aims, torch.zeros(tokens, site.in_width)))
    draw = lambda rows: (torch.randn(1, len(aim[rows]), site.in_width, generator=random) + aim[rows]).to(_types(site))
    x = draw(slice(None))
    unclear = site.unclear((x[0],))
    for _ in range(_TRIES - 1):
        if not unclear:
            break
        x[0, unclear] = draw(unclear)
        unclear = [unclear[i] for i in site.unclear((x[0, unclear],))]
    if 2 * len(unclear) > len(aim):
        raise DeclinedError(
            1,
            "",
            "cannot be checked: its router scores nearly the same for the last chosen and the first rejected expert",
        )
    return x, unclear


def gives_more(site: Any, module: torch.nn.Module) -> bool:
    """Does the module's forward give more than one tensor?"""
    try:
        with torch.no_grad():
            out = module.forward(_noise(1, 1, site.in_width, dtype=_types(site), seed=1))
    except Exception as wrong:
        raise DeclinedError(1, "", f"its forward fails with {type(wrong).__name__}: {wrong}") from wrong
    return not isinstance(out, torch.Tensor)


def rows(site: Any, module: torch.nn.Module, training: bool, memory: Memory, sizes: tuple = TOKENS) -> Any:
    """The largest error in units of the kernel's tolerance, or in words what is wrong."""
    return _rows(site, module.forward, training, sizes, memory)


def _flat(t: torch.Tensor) -> torch.Tensor:
    return t.detach().reshape(-1, t.shape[-1]).contiguous()


def _rows(site: Any, module_forward: Any, training: bool, sizes: tuple, memory: Memory) -> Any:
    worst = 0.0
    why = site.look()
    if why is not None:
        raise DeclinedError(1, "", why)
    for tokens in sizes:
        memory.begin()
        try:
            x, unclear = _drawn(site, tokens)
            with torch.set_grad_enabled(training):
                leaf = x.clone().requires_grad_() if training else x
                want = _first(module_forward(leaf))
            got = memory.empty((*x.shape[:-1], site.out_width), x.dtype)
            site.forward((x[0],), (got[0],))
            if site.kernel(tokens) is None:
                return TAKEN_OFF
            if got.shape != want.shape or got.dtype != want.dtype:
                return f"gives {tuple(got.shape)} of {got.dtype}, the module's own forward {tuple(want.shape)} of {want.dtype}"
            worst = _worse(worst, site.compare((_flat(x),), (_flat(got),), (_flat(want),)))
            if training:
                worst = _worse(worst, _gradients(site, leaf, want, unclear, memory))
        except UsageError as wrong:
            raise DeclinedError(1, "", f"the operation does not take the module's calls: {wrong}") from wrong
        except Error:
            raise
        except Exception as wrong:  # of a forward that is not what its class says
            return f"cannot be compared: the module's own forward fails with {type(wrong).__name__}: {wrong}"
    return worst


def why_wrong(error: Any) -> str | None:
    """In words what rows found; None: it is right."""
    if error is None or (isinstance(error, float) and error <= 1):
        return None
    if isinstance(error, float):
        return f"differs from the module's own forward: {error:.3g} of the bound"
    return str(error)


class Judge:
    """What becomes of a kernel that is wrong in a call larger than those that it was checked with: the site is torch's
    from then on, and where the kernel was asked for by name that is an error."""

    def __init__(self, path: str, kernel: str, named: bool) -> None:
        self.path, self.kernel, self.named = path, kernel, named

    def refuse(self, site: Any, tokens: int, error: Any) -> str | None:
        wrong = why_wrong(error)
        if wrong is None:
            return None
        said = f"refused: {self.kernel} with {tokens} tokens {wrong}"
        site.refused = said
        if self.named:
            raise VerifyError(-5, self.path, said)
        warnings.warn(f"{self.path}: {said}; torch has it from here on", RuntimeWarning, stacklevel=2)
        return said


def larger_rows(judge: Judge, forward: Any) -> Any:
    """What a site asks before its first call of so many tokens: larger than those that it was checked with."""

    def larger(site, tokens, recorded):
        with by_itself():
            try:
                error = _rows(site, forward, recorded, (tokens,), Memory())
            except DeclinedError as declined:
                error = declined.message
        return judge.refuse(site, tokens, error)

    return larger


def by_itself() -> Any:
    """Checkpointing neither counts nor replaces what a comparison saves."""
    same = lambda t: t
    return torch.autograd.graph.saved_tensors_hooks(same, same)


def _gradients(site: Any, leaf: torch.Tensor, out: torch.Tensor, unclear: list[int], memory: Memory) -> float:
    """Of out, the module's own result of leaf."""
    site.look()
    params = site.params()
    wants = tuple(p.requires_grad for p in params)
    gy = _noise(*out.shape, dtype=out.dtype, seed=7)
    gy.view(-1, gy.shape[-1])[unclear] = 0  # gradients of weights add up over the tokens
    asked = [leaf, *(p for p, w in zip(params, wants) if w)]
    found = torch.autograd.grad(out, asked, gy, allow_unused=True)
    found = [torch.zeros_like(a) if g is None else g for a, g in zip(asked, found)]
    rest = iter(found[1:])
    want_p = tuple(next(rest).contiguous() if w else None for w in wants)
    gx, got_p = _record.row_gradients(site, leaf.detach(), gy, params, True, wants, memory.empty)
    sides = [((_flat(gy),), (_flat(g),), p) for g, p in ((gx, got_p), (found[0], want_p))]
    return site.compare_gradients((_flat(leaf),), *sides)


_SIZES = (1, 8, 64)  # one token, few and many, as bits 1, 2 and 4
_WIDE_SIZES = (1, 5, TOKENS[-1])  # those that a wide layer was compared with, which takes long in others


def not_faster(site: Any, module: torch.nn.Module) -> tuple[int, str]:
    """Sizes of calls with which torch is as fast, and the times in words."""
    bits, said = 0, []
    with torch.no_grad():
        for bit, tokens in enumerate(_SIZES if site.out_width < WIDE else _WIDE_SIZES):
            x = _noise(1, tokens, site.in_width, dtype=_types(site), seed=tokens)
            torchs, ours = least((lambda: type(module).forward(module, x), lambda: site.run(x)))
            said.append(f"{tokens} tokens {1e3 * ours:.3g} ms ({1e3 * torchs:.3g} by torch)")
            if ours >= torchs:
                bits |= 1 << bit
    return bits, "not faster: " + ", ".join(said)


def least(calls: tuple) -> list[float]:
    """The shortest time of each call, in turns: at least five of each, for a hundredth of a second or so; of long ones
    two."""
    times, turns, begin = [math.inf] * len(calls), 0, time.perf_counter()
    passed = lambda: time.perf_counter() - begin
    while turns < 2 or (turns < 5 and passed() < 0.2) or (turns < 50 and passed() < 0.01):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[i] = min(times[i], time.perf_counter() - start)
        turns += 1
    return times


def _worse(a: float, b: float) -> float:
    return b if math.isnan(b) or b > a else a


def worst(errors: list) -> Any:
    """The largest of errors, or the first in words."""
    told = [e for e in errors if isinstance(e, str)]
    return told[0] if told else max(errors, key=lambda e: math.inf if math.isnan(e) else e)


def attention(
    there: Any,
    module: torch.nn.Module,
    base: torch.nn.Module,
    training: bool,
    timed: set,
    memory: Memory,
    sizes: tuple = TOKENS,
) -> dict:
    """The same of attention and rotations, by site, in a run of the module's forward where both ways are gone.
    timed: the kernels of sites among these are timed against torch, too."""
    from ._attention import Trial

    there.trial = trial = Trial(training, timed, memory)
    first = next(p for p in module.parameters() if p.ndim == 2)
    width = _hidden(base)
    try:
        for tokens in sizes:
            memory.begin()
            x = _noise(1, tokens, width, dtype=first.dtype, seed=tokens)
            with torch.no_grad():
                tables = _tables(base, module, x)
                there.function(
                    module, hidden_states=x, position_embeddings=tables, attention_mask=_mask(base, module, tokens, x)
                )
    except UsageError as wrong:
        raise DeclinedError(1, "", f"the operation does not take the module's calls: {wrong}") from wrong
    except Error:
        raise
    except Exception as wrong:
        raise DeclinedError(
            1, "", f"the check could not call the module's forward: {type(wrong).__name__}: {wrong}"
        ) from wrong
    finally:
        there.trial = None
    errors: dict = {}
    there.slow = trial.slow
    for site in there.sites:
        found = trial.errors.get(site)
        errors[site] = (
            "was not called in the check of its module's forward"
            if not found
            else worst(found)
        )
    return errors


def _hidden(base: torch.nn.Module) -> int:
    config = base.config
    return getattr(config, "hidden_size", None) or config.get_text_config().hidden_size


def _tables(base: torch.nn.Module, module: torch.nn.Module, x: torch.Tensor) -> tuple:
    """cos and sin as the model has them, of places behind each other."""
    rotary = next((m for n, m in base.named_modules() if n.rsplit(".", 1)[-1] == "rotary_emb"), None)
    if rotary is None:
        raise DeclinedError(1, "", "the check finds no rotary_emb in the model")
    places = torch.arange(x.shape[1])[None]
    layer_type = getattr(module, "layer_type", None)
    try:
        return rotary(x, places)
    except (TypeError, AttributeError, KeyError):
        return rotary(x, places, layer_type)


def _mask(base: torch.nn.Module, module: torch.nn.Module, tokens: int, x: torch.Tensor) -> torch.Tensor:
    """Causal, within the module's window, as the implementation in use has it."""
    t = torch.arange(tokens)
    seen = t[None, :] <= t[:, None]
    window = getattr(module, "sliding_window", None)
    if window:
        seen &= t[:, None] - t[None, :] < window
    seen = seen[None, None]
    if base.config._attn_implementation != "eager":
        return seen
    return torch.where(seen, torch.zeros((), dtype=x.dtype), torch.finfo(x.dtype).min)
