"""Clients of a server that speaks OpenAI's API: streams of /v1/completions with prompts of ids, and when their tokens came.
Only what Python itself has. While answers come in nothing is done with them but noting the time, since the clients share the
processor with the server; they are read afterwards."""
import asyncio
import json
import os
import time


class Refused(Exception):
    """The server did not answer as it should."""


class Answer:
    def __init__(self):
        self.begin = time.perf_counter()
        self.end = self.begin
        self.pieces = []  # (when, bytes)
        self.times = []  # when a text came
        self.usage = {}

    def read(self):
        """What the pieces say; an event that came in several counts from the last one."""
        rest = b""
        for when, piece in self.pieces:
            *events, rest = (rest + piece).replace(b"\r", b"").split(b"\n\n")
            for event in events:
                if event.startswith(b"data: {"):
                    self.hear(when, json.loads(event[6:]))
        self.pieces = []
        return self

    def hear(self, when, event):
        if event.get("error"):
            raise Refused(str(event["error"])[:200])
        self.usage = event.get("usage") or self.usage
        choices = event.get("choices")
        if choices and choices[0].get("text"):
            self.times.append(when)

    @property
    def first(self):
        """Seconds to the first token."""
        if not self.times:
            raise Refused("an answer without a token")
        return self.times[0] - self.begin

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.times, self.times[1:])]

    @property
    def step(self):
        """Seconds for each token behind the first."""
        if self.tokens < 2:
            raise Refused("an answer of one token")
        return (self.times[-1] - self.times[0]) / (self.tokens - 1)

    @property
    def tokens(self):
        return self.usage.get("completion_tokens", len(self.times))

    @property
    def cached(self):
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


async def complete(port, prompt, tokens, answer=None, **members):
    """An answer of so many tokens to the ids of a prompt, chosen greedily. When this is cancelled, the connection is closed,
    and the answer, if it was given, has what came."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}, **members}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n" \
           f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    answer = answer or Answer()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        writer.write(head.encode() + body)
        headers = await reader.readuntil(b"\r\n\r\n")
        if headers.split(b" ", 2)[1] != b"200":
            raise Refused((headers.split(b"\r\n")[0] + b" " + await reader.read(300)).decode(errors="replace"))
        await take(reader, answer, b"transfer-encoding: chunked" in headers.lower())
    finally:
        answer.end = time.perf_counter()
        writer.close()
    return answer


async def take(reader, answer, chunked):
    while True:
        if chunked:
            size = int((await reader.readline()).split(b";")[0] or b"0", 16)
            piece = (await reader.readexactly(size + 2))[:-2] if size else b""
        else:
            piece = await reader.read(1 << 16)
        if not piece:
            return
        answer.pieces.append((time.perf_counter(), piece))


def quantile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))]


def processor_seconds():
    now = os.times()
    return now.user + now.system


async def streams(port, prompts, tokens):
    """prompts: for each stream its prompts, which it sends one after the other; all streams at once."""
    async def stream(own):
        return [await complete(port, prompt, tokens) for prompt in own]

    used = processor_seconds()
    got = [answer for own in await asyncio.gather(*map(stream, prompts)) for answer in own]
    used = processor_seconds() - used
    seconds = max(a.end for a in got) - min(a.begin for a in got)
    gaps = [gap for answer in got for gap in answer.read().gaps]
    firsts = [answer.first for answer in got]
    return {"tokens_per_second": sum(answer.tokens for answer in got) / seconds, "first": quantile(firsts, 0.5),
            "first_p99": quantile(firsts, 0.99), "between": quantile(gaps, 0.5), "between_p99": quantile(gaps, 0.99),
            "step": quantile([answer.step for answer in got], 0.5), "client": used / seconds}


async def prefix(port, head, tails):
    """The first token of a prompt, and of others that begin alike."""
    firsts = []
    for tail in tails:
        answer = (await complete(port, head + tail, 2)).read()
        firsts.append(answer.first)
    return {"uncached": firsts[0], "cached": quantile(firsts[1:], 0.5), "cached_tokens": answer.cached}


async def beside(port, prompt, longs, most):
    """Between the tokens of a stream, which begins again when it ends, while a second client sends long prompts one after the
    other."""
    answers, windows = [], []

    async def decode():
        while True:
            answers.append(Answer())
            await complete(port, prompt, most, answers[-1])

    decoding = asyncio.ensure_future(decode())
    try:
        while sum(len(answer.pieces) for answer in answers) < 8 and not decoding.done():
            await asyncio.sleep(0.05)
        for ids in longs:
            other = (await complete(port, ids, 1)).read()
            windows.append((other.begin, other.begin + other.first))
        if decoding.done():
            await decoding
    finally:
        decoding.cancel()
        await asyncio.gather(decoding, return_exceptions=True)
    gaps = []
    for times in (answer.read().times for answer in answers):
        gaps += [b - a for begin, end in windows for a, b in zip(times, times[1:]) if begin <= (a + b) / 2 <= end]
    if not gaps:
        raise Refused("the stream got no token while the long prompts were computed")
    return {"between": quantile(gaps, 0.5), "between_p99": quantile(gaps, 0.99), "steps": len(gaps)}


async def form(port, prompt, tokens, schema):
    """Seconds between tokens, without a form and in one."""
    shape = {"response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": schema}}}
    plain = (await complete(port, prompt, tokens)).read()
    formed = (await complete(port, prompt, tokens, **shape)).read()
    return {"plain": plain.step, "formed": formed.step, "first_plain": plain.first, "first_formed": formed.first}
