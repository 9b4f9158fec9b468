"""What kernels there would be in a live model: a plan of the library, each site tried at its module."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _tenon
from .errors import DeclinedError, KernelError, UsageError, VerifyError
from .model import _PLUGINS

_ROWS = ("RMS_NORM", "LAYER_NORM", "LINEAR", "MLP", "MOE_BLOCK")
_INSIDE = ("MLP", "MOE_BLOCK")


@dataclass
class Site:
    """A place of the model that performs an operation.

    kernel: who has it; None: torch, and reason says why, or covered_by is the path of the site around it whose kernel
    does its work. error: the largest difference of the check, 1 is the bound; None where nothing was checked. calls are
    those that the kernel performed, eager_calls those that were left to torch, the last of them for why_eager."""

    path: str
    op: str
    class_name: str
    kernel: str | None = None
    reason: str = ""
    covered_by: str | None = None
    error: float | None = None
    calls: int = 0
    eager_calls: int = 0
    why_eager: str | None = None
    _bound: Any = field(default=None, repr=False, compare=False)

    def _count(self) -> "Site":
        if self._bound is not None:
            self.calls, self.eager_calls, self.why_eager = (
                self._bound.calls,
                self._bound.eager_calls,
                self._bound.why_eager,
            )
            if self.kernel and self._bound.refused:
                self.kernel, self.reason = None, self._bound.refused
        return self


# ---- what is asked for ---------------------------------------------------------------------------------------------


def _named(spec: str) -> list[str]:
    return (
        [
            item
            for item in map(str.strip, spec.split(","))
            if item and item not in ("auto", "none", "true", "false") and item[0] not in "-{"
        ]
        if not spec.startswith("{")
        else []
    )


def _without(spec: str, ids: set[str]) -> str | None:
    """The same without these kernels; None: nothing of it is left, or it cannot be said."""
    if spec.startswith("{"):
        return None
    items = [item.strip() for item in spec.split(",")]
    kept = [item for item in items if item not in ids]
    if any(item in ("auto", "true") or item.startswith("-") for item in kept):
        kept += [f"-{id}" for id in sorted(ids)]
    return ",".join(kept) or None


def _reason(op: str, verdicts: list) -> str:
    """Why none of the kernels that are for this operation takes the site."""
    said = [f"{kernel}: {reason}" for kernel, reason, _, _ in verdicts if reason and not reason.startswith("op: ")]
    return "; ".join(said) or f"no kernel of the plan is for {op}"


def _pinned(pins: Mapping | None) -> dict[str, str] | None:
    """What lock() gave, or sha256 by name of the plugin."""
    if pins is None:
        return None
    listed = pins.get("plugins", pins) if isinstance(pins, Mapping) else None
    if not isinstance(listed, Mapping):
        raise UsageError(-2, "pins", "is no mapping of plugins; give what lock() gave")
    found = {name: entry.get("sha256") if isinstance(entry, Mapping) else entry for name, entry in listed.items()}
    for name, sha in found.items():
        if not isinstance(sha, str):
            raise UsageError(-2, f"pins.{name}", "has no sha256")
    return found


def _check_pins(pins: dict[str, str] | None) -> None:
    loaded = {name: sha for _, name, _, state, sha in _tenon.plugins() if state == 0}
    for name, want in (pins or {}).items():
        if name not in loaded:
            raise KernelError(-3, name, "is pinned, and no such plugin is loaded")
        if loaded[name] != want:
            raise KernelError(-3, name, f"the plugin's sha256 is {loaded[name]}, and the pin says {want}")


def plugins_of(kernels: set[str]) -> dict[str, tuple[str, str, str, str]]:
    """By kernel its own version, and of its plugin name, version and sha256."""
    plugins = {file: (name, version, sha) for file, name, version, state, sha in _tenon.plugins() if state == 0}
    return {id: (version, *plugins[file]) for id, version, file in _tenon.kernels() if id in kernels}


# ---- planning ------------------------------------------------------------------------------------------------------


class Planner:
    def __init__(self, live: Any, spec: str, training: bool, check: bool, plugins: str | None) -> None:
        import torch

        self.live, self.spec, self.training, self.check, self.plugins = live, spec, training, check, plugins
        self.threads = torch.get_num_threads()
        self.named = _named(spec)
        self.sites: list[Site] = []
        self.made: list[tuple[Any, Callable, tuple]] = []  # module, what makes its forward, sites
        self.ropes: list[Any] = []
        self.refused: list[tuple[Site, str]] = []
        self.notes: list[str] = []
        self.measure = check and os.environ.get("TENON_MEASURE", "yes") == "yes"
        # By shape, once for all sites of it:
        self.measured: dict[tuple, Any] = {}  # sizes of calls that are left to torch
        self.sized: dict[tuple, Any] = {}  # the error of more sizes of calls
        self.memory: Any = None  # of results that are compared

    def borrow(self) -> Any:
        live = self.live
        return _tenon.borrow(
            live.config(),
            tuple(t.name for t in live.lent),
            tuple(t.tensor for t in live.lent),
            "auto" if live.lent and not live.unknown else "f32",
            self.threads,
            self.training,
            _PLUGINS,
            self.plugins,
        )

    def plan(self, pins: Mapping | None) -> None:
        from . import _check

        self.pins = _pinned(pins)
        model = self.borrow()
        _check_pins(self.pins)
        if self.live.unknown:
            rows, _, self.notes, _ = model.plan("none")
        else:
            rows, _, self.notes, _ = model.apply(self.spec)
        _tenon.use_threads(self.threads)
        self.memory = _check.Memory()
        outside = self.rows(model, rows)
        spec = _without(self.spec, {kernel for _, kernel in outside}) if outside else None
        if spec:
            self.inside([path for path, _ in outside], spec)
        self.memory = None
        self.finish()

    def rows(self, model: Any, rows: list, within: list[str] | None = None) -> list[tuple[str, str]]:
        """Takes sites that have kernels. Gives those around others that were declined here: (path, kernel)."""
        ropes = [row for row in rows if row[0] == "ROPE"]
        declined: list[tuple[str, str]] = []
        for row in rows:
            op, path, class_name, _, kernel, covered, verdicts = row
            if op in ("ROPE", "ADD_RMS_NORM") or (
                within is not None and not any(path.startswith(p + ".") for p in within)
            ):
                continue
            found = self.live.find(path)
            if found is None:
                continue  # such as the head of a base model
            live_path, module = found
            inside = covered and not any(covered == p for p, _ in declined)
            if inside and op == "LINEAR":
                continue  # of the three or more of each MLP that a kernel has there is nothing to say
            site = self.site(Site(self.live.shown(live_path), op, type(module).__name__))
            if inside:
                site.covered_by = self.live.shown((self.live.find(covered) or (covered,))[0])
                continue
            if not kernel:
                site.reason = self.live.unknown or self.live.why_unfit(live_path) or _reason(op, verdicts)
            elif op == "ATTENTION":
                self.attention(model, row, ropes, live_path, module, site)
                continue
            else:
                self.take(model, row, live_path, module, site)
            if kernel and not site.kernel:
                declined.append((path, kernel))
            if op == "ATTENTION":
                self.attention(model, row, ropes, live_path, module, None)
        return declined

    def site(self, site: Site) -> Site:
        """In the place of one of the same path and operation, of a former plan."""
        for i, other in enumerate(self.sites):
            if other.path == site.path and other.op == site.op:
                self.sites[i] = site
                return site
        self.sites.append(site)
        return site

    def inside(self, paths: list[str], spec: str) -> None:
        """Sites inside of those that were declined here, by a plan without the kernels that had those."""
        model = self.borrow()
        try:
            rows, _, _, _ = model.apply(spec)
        except KernelError:
            return
        self.rows(model, rows, paths)
        self.inner = model

    def take(self, model: Any, row: tuple, path: str, module: Any, site: Site) -> None:
        from . import _attach, _check, _live, _record

        op, tn_path, _, number, kernel = row[:5]
        try:
            if op not in _ROWS:
                raise DeclinedError(
                    1, "", f"{kernel} takes it, but a live module is not called in this operation's form"
                )
            why = self.live.why_changed(path, module)
            if why:
                raise DeclinedError(1, "", why)
            if getattr(module, "jitter_noise", 0):
                raise DeclinedError(1, "", "jitter_noise: inputs are random while it is trained")
            bound = model.bind(tn_path, number, 0, module, *_live.watches(module, op in _INSIDE))
            router = "router" if type(module).__name__ == "GptOssMLP" else None
            if op == "MOE_BLOCK" and not router and _check.gives_more(bound, module):
                raise DeclinedError(1, "", "its forward gives more than the result of the experts")
            error = self.error_of(bound, row, kernel, module) if self.check else None
        except DeclinedError as declined:
            site.reason = declined.message
            return
        if not self.passes(site, kernel, error):
            return
        bits, said = self.slower(bound, row, kernel, module)
        if bits == 7:
            site.reason = said
            return
        bound.not_at = bits
        site.kernel, site.error, site._bound = kernel, error, bound
        bound.record = _record.Rows.apply if self.training else None
        if self.check:
            forward = _attach.torchs_forward(weakref.ref(module), module.__dict__.get("forward"))
            bound.larger = (_check.TOKENS[-1], _check.larger_rows(self.judge(site, kernel), forward))
        make = _attach.block_forward(bound, router) if router else _attach.rows_forward(bound, self.training)
        self.made.append((module, make, (bound,)))

    @staticmethod
    def shape(bound: Any, op: str, kernel: str, module: Any) -> tuple:
        """What is equal of sites that are measured, and checked with more sizes of calls, together."""
        facts = tuple(bound.facts().items())
        return op, kernel, type(module), bound.dtype, bound.in_width, getattr(module, "head_dim", None), facts, *(
            (tuple(p.shape), p.requires_grad) for p in module.parameters()
        )

    def error_of(self, bound: Any, row: tuple, kernel: str, module: Any) -> Any:
        """With the sizes of every site, and what was found with more of them at the first of the shape."""
        from . import _check

        error = _check.rows(bound, module, self.training, self.memory)
        shape = self.shape(bound, row[0], kernel, module)
        if shape not in self.sized and _check.why_wrong(error) is None and bound.out_width < _check.WIDE:
            self.sized[shape] = _check.rows(bound, module, self.training, self.memory, _check.ONCE)
        return _check.worst([error, self.sized.get(shape, 0.0)])

    def slower(self, bound: Any, row: tuple, kernel: str, module: Any) -> tuple[int, str]:
        """Sizes of calls that are left to torch since the kernel is not faster; measured once for each shape."""
        from . import _check

        if not self.measure or kernel in self.named:
            return 0, ""
        shape = self.shape(bound, row[0], kernel, module)
        if shape not in self.measured:
            self.measured[shape] = _check.not_faster(bound, module)
        return self.measured[shape]

    def judge(self, site: Site, kernel: str) -> Any:
        from . import _check

        return _check.Judge(site.path, kernel, kernel in self.named)

    def passes(self, site: Site, kernel: str, error: Any) -> bool:
        from . import _check

        said = _check.why_wrong(error)
        if said is None:
            return True
        site.reason = f"refused: {kernel} {said}"
        self.refused.append((site, kernel))
        return False

    def attention(self, model: Any, row: tuple, ropes: list, path: str, module: Any, site: Site | None) -> None:
        """Attention and the rotations that its module's forward calls, which are one forward over other globals."""
        from . import _attention, _check, _live

        scope = "modeling_" + type(module).__module__.rsplit("modeling_", 1)[-1]
        called = set(_live.rotary_names(module))
        bounds: dict[str, Any] = {}
        rope_sites: dict[str, tuple[Site, str]] = {}
        bind = lambda r: model.bind(r[1], r[3], 0, module, *_live.watches(module, False))
        for rope in ropes:
            name = rope[1].rsplit(".", 1)[-1]
            if rope[1].rpartition(".")[0] != scope or name not in called:
                continue
            own = self.site(Site(f"{self.live.shown(path)}.{name}", "ROPE", "function"))
            if rope[4]:
                rope_sites[name] = (own, rope[4])
            else:
                own.reason = self.live.unknown or _reason("ROPE", rope[6])
        try:
            for name in rope_sites:
                bounds[name] = bind(next(r for r in ropes if r[1] == f"{scope}.{name}"))
            bound = bind(row) if site is not None else None
            if bound is None and not bounds:
                return
            timed = (
                {b for name, b in bounds.items() if rope_sites[name][1] not in self.named} if self.measure else set()
            )
            if self.measure and bound is not None and row[4] not in self.named:
                timed.add(bound)
            there = _attention.LiveAttention(module, bound, bounds, self.training)
            shapes = {b: self.shape(b, "ROPE", rope_sites[name][1], module) for name, b in bounds.items()}
            if bound is not None:
                shapes[bound] = self.shape(bound, "ATTENTION", row[4], module)
            errors = self.errors_of(there, module, timed, shapes) if self.check else {}
        except DeclinedError as declined:
            for own in (*(s for s, _ in rope_sites.values()), *([site] if site is not None else [])):
                own.reason = declined.message
            return
        good = {name: b for name, b in bounds.items() if self.passes(*rope_sites[name], errors.get(b))}
        keep = bound if bound is not None and self.passes(site, row[4], errors.get(bound)) else None
        for name, b in good.items():
            own, kernel = rope_sites[name]
            own.kernel, own.error, own._bound = kernel, errors.get(b), b
        if keep is not None:
            site.kernel, site.error, site._bound = row[4], errors.get(keep), keep
        if keep is None and not good:
            return
        slow = there.slow
        there = _attention.LiveAttention(module, keep, good, self.training)
        there.slow = slow
        if self.check:
            judges = {b: self.judge(*rope_sites[name]) for name, b in good.items()}
            if keep is not None:
                judges[keep] = self.judge(site, row[4])
            there.judges = judges
        self.made.append((module, there.make, there.sites))

    def errors_of(self, there: Any, module: Any, timed: set, shapes: dict) -> dict:
        """As error_of, by site; those are timed whose shape was not before."""
        from . import _check

        check = lambda new, sizes: _check.attention(
            there, module, self.live.base, self.training, new, self.memory, sizes
        )
        new = {b for b in timed if shapes[b] not in self.measured}
        errors = check(new, _check.TOKENS)
        self.measured.update((shapes[b], there.slow.get(b, 0)) for b in new)
        right = {b for b in shapes if _check.why_wrong(errors[b]) is None}
        if any(shapes[b] not in self.sized for b in right):
            more = check(set(), _check.ONCE)
            self.sized.update((shapes[b], more[b]) for b in right if shapes[b] not in self.sized)
        there.slow = {b: self.measured[shapes[b]] for b in timed}
        return {b: _check.worst([errors[b], self.sized.get(shapes[b], 0.0)]) for b in shapes}

    def finish(self) -> None:
        """A kernel that was asked for by name must take a site, and be right at all that it matches. Where plugins are
        pinned others have no sites."""
        used = plugins_of({s.kernel for s in self.sites if s.kernel}) if self.pins is not None else {}
        for id, (_, name, _, _) in used.items():
            if name not in self.pins:
                raise KernelError(-3, name, f"is not pinned, and its kernel {id} would have sites")
        for site, kernel in self.refused:
            if kernel in self.named:
                raise VerifyError(-5, site.path, site.reason)
        for id in self.named:
            if not self.live.unknown and not any(s.kernel == id for s in self.sites):
                why = next((s.reason for s in self.sites if s.reason), "no site")
                raise KernelError(-3, id, f"takes no site of this model; the first: {why}")
