"""Tenon: Hugging Face checkpoints with fused kernels from plugins."""

import os as _os

from ._tenon import Tensor, version as __version__
from .bridge import Applied, apply, explain, report, revert
from .errors import (
    CancelledError,
    DeclinedError,
    Error,
    InputError,
    InternalError,
    KernelError,
    MemoryError,
    UsageError,
    VerifyError,
)
from .model import Generation, Model, Token

__all__ = [
    "Model",
    "Applied",
    "apply",
    "explain",
    "report",
    "revert",
    "Generation",
    "Token",
    "Tensor",
    "include_dir",
    "library_dir",
    "Error",
    "CancelledError",
    "DeclinedError",
    "InputError",
    "InternalError",
    "KernelError",
    "MemoryError",
    "UsageError",
    "VerifyError",
]


def include_dir() -> str:
    """The folder of the headers: for the authors of kernels, cc -I."""
    return _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "include")


def library_dir() -> str:
    """The folder of libtenon.so.0, the program and the plugins."""
    return _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), "lib")
