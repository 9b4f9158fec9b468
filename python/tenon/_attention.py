"""Attention and rotation in a live attention module: its own forward over globals of which two are ours. Neither its
class nor its modeling file changes, nor the name of the implementation in its configuration."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import _record, _tenon
from ._attach import torchs_forward
from ._check import TAKEN_OFF, TOKENS, Memory, by_itself, least, worst
from .errors import DeclinedError, UsageError

_is_compiling = torch.compiler.is_compiling
# What attention modules hand to their implementation without a meaning for those of torch's that are taken over.
_WITHOUT_EFFECT = {
    "position_ids",
    "use_cache",
    "cache_position",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "layer_idx",
    "logits_to_keep",
    "num_items_in_batch",
    "return_dict",
}
_KNOWN = {"sliding_window", "softcap", "s_aux", "is_causal"}


class _Globals(dict):
    """Some names of ours before those of a module, which are looked up when they are used."""

    def __init__(self, module: dict, ours: dict) -> None:
        super().__init__(ours, __builtins__=module["__builtins__"])
        self.module = module

    def __missing__(self, name: str) -> Any:
        return self.module[name]


def over(function: Callable, ours: dict) -> Callable:
    """The same function, within its decorators, over globals of which some are ours."""
    inner = getattr(function, "__wrapped__", None)
    if not isinstance(function, types.FunctionType):
        raise DeclinedError(1, "", "its forward is no plain function")
    if inner is None:
        made = types.FunctionType(
            function.__code__,
            _Globals(function.__globals__, ours),
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
    else:
        new, cells = over(inner, ours), []
        for cell in function.__closure__ or ():
            cells.append(types.CellType(new) if cell.cell_contents is inner else cell)
        if all(a is b for a, b in zip(cells, function.__closure__ or ())):
            raise DeclinedError(1, "", "its forward is decorated in a way that is not known")
        made = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells)
        )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def globals_of(function: Callable) -> dict:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function.__globals__


class Trial:
    """In place of a call: both ways are gone, and compared."""

    def __init__(self, training: bool, timed: set, memory: Memory) -> None:
        self.training, self.timed, self.empty = training, timed, memory.empty
        self.errors: dict[Any, list[float]] = {}
        self.slow: dict[Any, int] = {}  # a bit for calls of one token and one for more: torch is as fast

    def note(self, site: Any, error: float) -> None:
        self.errors.setdefault(site, []).append(error)

    def time(self, site: Any, tokens: int, torchs: Callable, ours: Callable) -> None:
        if site in self.timed:
            theirs, own = least((torchs, ours))
            if own >= theirs:
                self.slow[site] = self.slow.get(site, 0) | size_bit(tokens)

    def rope(self, site: Any, original: Callable, q, k, cos, sin) -> tuple:
        want = original(q, k, cos, sin)
        got = _record.rope_forward(site, q.detach(), k.detach(), cos, sin, self.empty)
        back = lambda pair: _record.turned(*(t.detach() for t in pair))
        ins = (*_record.turned(q.detach(), k.detach()), cos, sin)
        self.note(site, site.compare(ins, back(got), back(want)))
        self.time(
            site,
            q.shape[0] * q.shape[2],
            lambda: original(q, k, cos, sin),
            lambda: _record.rope_forward(site, q, k, cos, sin),
        )
        if self.training:
            with torch.enable_grad():
                leaf = tuple(t.detach().requires_grad_() for t in (q, k))
                out = original(*leaf, cos, sin)
                gout = tuple(torch.randn(t.shape, generator=_generator(), dtype=torch.float32).to(t.dtype) for t in out)
                want_g = torch.autograd.grad(out, leaf, gout)
            got_g = _record.rope_gradients(site, back(gout), cos, sin, *gout, self.empty)
            none = (None,) * len(site.whole)
            sides = [(back(gout), (*back(g), None, None), none) for g in (got_g, want_g)]
            self.note(site, site.compare_gradients(ins, *sides))
        return want

    def attention(self, site: Any, former: Callable, q, k, v, indices: tuple, params: tuple) -> Any:
        q, k, v = (t.detach() for t in (q, k, v))
        want = former(q, k, v)
        got = _record.attention_forward(site, q, k, v, *indices, self.empty)
        ins = (*_record.turned(q, k, v), *indices)
        self.note(site, site.compare(ins, (got,), (want[0].detach().contiguous(),)))
        self.time(
            site,
            q.shape[0] * q.shape[2],
            lambda: former(q, k, v),
            lambda: _record.attention_forward(site, q, k, v, *indices),
        )
        if self.training and k.shape[2] > 1:  # of one key the gradients of queries and keys are rounding alone
            with torch.enable_grad():
                leaf = tuple(t.detach().requires_grad_() for t in (q, k, v))
                out = former(*leaf)[0]
                gout = torch.randn(out.shape, generator=_generator(), dtype=torch.float32).to(out.dtype)
                wants = tuple(p.requires_grad for p in params)
                asked = [*leaf, *(p for p, w in zip(params, wants) if w)]
                grads = list(torch.autograd.grad(out, asked, gout))
            back = lambda three: _record.turned(*three)
            rest = iter(grads[3:])
            want_p = tuple(next(rest).contiguous() if w else None for w in wants)
            *got_g, got_p = _record.attention_gradients(site, q, k, v, *indices, gout, (True,) * 3, params, wants, self.empty)
            sides = [((gout,), (*back(g), None, None), p) for g, p in ((got_g, got_p), (grads[:3], want_p))]
            self.note(site, site.compare_gradients(ins, *sides))
        return want


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


class _Interface:
    """In place of a modeling file's ALL_ATTENTION_FUNCTIONS."""

    def __init__(self, live: "LiveAttention", real: Any) -> None:
        self.live, self.real = live, real

    def get_interface(self, name: str, default: Callable) -> Callable:
        return self.live.instead(name, self.real.get_interface(name, default))

    def __getitem__(self, name: str) -> Callable:  # of transformers before it had get_interface
        return self.live.instead(name, self.real[name])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class LiveAttention:
    """What is ours in one attention module. ropes: by the name of the function."""

    def __init__(self, module: torch.nn.Module, site: Any | None, ropes: dict[str, Any], training: bool) -> None:
        self.site, self.ropes, self.training = site, ropes, training
        self.ref = weakref.ref(module)
        self.trial: Trial | None = None
        self.slow: dict[Any, int] = {}
        self.judges: dict[Any, Any] = {}  # of sites that were checked, who judges larger calls
        self.checked: dict[tuple, int] = {}  # by site and whether it is recorded: tokens that were compared
        self.facts = site.facts() if site is not None else {}
        function = type(module).forward
        self.names = globals_of(function)
        self.originals = {name: self.names[name] for name in ropes}
        ours: dict[str, Any] = {name: self._rope(name) for name in ropes}
        if site is not None:
            real, eager = (self.names.get(n) for n in ("ALL_ATTENTION_FUNCTIONS", "eager_attention_forward"))
            if real is None or not (hasattr(real, "get_interface") or eager):
                raise DeclinedError(1, "", "its modeling file calls no AttentionInterface")
            ours["ALL_ATTENTION_FUNCTIONS"] = _Interface(self, real)
            if not hasattr(real, "get_interface"):
                ours["eager_attention_forward"] = self.instead("eager", eager)
        self.function = over(function, ours)

    @property
    def sites(self) -> tuple:
        return (*([self.site] if self.site is not None else []), *self.ropes.values())

    def make(self, ref: weakref.ref, former: Callable | None) -> Callable:
        own, function, sites = torchs_forward(ref, former), self.function, self.sites

        def forward(*args, **kwargs):
            if _is_compiling() or sites[0].off:
                return own(*args, **kwargs)
            why = sites[0].look()
            if why is not None:
                for site in sites:
                    site.count(why)
                return own(*args, **kwargs)
            return function(ref(), *args, **kwargs)

        return forward

    # ---- rotation

    def _rope(self, name: str) -> Callable:
        site, original = self.ropes[name], self.originals[name]

        def rope(q, k, cos, sin, *args, **kwargs):
            current = self.names[name]
            if site.off:
                return current(q, k, cos, sin, *args, **kwargs)
            why = None
            if current is not original:
                why = f"{name} is another function than that which was bound"
            elif args or kwargs:
                why = f"{name} was called with other arguments than q, k, cos, sin"
            elif (
                not all(type(t) is torch.Tensor and t.is_cpu for t in (q, k, cos, sin))
                or q.dtype != k.dtype
                or q.ndim != 4
                or cos.ndim != 3
            ):
                why = "the inputs have other types or shapes than the site"
            elif type_of(q) != self._type(site) or not (cos.dtype == sin.dtype):
                why = "the inputs have another type than the site"
            elif self.slow.get(site, 0) & size_bit(q.shape[0] * q.shape[2]):
                why = "torch is not slower with so many tokens"
            elif self.trial is not None:
                return self.trial.rope(site, original, q, k, cos, sin)
            elif torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, cos, sin)):
                if not self.training:
                    why = "the call is recorded for gradients, and kernels were applied for inference"
                elif cos.requires_grad or sin.requires_grad:
                    why = "the tables of the rotation want gradients"
                elif (why := self.why_wrong(site, q, True, lambda t: t.rope(site, original, q, k, cos, sin))) is None:
                    site.count(None)
                    return _record.Rotation.apply(site, q, k, cos, sin)
            else:
                why = self.why_wrong(site, q, False, lambda t: t.rope(site, original, q, k, cos, sin))
            if why is None:
                site.count(None)
                return _record.rope_forward(site, q, k, cos, sin)
            site.count(why)
            return current(q, k, cos, sin, *args, **kwargs)

        return rope

    def why_wrong(self, site: Any, q: torch.Tensor, recorded: bool, compare: Callable) -> str | None:
        """A call of more tokens than were compared is compared first."""
        tokens = q.shape[0] * q.shape[2]
        if site.refused is not None:
            return site.refused
        if site not in self.judges or tokens <= self.checked.get((site, recorded), TOKENS[-1]):
            return None
        trial = Trial(recorded, set(), Memory())
        try:
            with by_itself(), torch.no_grad():
                compare(trial)
            error = worst(trial.errors[site])
        except UsageError as declined:
            error = TAKEN_OFF if site.kernel(tokens) is None else declined.message
        why = self.judges[site].refuse(site, tokens, error)
        if why is None:
            self.checked[site, recorded] = tokens
        return why

    @staticmethod
    def _type(site: Any) -> str:
        return site.dtype

    # ---- attention

    def instead(self, name: str, former: Callable) -> Callable:
        """What the module's forward calls where it would call that implementation."""
        return lambda module, *args, **kwargs: self.attend(name, former, module, *args, **kwargs)

    def attend(self, name: str, former: Callable, module, query, key, value, attention_mask=None, *args, **kwargs):
        site = self.site
        call = lambda q, k, v: former(module, q, k, v, attention_mask, *args, **kwargs)
        if site.off or module is not self.ref():
            return call(query, key, value)
        why, indices = self._why_not(name, module, query, key, value, attention_mask, args, kwargs)
        params = site.params() if why is None else ()
        if why is None and self.trial is not None:
            return self.trial.attention(site, call, query, key, value, indices, params)
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value, *params))
        if why is None and recorded and not self.training:
            why = "the call is recorded for gradients, and kernels were applied for inference"
        if why is None:
            compare = lambda trial: trial.attention(site, call, query, key, value, indices, params)
            why = self.why_wrong(site, query, recorded, compare)
        site.count(why)
        if why is not None:
            return call(query, key, value)
        if recorded:
            return _record.Attention.apply(site, query, key, value, *indices, *params), None
        return _record.attention_forward(site, query, key, value, *indices), None

    def _why_not(self, name, module, query, key, value, mask, args, kwargs) -> tuple:
        facts = self.facts
        if name not in ("sdpa", "eager"):
            return f"the implementation {name} is taken as it is", ()
        if args:
            return "was called with other arguments than attention has", ()
        if not all(
            type(t) is torch.Tensor and t.is_cpu and t.ndim == 4 and type_of(t) == self.site.dtype
            for t in (query, key, value)
        ):
            return "the inputs have other types or shapes than the site", ()
        if kwargs.get("dropout"):
            return "dropout", ()
        if self.slow.get(self.site, 0) & size_bit(query.shape[0] * query.shape[2]):
            return "torch is not slower with so many tokens", ()
        scale = kwargs.get("scaling")
        if scale is None or abs(scale - facts["scale"]) > 1e-6 * abs(facts["scale"]):
            return "another factor of the scores than the site has", ()
        if (kwargs.get("softcap") or 0) != facts["softcap"]:
            return "another softcap than the site has", ()
        if (kwargs.get("sliding_window") or 0) not in (0, facts["window"]):
            return "another window than the site has", ()
        if (kwargs.get("s_aux") is not None) != facts["sinks"]:
            return "sinks", ()
        odd = [
            k
            for k, v in kwargs.items()
            if v is not None and k not in _WITHOUT_EFFECT and k not in _KNOWN and k not in ("dropout", "scaling")
        ]
        if odd:
            return f"the argument {odd[0]}", ()
        if name == "eager" and module._forward_hooks:
            return "hooks may want the weights of eager attention", ()
        indices = mask_indices(name, module, query, key, mask, kwargs.get("is_causal"), facts)
        return (None, indices) if indices is not None else ("a mask that no indices of queries and keys say", ())


