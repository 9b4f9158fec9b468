"""Forwards on instances: put there, and taken away without a trace. What a copy or a pickle takes of a module is plain."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

_is_compiling = torch.compiler.is_compiling


def _plain_state(ref: weakref.ref, forward: Callable, former: dict) -> Callable:
    def state():
        module = ref()
        cls = type(module)
        state = dict(cls.__getstate__(module) if hasattr(cls, "__getstate__") else module.__dict__)
        state.pop("__getstate__", None)
        if state.get("forward") is forward:
            del state["forward"]
            state.update(former)
        return state

    return state


class Attached:
    """A forward of ours on one module."""

    def __init__(
        self, module: torch.nn.Module, make: Callable[[weakref.ref, Callable], Callable], sites: tuple
    ) -> None:
        self.ref, self.sites = weakref.ref(module), sites
        own = module.__dict__
        self.former = {"forward": own["forward"]} if "forward" in own else {}
        self.forward = make(self.ref, self.former.get("forward"))
        for site in sites:
            site.own = self.former.get("forward")
        self.state = _plain_state(self.ref, self.forward, self.former)
        self.stated = "__getstate__" not in own

    def on(self) -> None:
        own = self.ref().__dict__
        own["forward"] = self.forward
        if self.stated:
            own["__getstate__"] = self.state
        for site in self.sites:
            site.off = False

    def take_off(self) -> None:
        """Where somebody has wrapped our forward since, theirs stays, and ours goes on as if it were not there."""
        for site in self.sites:
            site.off = True
        module = self.ref()
        own = module.__dict__ if module is not None else {}
        if own.get("forward") is self.forward:
            del own["forward"]
            own.update(self.former)
        if own.get("__getstate__") is self.state:
            del own["__getstate__"]


def torchs_forward(ref: weakref.ref, former: Callable | None) -> Callable:
    """What the module would do without us, for torch.compile to look into."""
    if former is not None:
        return former
    return lambda *args, **kwargs: type(ref()).forward(ref(), *args, **kwargs)


def rows_forward(site: Any, training: bool) -> Callable[[weakref.ref, Callable], Callable]:
    """The forward of a module from rows to rows."""

    def make(ref, former):
        from . import _compiled

        compiled = _compiled.rows(site, ref, torchs_forward(ref, former), training)

        def forward(*args, **kwargs):
            return compiled(*args, **kwargs) if _is_compiling() else site(*args, **kwargs)

        return forward

    return make


def block_forward(site: Any, router: str) -> Callable[[weakref.ref, Callable], Callable]:
    """The forward of a block of experts that gives the router's weights, too, as gpt_oss' does."""

    def make(ref, former):
        own = torchs_forward(ref, former)

        def forward(*args, **kwargs):
            if _is_compiling():
                return own(*args, **kwargs)
            out = site(*args, **kwargs)
            if isinstance(out, tuple):
                return out
            x = args[0]
            return out, getattr(ref(), router)(x.reshape(-1, x.shape[-1]))[1]

        return forward

    return make
