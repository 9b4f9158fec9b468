"""Kernels' gradients in torch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

ROWS = 4096  # tokens of one call of a kernel


def _dense(t: torch.Tensor) -> torch.Tensor:
    return t if t.stride(-1) == 1 and 0 not in t.stride() else t.contiguous()


def new(shape: tuple, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a result."""
    return torch.empty(shape, dtype=dtype)


def _param_gradients(site: Any, params: tuple, wants: tuple, empty: Callable) -> tuple:
    """Memory for the gradients that are wanted."""
    made = lambda p, whole: empty(p.shape, p.dtype) if whole else empty(p.shape, p.dtype).zero_()
    return tuple(made(p, whole) if want else None for p, want, whole in zip(params, wants, site.whole))


def row_gradients(
    site: Any, x: torch.Tensor, gy: torch.Tensor, params: tuple, wants_x: bool, wants: tuple, empty: Callable = new
) -> tuple:
    """Gradients of a site from rows to rows: (of x, of params). empty: makes the memory that they lie in."""
    rows, outer = _dense(x.reshape(-1, x.shape[-1])), _dense(gy.reshape(-1, gy.shape[-1]))
    gx = empty(rows.shape, rows.dtype) if wants_x else None
    total: tuple | None = None
    for at in range(0, max(len(rows), 1), ROWS):
        part = _param_gradients(site, params, wants, empty)
        if len(rows):
            site.backward(
                (rows[at : at + ROWS],), (outer[at : at + ROWS],), (gx[at : at + ROWS] if wants_x else None,), part
            )
        else:
            part = tuple(g.zero_() if g is not None else None for g in part)
        total = part if total is None else tuple(a + b if a is not None else None for a, b in zip(total, part))
    return gx.view(x.shape) if wants_x else None, total


class Rows(torch.autograd.Function):
    """Sites from rows to rows: norms, linears, MLPs, blocks of experts."""

    @staticmethod
    def forward(ctx, site, x, *params):
        ctx.site = site
        ctx.save_for_backward(x, *params)
        return site.run(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, gy):
        x, *params = ctx.saved_tensors
        ctx.site.point(tuple(params))
        gx, grads = row_gradients(ctx.site, x, gy, tuple(params), ctx.needs_input_grad[1], ctx.needs_input_grad[2:])
        return None, gx, *grads


def turned(*tensors: torch.Tensor) -> tuple:
    """[B,N,T,D] as [B,T,N,D], dense along the last dimension."""
    return tuple(_dense(t.transpose(1, 2)) if t.numel() else t.transpose(1, 2) for t in tensors)


def rope_forward(site: Any, q, k, cos, sin, empty: Callable = new) -> tuple:
    q, k = turned(q, k)
    out = empty(q.shape, q.dtype), empty(k.shape, k.dtype)
    site.forward((q, k, cos, sin), out)
    return tuple(t.transpose(1, 2) for t in out)


def rope_gradients(site: Any, like: tuple, cos, sin, gq, gk, empty: Callable = new) -> tuple:
    gq, gk = turned(gq, gk)
    grads = empty(gq.shape, gq.dtype), empty(gk.shape, gk.dtype)
    site.backward((like[0], like[1], cos, sin), (gq, gk), (*grads, None, None), (None,) * len(site.whole))
    return tuple(t.transpose(1, 2) for t in grads)


class Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, site, q, k, cos, sin):
        ctx.site = site
        ctx.save_for_backward(cos, sin)
        return rope_forward(site, q, k, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx, gq, gk):
        cos, sin = ctx.saved_tensors
        like = turned(gq, gk)  # backward does not read q and k, only their shapes
        gq, gk = rope_gradients(ctx.site, like, cos, sin, gq, gk)
        return None, gq, gk, None, None


def attention_forward(site: Any, q, k, v, q_index, kv_index, empty: Callable = new) -> torch.Tensor:
    q, k, v = turned(q, k, v)
    out = empty((*q.shape[:3], v.shape[3]), q.dtype)
    site.forward((q, k, v, q_index, kv_index), (out,))
    return out


def attention_gradients(
    site: Any, q, k, v, q_index, kv_index, gout, wants: tuple, params: tuple, wants_params: tuple, empty: Callable = new
) -> tuple:
    q, k, v = turned(q, k, v)
    grads = tuple(empty(t.shape, t.dtype) if want else None for t, want in zip((q, k, v), wants))
    gparams = _param_gradients(site, params, wants_params, empty)
    site.backward((q, k, v, q_index, kv_index), (_dense(gout),), (*grads, None, None), gparams)
    return *(g.transpose(1, 2) if g is not None else None for g in grads), gparams


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, site, q, k, v, q_index, kv_index, *params):
        ctx.site = site
        ctx.save_for_backward(q, k, v, q_index, kv_index, *params)
        return attention_forward(site, q, k, v, q_index, kv_index)

    @staticmethod
    @once_differentiable
    def backward(ctx, gout):
        q, k, v, q_index, kv_index, *params = ctx.saved_tensors
        ctx.site.point(tuple(params))
        wants = ctx.needs_input_grad
        gq, gk, gv, gparams = attention_gradients(
            ctx.site, q, k, v, q_index, kv_index, gout, wants[1:4], tuple(params), wants[6:]
        )
        return None, gq, gk, gv, None, None, *gparams
