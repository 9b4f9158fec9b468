"""Kernels in live transformers models: applied by meaning, checked against each module's own forward, explained, and
taken off without a trace. docs/python.md"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from . import _tenon
from ._plan import Planner, Site, plugins_of
from .errors import KernelError
from .model import _notices, _spec

_applied: "weakref.WeakKeyDictionary[Any, Applied]" = weakref.WeakKeyDictionary()
_layers: "weakref.WeakSet[Any]" = weakref.WeakSet()  # of hf.py
_changing = threading.RLock()


class Applied:
    """What is applied to a model, or would be. As a context manager it takes it off in the end."""

    def __init__(self, model: Any, spec: str) -> None:
        self._model, self.spec = weakref.ref(model), spec
        self._sites: list[Site] = []
        self._attached: list[Any] = []
        self.notes: list[str] = []

    @property
    def sites(self) -> list[Site]:
        return [site._count() for site in self._sites]

    @property
    def summary(self) -> str:
        """One line: which kernels have how many sites."""
        count: dict[tuple[str, str], int] = {}
        for site in self._sites:
            if site.kernel:
                count[site.kernel, site.op] = count.get((site.kernel, site.op), 0) + 1
        left = sum(1 for s in self._sites if not s.kernel and not s.covered_by)
        taken = ", ".join(f"{kernel} {n} {op}" for (kernel, op), n in count.items())
        return f"{taken or 'no kernels'}; {left} sites are left to torch"

    def __str__(self) -> str:
        rows = [("path", "operation", "class", "kernel", "")]
        for s in self.sites:
            said = s.reason if not s.kernel else "" if s.error is None else f"error {s.error:.2g} of the bound"
            if s.kernel and (s.calls or s.eager_calls):
                said += f"; {s.calls} calls" + (f", {s.eager_calls} by torch: {s.why_eager}" if s.eager_calls else "")
            rows.append(
                (
                    s.path,
                    s.op,
                    s.class_name,
                    s.kernel or (f"({s.covered_by})" if s.covered_by else "-"),
                    said.lstrip("; "),
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)) + "  " + row[4] for row in rows]
        return "\n".join((*(line.rstrip() for line in lines), "", self.summary, *self.notes))

    def __enter__(self) -> "Applied":
        return self

    def __exit__(self, *_: object) -> bool:
        model = self._model()
        if model is not None and _applied.get(model) is self:
            with _changing:
                self._take_off()
                del _applied[model]
                _last_threads()
        return False

    def lock(self) -> dict:
        """Which kernels have sites, of which plugins: for pins."""
        lock: dict = {"kernels": self.spec, "plugins": {}}
        for id, (own, name, version, sha) in sorted(plugins_of({s.kernel for s in self._sites if s.kernel}).items()):
            entry = lock["plugins"].setdefault(name, {"version": version, "sha256": sha, "kernels": {}})
            entry["kernels"][id] = own
        return lock

    def _take_off(self, sites: Iterable[Any] | None = None) -> None:
        wanted = None if sites is None else set(map(id, sites))
        left = []
        for attached in self._attached:
            if wanted is None or all(id(s) in wanted for s in attached.sites):
                attached.take_off()
            else:
                for site in attached.sites:
                    site.off = site.off or id(site) in wanted
                left.append(attached)
        self._attached = left


def _last_threads() -> None:
    """Where nothing is applied any more the library has threads of its own."""
    if not _applied and not _layers:
        _tenon.use_threads(0)


def _prepare(
    model: Any, kernels: Any, training: bool | None, check: bool, plugins: str | None, pins: Mapping | None
) -> tuple[Any, Planner]:
    import torch

    from . import _live

    live = _live.Live(model)
    if training is None:
        training = torch.is_grad_enabled() and any(p.requires_grad for p in live.base.parameters())
    folder = None if plugins is None else os.fspath(plugins)
    planner = Planner(live, _spec(kernels) or "auto", training, check, folder)
    planner.plan(pins)
    return live, planner


def apply(
    model: Any,
    kernels: Any = "auto",
    check: bool = True,
    training: bool | None = None,
    plugins: str | os.PathLike | None = None,
    pins: Mapping | None = None,
) -> Applied:
    """Puts kernels into the modules of a live transformers model.

    kernels: --kernels' SPEC. check: each site is compared with its module's own forward (trained: its autograd) first;
    what fails is left to torch, an error where it was asked for by name. training: calls that are recorded for
    gradients are performed, too; None: where a parameter wants gradients and they are enabled now. plugins: a folder in
    the place of the package's. pins: what lock() gave; plugins of other bytes are an error.

    What was applied before is planned anew."""
    from . import _attach, _live

    base = _live.transformers_model(model)
    with _changing:
        former = _applied.pop(base, None)
        if former is not None:
            former._take_off_all = former._attached
            former._take_off()
        try:
            live, planner = _prepare(model, kernels, training, check, plugins, pins)
            attached = [_attach.Attached(*made) for made in planner.made]
        except BaseException:
            if former is not None:
                former._attached = former._take_off_all
                for one in former._attached:
                    one.on()
                _applied[base] = former
            _last_threads()
            raise
        applied = Applied(base, planner.spec)
        applied._sites, applied._attached, applied.notes = planner.sites, attached, planner.notes
        for one in attached:
            one.on()
        _applied[base] = applied
    return applied


def explain(
    model: Any,
    kernels: Any = "auto",
    check: bool = False,
    training: bool | None = None,
    plugins: str | os.PathLike | None = None,
) -> Applied:
    """What apply would do, and why; nothing changes."""
    live, planner = _prepare(model, kernels, training, check, plugins, None)
    explained = Applied(live.base, planner.spec)
    explained._sites, explained.notes = planner.sites, planner.notes
    _last_threads()
    return explained


def report(model: Any) -> Applied:
    """What is applied now, with what calls did."""
    from . import _live

    base = _live.transformers_model(model)
    _notices.tell()
    return _applied.get(base) or Applied(base, "none")


def revert(model: Any, id: str | None = None) -> None:
    """Takes one kernel, or all, off the model."""
    from . import _live

    base = _live.transformers_model(model)
    with _changing:
        applied = _applied.get(base)
        if applied is None:
            return
        if id is None:
            applied._take_off()
            del _applied[base]
            _last_threads()
            return
        mine = [s for s in applied._sites if s.kernel == id]
        if not mine:
            raise KernelError(-3, id, "has no site of this model")
        applied._take_off([s._bound for s in mine])
        for s in mine:
            s._count()
            s.kernel, s.reason, s._bound = None, f"{id} was taken off", None
