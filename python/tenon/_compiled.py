"""Kernels inside of what torch.compile makes: an operation that it does not look into, for modules from rows to rows.
Each call of it looks at the module as every call does, and is torch's own forward where that is not as it was bound."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _record

_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_numbers = itertools.count()
_table: dict[int, tuple[Any, Callable, tuple]] = {}  # by number: site, the module's own forward, parameters


def _apart(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A result as the compiler was promised: dense, in memory of its own."""
    y = y.contiguous()
    return y.clone() if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() else y


@torch.library.custom_op(
    "tenon::rows", mutates_args=(), schema="(Tensor x, Tensor[] params, int number, int width) -> Tensor"
)
def _rows(x: torch.Tensor, params: Sequence[torch.Tensor], number: int, width: int) -> torch.Tensor:
    with torch.no_grad():
        return _apart(_table[number][0](x), x)


@_rows.register_fake
def _(x, params, number, width):
    return x.new_empty((*x.shape[:-1], width))


@torch.library.custom_op(
    "tenon::rows_backward",
    mutates_args=(),
    schema="(Tensor x, Tensor gy, Tensor[] params, bool[] wants, int number) -> Tensor[]",
)
def _rows_backward(
    x: torch.Tensor, gy: torch.Tensor, params: Sequence[torch.Tensor], wants: Sequence[bool], number: int
) -> list[torch.Tensor]:
    """Gradients of x, where it is the first that is wanted, and of those parameters that are."""
    site, own, find = _table[number]
    with torch.no_grad():
        if site.look() is None and _is_ready(site, x.numel() // max(x.shape[-1], 1)):
            site.point(tuple(p.detach() for p in params))
            gx, grads = _record.row_gradients(site, x, gy, tuple(params), wants[0], tuple(wants[1:]))
            found = [gx, *grads]
        else:
            found = _outside(lambda: _torchs_gradients(own, find(), x, gy, wants))
        return [g.contiguous() for g, want in zip(found, wants) if want]


def _outside(call: Callable) -> Any:
    """In a thread of its own: inside of an operation nothing is recorded for gradients."""
    found: list[Any] = []
    wrong: list[BaseException] = []

    def run():
        try:
            found.append(call())
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if wrong:
        raise wrong[0]
    return found[0]


def _is_ready(site: Any, tokens: int) -> bool:
    ask = lambda: site.is_ready(tokens)
    return ask() if min(tokens, _record.ROWS) <= site.checked else _outside(ask)


def _torchs_gradients(own: Callable, params: list, x: torch.Tensor, gy: torch.Tensor, wants: Sequence[bool]) -> list:
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        asked = [t for t, want in zip((leaf, *params), wants) if want]
        got = iter(torch.autograd.grad(own(leaf), asked, gy, allow_unused=True))
    each = (next(got) if want else None for want in wants)
    return [torch.zeros_like(t) if want and g is None else g for t, want, g in zip((leaf, *params), wants, each)]


@_rows_backward.register_fake
def _(x, gy, params, wants, number):
    return [t.new_empty(t.shape) for t, want in zip((x, *params), wants) if want]


def _setup(ctx, inputs, output):
    x, params, ctx.number, _ = inputs
    ctx.save_for_backward(x, *params)


def _backward(ctx, gy):
    x, *params = ctx.saved_tensors
    wants = [ctx.needs_input_grad[0], *(p.requires_grad for p in params)]
    found = iter(torch.ops.tenon.rows_backward(x, gy, params, wants, ctx.number) if any(wants) else ())
    gx, *grads = (next(found) if want else None for want in wants)
    return gx, grads, None, None


_rows.register_autograd(_backward, setup_context=_setup)


def rows(site: Any, ref: weakref.ref, own: Callable, training: bool) -> Callable:
    """The module's forward as the compiler sees it."""
    number, dtype, in_width, width = next(_numbers), _TYPES[site.dtype], site.in_width, site.out_width
    paths = site.paths

    def find():
        module, found = ref(), []
        for path in paths:
            at = module
            for name in path:
                at = getattr(at, name)
            found.append(at)
        return found

    _table[number] = site, own, find
    weakref.finalize(ref(), _table.pop, number, None)

    def forward(*args, **kwargs):
        if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
            return own(*args, **kwargs)
        x, params = args[0], find()
        recorded = torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in params))
        if (
            x.dtype != dtype
            or x.device.type != "cpu"
            or x.ndim < 1
            or x.shape[-1] != in_width
            or torch.is_autocast_enabled("cpu")
            or (recorded and not training)
        ):
            return own(x)
        return torch.ops.tenon.rows(x, params, number, width)

    return forward
