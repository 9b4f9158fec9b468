"""What test_page.sh asks of the page of `tenon serve` in a browser without a window: usage: page_client.py CASE TENON MODEL BROWSER. The case
is a function below; its assertion is the failure. The browser is spoken to by the DevTools protocol over two pipes."""
import base64, contextlib, itertools, json, os, subprocess, sys, tempfile, threading, time

from serve_client import ENDLESS, LONG, chat_model, serving


class Browser:
    """One page. failures: what it logged as an error; asked: the addresses that it fetched."""

    def __init__(self, folder, width, height):
        to, said = os.pipe(), os.pipe()

        def pipes():  # 3 is read by the browser, 4 written
            ends = os.dup(to[0]), os.dup(said[1])
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [sys.argv[4], "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--remote-debugging-pipe", f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=pipes, pass_fds=(3, 4), stderr=subprocess.DEVNULL, env={**os.environ, "HOME": folder})
        os.close(to[0]), os.close(said[1])
        self.to, self.said = to[1], os.fdopen(said[0], "rb")
        self.numbers, self.answers, self.news = itertools.count(1), {}, threading.Condition()
        self.failures, self.asked, self.session = [], [], None
        threading.Thread(target=self.listen, daemon=True).start()
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def listen(self):
        held = b""
        while True:
            part = self.said.read1(65536)
            if not part:
                return
            *messages, held = (held + part).split(b"\0")
            for m in map(json.loads, messages):
                with self.news:
                    if "id" in m:
                        self.answers[m["id"]] = m
                    elif m["method"] == "Network.requestWillBeSent":
                        self.asked.append(m["params"]["request"]["url"])
                    elif m["method"] == "Runtime.exceptionThrown":
                        self.failures.append(m["params"]["exceptionDetails"])
                    elif m["method"] == "Log.entryAdded" and m["params"]["entry"]["level"] == "error":
                        self.failures.append(m["params"]["entry"]["text"])
                    self.news.notify_all()

    def call(self, method, **params):
        n = next(self.numbers)
        message = {"id": n, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.news:
            assert self.news.wait_for(lambda: n in self.answers, LONG), f"the browser does not answer {method}"
            answer = self.answers.pop(n)
        assert "error" not in answer, answer
        return answer["result"]

    def value(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in r, r
        return r["result"].get("value")

    def wait(self, expression):
        end = time.monotonic() + LONG
        while not self.value(expression):
            assert time.monotonic() < end, f"never: {expression}; the page says: {self.value('document.body.innerText')!r}"
            time.sleep(0.02)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.activeElement.id === 'text'")

    def press(self, key, text="", modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=13, text=text if kind == "keyDown" else "", modifiers=modifiers)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def click(self, name):
        x, y = self.value(f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.getElementById('{name}').getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def turns(self, kind):
        return self.value(f"[...document.querySelectorAll('.turn.{kind}')].map(e => e.textContent)")

    def ask(self, text):
        """Writes it, sends it, and gives the whole answer."""
        before = len(self.turns("user"))
        self.write(text)
        self.press("Enter", "\r")
        self.wait(f"document.getElementById('send').textContent === 'Send' && document.querySelectorAll('.turn.user').length === {before + 1}")
        return (self.turns("assistant") or [""])[-1]


@contextlib.contextmanager
def chatting(*options, width=800, height=600, ends=()):
    """A server with a model that always answers alike (of words as likely as each other top_k = 1 leaves all), and a browser with its page."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        model = chat_model(folder + "/<i>small model", do_sample=True, top_p=1e-9, stop_strings=[*ends])
        with serving(*options, model=model) as s:
            browser = Browser(folder + "/browser", width, height)
            try:
                browser.open(f"http://127.0.0.1:{s.port}/")
                yield s, browser
            finally:
                browser.process.kill()
                browser.process.wait()
            assert all(u.startswith((f"http://127.0.0.1:{s.port}/", "about:", "data:")) for u in browser.asked), browser.asked


def answer(s, messages):
    status, body, _ = s.ask("POST", "/v1/chat/completions", {"model": s.ask("GET", "/v1/models")[1]["data"][0]["id"], "messages": messages})
    assert status == 200, body
    return body["choices"][0]["message"]["content"]


def talk():
    """Two questions: the answers are the API's, what was said before is part of the second, and all of it is text."""
    with chatting(ends=".") as (s, b):
        b.wait("document.getElementById('model').textContent === '<i>small model'")
        first = {"role": "user", "content": "And <i>it</i> came & went\n\ndata: [DONE]"}
        b.write("And <i>it</i> came & went")
        for _ in range(2):
            b.press("Enter", "\r", modifiers=8)  # with Shift: a new line
        said = b.ask("data: [DONE]")
        assert b.turns("user") == [first["content"]], b.turns("user")
        assert said and said == answer(s, [first]), said
        second = {"role": "user", "content": "and then"}
        more = b.ask(second["content"])
        assert more == answer(s, [first, {"role": "assistant", "content": said}, second]), more
        assert not b.turns("note"), b.turns("note")
        assert b.value("document.querySelectorAll('main i, header i').length") == 0
        b.click("fresh")
        assert b.value("document.getElementById('talk').childElementCount") == 0
        assert b.ask(second["content"]) == answer(s, [second])
        assert not b.failures, b.failures


def stop():
    """An answer stays in view while it grows; stopped, it frees its place and stays, and the next question is answered. An empty one is not sent."""
    with chatting("--threads", "1", *ENDLESS, height=220) as (s, b):
        b.press("Enter", "\r")
        b.write("  ")
        b.press("Enter", "\r")
        assert b.turns("user") == []
        b.write("And it came to pass")
        b.press("Enter", "\r")
        b.wait("((document.querySelector('.turn.assistant') || {}).textContent || '').length > 250")
        assert b.value("document.getElementById('send').textContent") == "Stop"
        b.click("send")
        b.wait("document.getElementById('send').textContent === 'Send'")
        s.wait_for("num_requests_running", 0)
        assert b.turns("assistant")[0] and not b.turns("note"), b.turns("note")
        hidden = b.value("(t => [t.scrollTop, t.scrollHeight - t.scrollTop - t.clientHeight])(document.getElementById('talk'))")
        assert hidden[0] > 0 and hidden[1] < 60, hidden
        before = s.metric("generation_tokens_total")
        b.write("And")
        b.press("Enter", "\r")
        b.wait("(document.querySelectorAll('.turn.assistant')[1] || {}).textContent")
        b.click("fresh")  # stops it, too: to the end of the context it would be 100,000 tokens more
        s.wait_for("num_requests_running", 0)
        assert s.metric("generation_tokens_total") - before < 50000, s.metric("generation_tokens_total") - before
        assert not b.failures, b.failures


def key():
    """Without the key the page asks for it, and goes on with it; it is not written into the address."""
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("secret\n")
        keys.flush()
        with chatting("--api-key-file", keys.name) as (_, b):
            b.wait("!document.getElementById('key').hidden")
            assert "key" in b.turns("note")[0], b.turns("note")
            b.click("key")
            b.write("secret")
            b.click("text")
            assert b.ask("And it came to pass")
            assert b.value("location.href").endswith("/") and b.value("localStorage.length + document.cookie.length") == 0


def narrow():
    """On a small screen nothing is cut off: no part of the page is wider than it is."""
    with chatting(width=320, height=480) as (_, b):
        b.ask("x" * 200)
        b.ask("And it came to pass " * 20)
        cut, too_long = b.turns("note")
        assert cut == "The answer was cut at its limit." and "maximum context" in too_long, (cut, too_long)
        assert b.value("document.documentElement.scrollWidth <= 320 && document.getElementById('talk').scrollWidth <= 320")
        bottom = b.value("document.getElementById('send').getBoundingClientRect().bottom")
        assert bottom <= 480, bottom


def gone():
    """When the server is away the page says so, and the question may be asked again."""
    with chatting() as (s, b):
        b.ask("And it came to pass")
        s.process.kill()
        s.process.wait()
        b.ask("and then")
        assert b.turns("note")[-1], b.turns("note")
        assert b.value("document.getElementById('send').textContent") == "Send"


def picture():
    """PAGE_PICTURE=FILE.png: what it looks like, for a person."""
    with chatting(width=700, height=500) as (_, b):
        b.ask("And it came to pass")
        b.ask("and then")
        with open(os.environ["PAGE_PICTURE"], "wb") as f:
            f.write(base64.b64decode(b.call("Page.captureScreenshot")["data"]))


globals()[sys.argv[1]]()
