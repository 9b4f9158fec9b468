"""What test_serve.sh asks of a server of its own: usage: serve_client.py CASE TENON MODEL. The case is a function below; its assertion is
the failure. Only what Python itself has."""
import base64, concurrent.futures, contextlib, http.client, json, os, random, re, shutil, signal, socket, struct, subprocess, sys, tempfile, time

TENON, MODEL = sys.argv[2], sys.argv[3]
PROMPT = "And it came to pass"
LONG = 300  # seconds for what hangs: a busy machine needs many
ENDLESS = ("--context", "100000")  # of which a text takes many minutes


@contextlib.contextmanager
def unless_late(seconds):
    """What is sent within must be taken, unless this program itself was held up for longer than the server waits."""
    began = time.monotonic()
    try:
        yield
    except ConnectionError:
        if time.monotonic() - began < seconds:
            raise


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=LONG)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class Server:
    def __init__(self, *options, model=MODEL):
        self.process = subprocess.Popen([TENON, "serve", model, "--port", "0", "--quiet", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line + self.process.stderr.read()
        self.port = int(line.rsplit(":", 1)[1]) if "http" in line else 0
        self.reads = float(options[options.index("--read-timeout") + 1]) if "--read-timeout" in options else 30

    def open(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG)

    def ask(self, method, path, body=None, headers={}, connection=None):
        """Again where this program was held up for longer than the server waits for a request."""
        while True:
            c, began, sent = connection or self.open(), time.monotonic(), None
            try:
                c.request(method, path, json.dumps(body) if isinstance(body, dict) else body, headers)
                sent = time.monotonic()
                r = c.getresponse()
                break
            except (ConnectionError, http.client.HTTPException):
                if connection or (sent or time.monotonic()) - began < self.reads:
                    raise
        text = r.read().decode()
        return r.status, json.loads(text) if r.headers["content-type"] == "application/json" else text, r.headers

    def complete(self, **members):
        status, body, _ = self.ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, **members})
        assert status == 200, body
        return body

    def metric(self, name):
        return float(re.search(r"^tenon:" + name + r"(?:\{[^}]*\})? (\S+)$", self.ask("GET", "/metrics")[1], re.M).group(1))

    def wait_for(self, name, value):
        end = time.monotonic() + LONG
        while self.metric(name) != value:
            assert time.monotonic() < end, f"{name} is not {value}"
            time.sleep(0.02)

    def end(self, status=0, number=signal.SIGTERM):
        self.process.send_signal(number)
        assert self.process.wait(LONG) == status, self.process.stderr.read()


@contextlib.contextmanager
def serving(*options, model=MODEL):
    s = Server(*options, model=model)
    try:
        yield s
    finally:
        s.process.kill()
        s.process.wait()


def chat_model(path, **generation):
    """A copy of MODEL that chats: whatever is said, line after line; generation_config.json has these members."""
    shutil.copytree(MODEL, path)
    with open(path + "/chat_template.jinja", "w") as f:
        f.write("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    with open(path + "/generation_config.json", "w") as f:
        json.dump({"bos_token_id": 0, "eos_token_id": 0, **generation}, f)
    return path


def long_request(s, **members):
    c = s.open()
    c.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 90000, "ignore_eos": True, **members}))
    return c