def size_bit(tokens: int) -> int:
    return 1 if tokens <= 1 else 2


def type_of(tensor: torch.Tensor) -> str:
    return {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}.get(tensor.dtype, "")


_last_mask: list = [None, None, None]  # of layers of one run: (weak reference, key, indices)


def mask_indices(name: str, module, query, key, mask, is_causal: bool | None, facts: dict) -> tuple | None:
    """Places of queries and keys that mean what the implementation does with that mask; None: there are none."""
    batch, tokens, keys = query.shape[0], query.shape[2], key.shape[2]
    zeros = name == "sdpa" or facts["sinks"]  # what a query that sees nothing gives
    if mask is not None:
        said = (mask.data_ptr(), mask._version, tuple(mask.shape), batch, facts["window"], zeros)
        if _last_mask[0] is not None and _last_mask[0]() is mask and _last_mask[1] == said:
            return _last_mask[2]
        if (
            mask.ndim != 4
            or mask.shape[1] != 1
            or mask.shape[2] != tokens
            or mask.shape[3] != keys
            or mask.shape[0] not in (1, batch)
            or mask.requires_grad
        ):
            return None
        q, k = (torch.empty((batch, n), dtype=torch.int32) for n in (tokens, keys))
        good = mask.dtype in (torch.bool, torch.float32, torch.bfloat16, torch.float16) and _tenon.mask_indices(
            mask.expand(batch, 1, tokens, keys), facts["window"], zeros, q, k
        )
        _last_mask[:] = [weakref.ref(mask), said, (q, k) if good else None]
        return _last_mask[2]
    causal = (
        False
        if name == "eager"
        else (getattr(module, "is_causal", True) if is_causal is None else is_causal) and tokens > 1
    )
    q = torch.arange(tokens, dtype=torch.int32) if causal else torch.full((tokens,), keys - 1, dtype=torch.int32)
    if facts["window"] and keys > facts["window"]:
        return None  # torch would see all of them
    return q.expand(batch, tokens).contiguous(), torch.arange(keys, dtype=torch.int32).expand(batch, keys).contiguous()
