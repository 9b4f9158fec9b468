"""Checkpoints run by the library."""

from __future__ import annotations

import json
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

from . import _tenon
from .errors import InputError, UsageError, VerifyError

Ids = Union[Sequence[int], Sequence[Sequence[int]], Any]
_PLUGINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "plugins")
_FORMATS = {"text": 0, "json": 1, "dot": 2}


class Token(NamedTuple):
    """A token of a stream. text: what it completes, whole characters; None where the model has no tokenizer."""

    id: int
    text: str | None


class Generation(NamedTuple):
    """stop: "eos", "length", "stop" (one of the stop texts came) or "context" (no position is left)."""

    ids: list[int]
    text: str | None
    stop: str

    def __str__(self) -> str:
        return self.text if self.text is not None else " ".join(map(str, self.ids))


def _lists(ids: Any, what: str = "ids") -> list[Any]:
    """Lists, tuples, what has a buffer and what has __dlpack__, as lists."""
    if isinstance(ids, (str, bytes, Mapping)):
        raise TypeError(f"{what}: {type(ids).__name__} is no list of integers")
    if isinstance(ids, (list, tuple, range)):
        return [_lists(i, what) if isinstance(i, (list, tuple, range)) else i for i in ids]
    try:
        view = memoryview(ids)
    except TypeError:
        if hasattr(ids, "__dlpack__"):
            return _tenon.integers(ids)
        raise TypeError(f"{what}: {type(ids).__name__} is no list of integers, nor a tensor") from None
    if view.format not in ("i", "l", "q"):
        raise TypeError(f"{what} are int32 or int64, and not of format {view.format!r}")
    if view.ndim not in (1, 2):
        raise ValueError(f"{what} have one dimension or two, [tokens] or [rows, tokens], and not {view.ndim}")
    return view.tolist()


def _spec(kernels: Any) -> str | None:
    """--kernels' SPEC; a mapping is LLaMA-Factory's kernel_config."""
    if kernels is None or isinstance(kernels, str):
        return kernels
    if isinstance(kernels, bool):
        return "auto" if kernels else "none"
    return json.dumps(dict(kernels)) if isinstance(kernels, Mapping) else ",".join(kernels)


class _Notices:
    """What the library put right by itself becomes a warning, once."""

    def __init__(self) -> None:
        self.told, self.lock = 0, threading.Lock()

    def tell(self, level: int = 3) -> None:
        with self.lock:
            new = _tenon.notices(self.told)
            self.told += len(new)
        for line in new:
            warnings.warn(line, RuntimeWarning, stacklevel=level)


_notices = _Notices()