def text():
    """What is answered is what `tenon run` writes, whole and streamed, and its log-probabilities are numbers."""
    with serving() as s:
        said = subprocess.run([TENON, "run", MODEL, PROMPT, "-n", "24", "--temperature", "0", "--quiet"], capture_output=True, text=True).stdout
        whole = s.complete(logprobs=2)["choices"][0]
        assert whole["text"] == said.rstrip("\n"), (whole["text"], said)
        assert all(p <= 0 for p in whole["logprobs"]["token_logprobs"]) and "".join(whole["logprobs"]["tokens"]) == whole["text"]
        _, events, headers = s.ask("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "stream": True})
        assert headers["content-type"] == "text/event-stream" and events.endswith("data: [DONE]\n\n")
        parts = [json.loads(e[6:]) for e in events.split("\n\n") if e.startswith("data: {")]
        assert "".join(c["text"] for p in parts for c in p["choices"]) == whole["text"]


def same():
    """A request is answered alike alone, among others, and behind what others left."""
    with serving("--sequences", "8") as s:
        bits = lambda: json.dumps(s.complete(prompt=PROMPT * 8, temperature=1, seed=7, logprobs=3)["choices"])
        alone = bits()
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            others = [pool.submit(s.complete, prompt="x" * i, temperature=1, seed=i, max_tokens=5 + 3 * i) for i in range(1, 12)]
            among = [pool.submit(bits) for _ in range(4)]
            assert [a.result() for a in among] == [alone] * 4
            [o.result() for o in others]
        assert bits() == alone and s.metric("prefix_cache_hits") > 0


def vectors():
    """A checkpoint that continues no text makes vectors, of length 1, the same as numbers and as bytes; texts are refused."""
    with tempfile.TemporaryDirectory() as folder:
        model = shutil.copytree("tests/data/models/qwen3_embedding", folder + "/m")
        shutil.copy(MODEL + "/tokenizer.json", model)
        with serving(model=model) as s:
            status, body, _ = s.ask("POST", "/v1/embeddings", {"input": [[1, 2, 3], [4, 5]]})
            assert status == 200 and [d["index"] for d in body["data"]] == [0, 1] and body["usage"]["prompt_tokens"] >= 5, body
            for d in body["data"]:
                assert abs(sum(x * x for x in d["embedding"]) - 1) < 1e-4
            coded = s.ask("POST", "/v1/embeddings", {"input": [1, 2, 3], "encoding_format": "base64"})[1]["data"][0]["embedding"]
            first = body["data"][0]["embedding"]
            assert all(abs(a - b) < 1e-6 for a, b in zip(struct.unpack(f"<{len(first)}f", base64.b64decode(coded)), first))
            status, refused, _ = s.ask("POST", "/v1/completions", {"prompt": [1, 2]})
            assert status == 400 and "no head" in refused["error"]["message"], refused
    with serving() as s:
        status, refused, _ = s.ask("POST", "/v1/embeddings", {"input": "x"})
        assert status == 400 and refused["error"]["message"], refused


def keys():
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/keys"
        with open(path, "w") as f:
            f.write("# of a friend\nfirst-key\n\nsecond-key\n")
        os.chmod(path, 0o644)
        refused = subprocess.run([TENON, "serve", MODEL, "--port", "0", "--api-key-file", path], capture_output=True, text=True)
        assert refused.returncode == 4 and "chmod 600" in refused.stderr, refused
        os.chmod(path, 0o600)
        with serving("--api-key-file", path) as s:
            for wrong in ({}, {"Authorization": "Bearer first-ke"}, {"Authorization": "Bearer first-key2"}, {"Authorization": "first-key"}, {"X-Api-Key": "# of a friend"}):
                status, body, _ = s.ask("GET", "/v1/models", headers=wrong)
                assert status == 401 and "key" in body["error"]["message"] and "first" not in json.dumps(body), (wrong, status)
            for right in ({"Authorization": "Bearer first-key"}, {"Authorization": "bearer second-key"}, {"X-Api-Key": "second-key"}):
                assert s.ask("GET", "/v1/models", headers=right)[0] == 200, right
            assert s.ask("GET", "/health")[0] == 200 and s.ask("GET", "/")[0] == 200


def unix():
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/s"
        for _ in range(2):  # the second one finds what the first left
            with serving("--unix", path) as s:
                assert os.stat(path).st_mode & 0o007 == 0
                assert s.ask("GET", "/health", connection=Unix(path))[0] == 200
                again = subprocess.run([TENON, "serve", MODEL, "--unix", path], capture_output=True, text=True)
                assert again.returncode == 2 and "listens there already" in again.stderr, again
        with open(folder + "/file", "w"):
            pass
        refused = subprocess.run([TENON, "serve", MODEL, "--unix", folder + "/file"], capture_output=True, text=True)
        assert refused.returncode == 2 and os.path.exists(folder + "/file"), refused


def limits():
    with serving("--max-body-mb", "1", "--sequences", "1", "--queue", "1", *ENDLESS) as s:
        status, body, _ = s.ask("POST", "/v1/completions", {"prompt": "x" * (2 << 20)})
        assert status == 413 and "max-body-mb" in body["error"]["message"], status
        assert s.ask("GET", "/nothing")[0] == 404 and s.ask("GET", "/v1/completions")[0] == 405
        assert s.ask("GET", "/v1/models", headers={"Host": "evil.example"})[0] == 421
        for wrong in (b"{", b"[]", b'{"prompt": 5}', b'{"prompt": "x", "temperature": "hot"}', b'{"prompt": "x", "max_tokens": 1e99}', b"\xff"):
            assert s.ask("POST", "/v1/completions", wrong)[0] == 400, wrong
        first = long_request(s)
        s.wait_for("num_requests_running", 1)
        second = long_request(s)
        s.wait_for("num_requests_waiting", 1)
        assert s.ask("POST", "/v1/completions", {"prompt": PROMPT})[0] == 429
        first.close()
        second.close()
    with serving("--read-timeout", "1") as s, socket.create_connection(("127.0.0.1", s.port), timeout=0.1) as slow:
        with unless_late(1):
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        for looks in range(150):  # each takes a tenth of a second, on a machine that stands still, too
            with contextlib.suppress(TimeoutError):
                assert slow.recv(100) == b""
                break
        assert looks < 149


def junk():
    """Requests with bytes cut, doubled and changed, in body and head: each gets an answer or is closed, and the server goes on."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    good = json.dumps({"prompt": PROMPT, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}], "max_tokens": 2,
                       "stop": ["a", "b"], "n": 2, "logit_bias": {"5": 1}, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
                       "response_format": {"type": "json_object"}, "seed": 3, "stream": True, "stream_options": {"include_usage": True}}).encode()
    paths = (b"/v1/completions", b"/v1/chat/completions", b"/tokenize", b"/detokenize", b"/apply-template", b"/v1/embeddings", b"/")
    rng, seen = random.Random(5), set()
    with serving("--read-timeout", "1") as s:
        for _ in range(400):
            body = bytearray(good)
            for _ in range(rng.randrange(4)):
                at, kind = rng.randrange(len(body) or 1), rng.randrange(4)
                if kind == 0:
                    del body[at:at + rng.randrange(8)]
                elif kind == 1:
                    body[at:at] = bytes(rng.choice(b'{}[]",:0123e-ntf\\u\xff\x00') for _ in range(rng.randrange(5)))
                elif kind == 2:
                    body[at:at + 1] = bytes([rng.randrange(256)])
                else:
                    body[at:at] = body[rng.randrange(len(body) or 1):][:20]
            data = bytearray(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (rng.choice(paths), len(body)) + body)
            if rng.random() < 0.2:
                data[rng.randrange(len(data))] = rng.randrange(256)
            with socket.create_connection(("127.0.0.1", s.port), timeout=LONG) as c, contextlib.suppress(ConnectionError):
                c.sendall(data)
                seen.add(c.recv(400)[9:12])
        assert b"200" in seen and b"400" in seen and not seen & {b"500", b"501", b"502"}, seen
        assert s.complete(max_tokens=2)["usage"]["completion_tokens"] == 2


def gone():
    """Whoever goes away frees the place, streaming or not, waiting or not."""
    with serving("--sequences", "1", *ENDLESS) as s:
        for stream in (False, True):
            first, second = long_request(s, stream=stream), long_request(s, stream=stream)
            s.wait_for("num_requests_running", 1)
            s.wait_for("num_requests_waiting", 1)
            first.close()
            second.close()
            s.wait_for("num_requests_waiting", 0)
            s.wait_for("num_requests_running", 0)
        assert s.complete(max_tokens=2)["usage"]["completion_tokens"] == 2


def ends():
    """What runs is finished, new requests are refused; beyond --drain a stream ends with an error."""
    with serving("--drain", str(LONG), *ENDLESS) as s:
        c = long_request(s, max_tokens=3000)  # some seconds
        s.wait_for("num_requests_running", 1)
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            assert s.ask("POST", "/v1/completions", {"prompt": PROMPT})[0] == 503
        assert json.loads(c.getresponse().read())["usage"]["completion_tokens"] == 3000 and s.process.wait(LONG) == 0
    with serving("--drain", "0", *ENDLESS) as s:
        c = long_request(s, stream=True)
        s.wait_for("num_requests_running", 1)
        s.process.send_signal(signal.SIGINT)
        assert '"error"' in c.getresponse().read().decode() and s.process.wait(LONG) == 0


if __name__ == "__main__":
    globals()[sys.argv[1]]()
