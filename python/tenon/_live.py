"""A live transformers model as the library sees it: which module is which path, what of it can be lent, and what a
module's forward depends on."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .errors import InputError, UsageError

_TYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_SHORT = {torch.float64: "f64", torch.int8: "i8", torch.uint8: "u8"}
_PLAIN = (int, float, str, bool, type(None), torch.dtype, types.FunctionType, types.BuiltinFunctionType)


def type_name(dtype: torch.dtype) -> str:
    return _TYPES.get(dtype) or _SHORT.get(dtype) or str(dtype).removeprefix("torch.")


def transformers_model(model: Any) -> torch.nn.Module:
    """The transformers model inside: of peft's, torch.compile's, or itself."""
    inner = model
    while isinstance(inner, torch.nn.Module):
        if isinstance(inner.__dict__.get("_modules", {}).get("_orig_mod"), torch.nn.Module):
            inner = inner._orig_mod
        elif isinstance(inner, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
            inner = inner.module
        elif "peft" in sys.modules and isinstance(inner, sys.modules["peft"].PeftModel):
            inner = inner.get_base_model()
        else:
            break
    config = getattr(inner, "config", None)
    if (
        not isinstance(inner, torch.nn.Module)
        or not hasattr(config, "to_dict")
        or not getattr(config, "model_type", "")
    ):
        raise UsageError(-2, type(model).__name__, "is no model of transformers: it has no config with a model_type")
    return inner


def plain(path: str) -> str:
    """A path without what peft puts in between."""
    return ".".join(part for part in path.split(".") if part != "base_layer")


class Lent(NamedTuple):
    name: str  # of the state_dict, without base_layer
    tensor: torch.Tensor


class Live:
    """model, as it was given, whose paths sites have; base, the transformers model inside."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.base = model, transformers_model(model)
        self.prefix = next((name + "." if name else "" for name, m in model.named_modules() if m is self.base), "")
        self.paths: dict[str, str] = {}  # by plain path within base; the innermost of several
        self.modules: dict[str, torch.nn.Module] = {}  # by path within base
        for path, module in self.base.named_modules():
            self.modules[path] = module
            self.paths[plain(path)] = path
        self.lent: list[Lent] = []
        self.unfit: dict[str, str] = {}  # by path within base of the module: why a tensor of it is not lent
        self._lend()

        for path, module in self.modules.items():
            if type(module).__name__ == "Conv1D":
                raise InputError(
                    -4,
                    self.base.config.model_type,
                    f"its matrices lie turned ({path} is a Conv1D), and kernels take them as they lie; such a type is for tenon.Model",
                )

    def _lend(self) -> None:
        counts: dict[torch.dtype, int] = {}
        for path, module in self.modules.items():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is None:
                    continue
                full = f"{path}.{name}" if path else name
                if tensor.device.type == "meta":
                    raise UsageError(-2, full, "is on the device meta and has no values; load the model first")
                if not tensor.is_floating_point():
                    continue
                why = _unfit(tensor)
                if why:
                    self.unfit.setdefault(path, f"{name}: {why}")
                    continue
                counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numel() * tensor.element_size()
                if self.paths[plain(path)] == path:
                    self.lent.append(Lent(plain(full), tensor.detach()))
        self.dtype = max(counts, key=lambda d: counts[d]) if counts else None
        floats = [p.dtype for p in self.base.parameters() if p.is_floating_point()]
        usual = max(set(floats), key=floats.count) if floats else torch.float32
        self.unknown = (
            None
            if usual in _TYPES and counts
            else f"dtype: the model has {type_name(usual)}, kernels take f32, bf16 and f16"
        )
        if not self.unknown and not self.lent:
            self.unknown = next(iter(self.unfit.values()), "nothing of it can be lent")
        if self.unknown:  # its sites are listed all the same: over memory that nothing reads
            tensors = {**dict(self.base.named_parameters()), **dict(self.base.named_buffers())}
            self.lent = [
                Lent(plain(name), torch.empty(t.shape)) for name, t in tensors.items() if t.is_floating_point()
            ]

    def config(self) -> str:
        config = {
            k: v
            for k, v in self.base.config.to_dict().items()
            if k not in ("architectures", "dtype", "torch_dtype", "quantization_config")
        }
        return json.dumps(config, default=str)

    def find(self, path: str) -> tuple[str, torch.nn.Module] | None:
        """The live module of a site's path: (path within base, module)."""
        inner = path.removeprefix("model.")
        for candidate in (path, inner, "model.language_model." + inner, "language_model." + inner):
            live = self.paths.get(candidate)
            if live is not None and live in self.modules:
                return live, self.modules[live]
        return None

    def shown(self, path: str) -> str:
        return self.prefix + path

    def why_unfit(self, path: str) -> str | None:
        """Why a tensor of the module or of what is inside is not lent."""
        for inner, why in self.unfit.items():
            if inner == path or inner.startswith(path + "."):
                return f"{inner[len(path) + 1:]}.{why}" if inner != path else why
        return None

    def why_changed(self, path: str, module: torch.nn.Module) -> str | None:
        """Why what is inside is not what its class makes: adapters."""
        for inner, m in module.named_modules():
            if inner and ("base_layer" in inner.split(".") or type(m).__module__.startswith("peft.")):
                name = inner.split(".base_layer")[0]
                return f"LoRA: {name} is {type(module.get_submodule(name)).__name__} of peft"
        return None


def _unfit(tensor: torch.Tensor) -> str | None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(tensor).__name__}"
    if tensor.device.type != "cpu":
        return f"is on {tensor.device}, kernels are for the cpu"
    if tensor.layout != torch.strided:
        return f"has the layout {tensor.layout}"
    if tensor.dtype not in _TYPES:
        return f"has {type_name(tensor.dtype)}, kernels take f32, bf16 and f16"
    if not tensor.is_contiguous():
        return f"has strides {tuple(tensor.stride())}, kernels take dense rows"
    return None


def _attributes(module: torch.nn.Module) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """What of a module's own values its forward may read."""
    items = [
        (k, v)
        for k, v in vars(module).items()
        if not k.startswith("_") and k not in ("training", "forward") and isinstance(v, _PLAIN)
    ]
    return tuple(k for k, _ in items), tuple(v for _, v in items)


def watches(module: torch.nn.Module, inside: bool) -> tuple[tuple, tuple]:
    """(watches, params) as Borrowed.bind takes them: of the module, or of all inside as well."""
    listed, number, params = [], {}, []
    for path, m in module.named_modules() if inside else [("", module)]:
        number[path] = len(listed)
        parent, _, name = path.rpartition(".")
        names, values = _attributes(m)
        listed.append(
            (number[parent] if path else -1, name, type(m), type(m).forward, names, values, len(m._parameters))
        )
        for buffer, tensors in ((False, m._parameters), (True, m._buffers)):
            for key, tensor in tensors.items():
                if tensor is not None and tensor.is_floating_point() and _unfit(tensor) is None:
                    params.append((number[path], key, buffer, 0, tensor))
    return tuple(listed), tuple(params)


def rotary_names(module: torch.nn.Module) -> Iterator[str]:
    """Functions that the module's forward calls by their global names."""
    function = type(module).forward
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    yield from function.__code__.co_names
