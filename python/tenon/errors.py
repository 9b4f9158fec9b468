"""What went wrong: a class for each status of the library (include/tenon/error.h)."""

import builtins
from typing import Any


class Error(Exception):
    """code: the library's status; where: file, tensor, key or option concerned, may be empty; message: one line."""

    code = 0

    def __init__(self, code: int, where: str, message: str) -> None:
        super().__init__(code, where, message)
        self.code, self.where, self.message = code, where, message

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class DeclinedError(Error):
    """A kernel, or the way that was asked for, does not take this."""


class InternalError(Error):
    """A defect of the library or of the system below it."""


class UsageError(Error):
    """Something was asked for that cannot be."""


class KernelError(Error):
    """Configuration, plugin or kernel selection."""


class InputError(Error):
    """Checkpoint, tokenizer or input data."""


class VerifyError(Error):
    """Numbers outside of their tolerance."""

    rows: list[dict[str, Any]] = []  # of Model.verify: what it found


class MemoryError(Error, builtins.MemoryError):
    """Out of memory, or no more processes can be started."""


class CancelledError(Error):
    """A callback asked to stop."""


_classes = {
    1: DeclinedError,
    -1: InternalError,
    -2: UsageError,
    -3: KernelError,
    -4: InputError,
    -5: VerifyError,
    -6: MemoryError,
    -7: CancelledError,
}


def of(code: int, where: str, message: str) -> Error:
    """The error of that status."""
    return _classes.get(code, InternalError)(code, where, message)
