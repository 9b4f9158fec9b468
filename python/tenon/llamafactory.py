"""Registers `tenon` as a kernel of LLaMA-Factory v1 when it is imported:

    kernel_config:
      name: tenon
      include_kernels: auto    # or ids, as --kernels takes them

Of its interface both forms are served: kernels as functions (0.9.5), and as objects with apply (later)."""

from __future__ import annotations

import difflib
import logging
import warnings
from collections.abc import Mapping
from typing import Any

from .bridge import apply
from .errors import UsageError

_KEYS = ("name", "include_kernels", "chunk_size", "require_logits")
_logger = logging.getLogger(__name__)


class Kernel:
    """What KernelPlugin("tenon") is: applied to a model, which it gives back."""

    def __call__(self, model: Any, include_kernels: Any = None, require_logits: bool = False, **more: Any) -> Any:
        """include_kernels: "auto" or True; ids, also as a list; None or False: nothing. require_logits is for losses
        that are fused with the head: there are none here, and logits are always there."""
        _know({"include_kernels": include_kernels, **more})
        if not include_kernels:
            return model
        spec = "auto" if include_kernels is True else include_kernels
        if not isinstance(spec, (str, list, tuple)):
            raise UsageError(-2, "include_kernels", f"is a {type(spec).__name__}; give auto, true or ids")
        applied = apply(model, spec if isinstance(spec, str) else ",".join(map(str, spec)))
        _logger.info("%s", applied.summary)
        if not any(site.kernel for site in applied.sites):
            why = next((site.reason for site in applied.sites if site.reason), "the model has no site")
            warnings.warn(f"no kernel was applied; the first reason: {why}", RuntimeWarning, stacklevel=2)
        return model

    def apply(self, model: Any = None, config: Mapping | None = None, require_logits: bool = False) -> Any:
        """The same by a kernel_config, where include_kernels is "auto" if it is left out."""
        if model is None:
            raise ValueError("HFModel instance is required for tenon.")
        config = dict(config or {})
        _know(config)
        return self(model, config.get("include_kernels", "auto"), require_logits)


def _know(config: Mapping) -> None:
    for key in config:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            raise UsageError(-2, f"kernel_config.{key}", "is no key" + (f"; did you mean {near[0]}?" if near else ""))
    if "chunk_size" in config:
        warnings.warn("kernel_config.chunk_size has no influence on kernels of tenon", RuntimeWarning, stacklevel=3)


def _register() -> None:
    from llamafactory.v1.plugins.model_plugins.kernels import interface

    interface.KernelPlugin("tenon").register()(kernel)


kernel = Kernel()
_register()