class Model:
    """A checkpoint with kernels applied.

    path: a folder, a .gguf or, where no folder has that name, ORG/NAME[@REVISION] in the local cache of the Hub.
    dtype: "auto", "f32", "bf16", "f16"; device: "cpu", or a plugin's; threads: of the whole process, 0: one per core.
    kernels: what --kernels takes ("auto", "none", ids); None: what the configuration says.
    progress: is called with (what, done, total) while it is opened, explained or verified.
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[Any],
        dtype: Any = None,
        device: Any = None,
        threads: int = 0,
        revision: str | None = None,
        kernels: Any = None,
        progress: Callable[[str, int, int], Any] | None = None,
    ) -> None:
        if progress is not None and not callable(progress):
            raise TypeError("progress: give what can be called with (what, done, total)")
        if threads < 0:
            raise UsageError(-2, "threads", f"{threads}; give 1 or more, or 0 for one per core")
        name = os.fsdecode(path)
        if revision is not None and os.path.exists(name):
            raise UsageError(-2, name, "is a folder, and has no revisions; leave revision out")
        if revision is not None and "@" in name:
            raise UsageError(-2, name, "names a revision already; leave one of them out")
        self._progress = progress
        self._text: bool | None = None  # is there a tokenizer? None: nobody asked
        if "\0" in name:
            raise ValueError("path: it holds a NUL")
        self._m = _tenon.Model(
            os.fsencode(name),
            revision,
            None if dtype is None else str(dtype),
            None if device is None else str(device),
            threads,
            _spec(kernels),
            os.fsencode(_PLUGINS),
            progress,
        )
        facts = self._m.facts
        self.folder: str = facts["folder"]  # where the checkpoint lies
        self.model_type: str = facts["model_type"]  # as in config.json
        self.class_name: str = facts["class_name"]  # of transformers
        self.dtype: str = facts["dtype"]  # that it computes with: "f32", "bf16", "f16"
        self.device: str = facts["device"]
        self.vocab: int = facts["vocab"]
        self.hidden: int = facts["hidden"]  # width of the hidden states
        self.layers: int = facts["layers"]
        self.max_positions: int = facts["max_positions"]
        self.unbounded: bool = facts["unbounded"]  # max_positions is no bound: frequencies follow the length
        self.kernels: str = facts["kernels"]  # what was applied, a line
        for remark in facts["remarks"]:
            warnings.warn(remark, RuntimeWarning, stacklevel=2)
        _notices.tell()

    def close(self) -> None:
        """Gives back all that it holds; results stay."""
        self._m.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tenon.Model {self.class_name} {self.dtype} on {self.device}, {self.folder}>"

    # ---- text and tokens

    def _tokenizer(self, needed: bool) -> bool:
        folder = self.folder
        if self._text is None or (needed and not self._text):
            names = ("tokenizer.json", "tokenizer.json.gz", "tokenizer.model")
            there = os.path.isfile(folder) or any(os.path.lexists(os.path.join(folder, n)) for n in names)
            self._text = False
            if there or needed:
                try:
                    self._m.open_tokenizer()
                    self._text = True
                except InputError as e:
                    if needed:
                        raise
                    warnings.warn(f"{e} (there will be ids and no text)", RuntimeWarning, stacklevel=4)
        return self._text

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids. special: with those that the tokenizer puts around a text."""
        self._tokenizer(True)
        return self._m.encode(text, special)

    def decode(self, ids: Ids, skip_special: bool = True) -> str:
        self._tokenizer(True)
        return self._m.decode(_lists(ids), skip_special)

    def _ids(self, given: Any) -> list[Any]:
        return self.encode(given) if isinstance(given, str) else _lists(given)

    # ---- generating

    def _stream(
        self,
        ids: list[Any],
        max_tokens: int = 64,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int | None = None,
        ignore_eos: bool = False,
        stop: str | Sequence[str] | None = None,
        context: int = 0,
    ) -> _tenon.Stream:
        text = self._tokenizer(False)
        own = self._m.sampling()
        stops = [stop] if isinstance(stop, str) else list(stop or [])
        if stops and not text:
            raise UsageError(-2, "stop", "the model has no tokenizer, and so no texts to look in")
        if stop is None and text and not ignore_eos:
            stops = own["stop"]
        given: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
        }
        return self._m.stream(
            ids=ids,
            max_tokens=max_tokens,
            seed=int.from_bytes(os.urandom(4), "little") if seed is None else seed,
            ignore_eos=ignore_eos,
            stop=stops,
            context=context,
            **{name: own[name] if value is None else value for name, value in given.items()},
        )

    @staticmethod
    def _tokens(stream: _tenon.Stream) -> Iterator[Token]:
        for id, text in stream:
            _notices.tell()
            yield Token(id, text)

    @staticmethod
    def _all(stream: _tenon.Stream) -> Generation:
        result = Generation(*stream.rest())
        _notices.tell(4)
        return result

    def generate(self, prompt: str | Ids, max_tokens: int = 64, **drawing: Any) -> Generation:
        """Continues a text, or ids.

        Drawing, where None is what generation_config.json says: temperature (0: the likeliest), top_p, top_k, min_p,
        repetition_penalty; seed (None: a random one), ignore_eos, stop (texts that end it, which are left out), context
        (positions; 0: as many as the text needs and the model has).
        """
        return self._all(self._stream(self._ids(prompt), max_tokens, **drawing))

    def stream(self, prompt: str | Ids, max_tokens: int = 64, **drawing: Any) -> Iterator[Token]:
        """The same token by token. It may be left at any time, and the model used in between."""
        return self._tokens(self._stream(self._ids(prompt), max_tokens, **drawing))

    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        max_tokens: int = 64,
        *,
        stream: bool = False,
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        **drawing: Any,
    ) -> Any:
        """Answers a conversation by the checkpoint's chat template; where its last message is the assistant's, goes on
        with that. messages: [{"role": "user", "content": "..."}, ...], or a text of the user's. stream: tokens, as
        stream gives them."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        messages = [dict(m) for m in messages]
        if not messages:
            raise InputError(-4, "messages", "there are none; give [{'role': 'user', 'content': ...}]")
        for i, m in enumerate(messages, 1):
            if not isinstance(m.get("role"), str):
                raise InputError(-4, "messages", f"message {i} has no role; give {{'role': ..., 'content': ...}}")
            for part in m["content"] if isinstance(m.get("content"), list) else ():
                if not isinstance(part, Mapping) or part.get("type") != "text":
                    raise InputError(
                        -4, "messages", f"message {i} has a part that is no text; the program takes pictures and sounds"
                    )
        answered = messages[-1]["role"] == "assistant"
        text = self._m.render(
            json.dumps(messages),
            None if tools is None else json.dumps(list(tools)),
            None if variables is None else json.dumps(dict(variables)),
            answered,
        )
        made = self._stream(self.encode(text, special=False), max_tokens, **drawing)
        return self._tokens(made) if stream else self._all(made)

    # ---- figures

    def _run(self, ids: str | Ids, mask: Ids | None, hidden: bool) -> _tenon.Tensor:
        result = self._m.run(self._ids(ids), None if mask is None else _lists(mask, "mask"), hidden)
        _notices.tell(4)
        return result

    def logits(self, ids: str | Ids, mask: Ids | None = None) -> _tenon.Tensor:
        """[rows, tokens, vocab]; a list of integers is one row. mask: 0 where a row is padded, on the left."""
        return self._run(ids, mask, False)

    def embeddings(self, ids: str | Ids, mask: Ids | None = None) -> _tenon.Tensor:
        """[rows, tokens, hidden]: the states of the last layer behind the final norm."""
        return self._run(ids, mask, True)

    def perplexity(self, text: str | Ids, window: int | None = None) -> float:
        """exp of the mean negative log-likelihood of all tokens but the first, as `tenon perplexity` has it: the text
        is encoded without special tokens and cut into windows (of 256 tokens), each with nothing before it."""
        ids = self.encode(text, special=False) if isinstance(text, str) else _lists(text)
        most = 0 if self.unbounded else self.max_positions
        total, count = self._m.perplexity(ids, window if window is not None else min(256, most) if most > 0 else 256)
        _notices.tell()
        return math.exp(total / count)

    # ---- kernels

    def explain(self, kernels: Any = None, format: str = "text") -> str:
        """What applying kernels (None: those of the model) would do, site by site, and why; nothing changes. format:
        "text", "json" or "dot"."""
        if format not in _FORMATS:
            raise ValueError(f"format is one of {', '.join(_FORMATS)}, and not {format!r}")
        return self._m.explain(_spec(kernels), _FORMATS[format], self._progress)

    def verify(self, kernels: Any = None) -> list[dict[str, Any]]:
        """Runs every kernel at every site that it matches against the plain implementation, on the model's own weights:
        a row for each kernel and operation. VerifyError, whose rows are these: one is outside its tolerance."""
        rows, failure = self._m.verify(_spec(kernels), self._progress)
        if isinstance(failure, VerifyError):
            failure.rows = rows
        if failure is not None:
            raise failure
        return rows
