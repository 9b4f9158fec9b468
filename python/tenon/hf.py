"""Kernels as layers of Hugging Face's package `kernels`: the bindings of tenon.apply, put in place by its kernelize."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from . import bridge


class _Layer:
    """What use_kernel_mapping takes for a repository: load gives a class whose forward is put on modules."""

    def __init__(self, name: str, module_class: type, has_backward: bool) -> None:
        self.name, self.module_class, self.has_backward = name, module_class, has_backward
        self.forwards: "weakref.WeakKeyDictionary[Any, Callable]" = weakref.WeakKeyDictionary()

    def load(self) -> type:
        import torch

        layer = self  # who has the forward keeps the bindings

        def forward(self, *args, **kwargs):
            ours = layer.forwards.get(self)
            return ours(*args, **kwargs) if ours else type(self).forward(self, *args, **kwargs)

        forward.__signature__ = inspect.signature(self.module_class.forward)  # type: ignore[attr-defined]
        return type(self.name, (torch.nn.Module,), {"forward": forward, "has_backward": self.has_backward})

    def __deepcopy__(self, memo: dict) -> "_Layer":
        return self  # of mappings inside each other; a module has one binding

    def __str__(self) -> str:
        return f"tenon's {self.name}"


def layers(
    model: Any,
    kernels: Any = "auto",
    check: bool = True,
    training: bool | None = None,
    plugins: str | os.PathLike | None = None,
    pins: Mapping | None = None,
) -> dict[str, dict[str, Any]]:
    """A mapping for kernels.use_kernel_mapping: what tenon.apply(model, ...) would put on modules of this model, by the
    names of their layers (kernel_layer_name), or of their classes where these have none. Modules of other models keep
    their own forward. Nothing changes before kernelize; tenon.apply and revert know nothing of it."""
    with bridge._changing:
        _, planner = bridge._prepare(model, kernels, training, check, plugins, pins)
    mapping: dict[str, dict[str, Any]] = {}
    for module, make, _ in planner.made:
        cls = type(module)
        name = getattr(cls, "kernel_layer_name", None) or cls.__name__
        layer = mapping.setdefault(str(name), {"cpu": _Layer(str(name), cls, planner.training)})["cpu"]
        layer.forwards[module] = make(weakref.ref(module), None)
        bridge._layers.add(layer)
    bridge._last_threads()
    return mapping
