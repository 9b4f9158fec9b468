#!/usr/bin/env python3
"""OpenVINO GenAI's continuous batching behind as much of OpenAI's API as the clients of make bench-serve use, since it has no
server of its own: /health, and streams of /v1/completions for prompts of ids. The text of a token is its number.
usage: openvino_server.py FILE.gguf PORT THREADS SEQUENCES"""
import json
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import openvino
import openvino_genai

MOST_TOKENS = 512  # of a step, as Tenon takes


class Request:
    def __init__(self, body, write):
        self.ids, self.write = body["prompt"], write
        self.config = openvino_genai.GenerationConfig()
        self.config.max_new_tokens, self.config.ignore_eos, self.config.do_sample = body["max_tokens"], True, False
        self.tokens, self.handle, self.done = 0, None, threading.Event()

    def event(self, members):
        return b"data: " + json.dumps(members).encode() + b"\n\n"

    def hear(self, ids):
        self.tokens += len(ids)
        text = "".join(f" {i}" for i in ids)
        self.send(self.event({"choices": [{"index": 0, "text": text, "finish_reason": None}]}))

    def end(self):
        usage = {"prompt_tokens": len(self.ids), "completion_tokens": self.tokens}
        self.send(self.event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        self.done.set()

    def send(self, data):
        try:
            self.write(data)
        except OSError:  # the client has gone
            self.handle.stop()


def steps(pipe, inbox):
    """The thread that computes: a step for all requests, then their tokens go out."""
    number, active = 0, []
    while True:
        while not active or not inbox.empty():
            request = inbox.get()
            ids = numpy.array([request.ids], dtype=numpy.int64)
            request.handle = pipe.add_request(number, openvino.Tensor(ids), request.config)
            number += 1
            active.append(request)
        pipe.step()
        for request in active:
            if request.handle.can_read():
                for output in request.handle.read().values():
                    request.hear(output.generated_ids)
        running = openvino_genai.GenerationStatus.RUNNING
        for request in [r for r in active if r.handle.get_status() != running]:
            active.remove(request)
            request.end()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        request = Request(body, self.wfile.write)
        self.server.inbox.put(request)
        request.done.wait()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main():
    file = sys.argv[1]
    port, threads, sequences = (int(a) for a in sys.argv[2:5])
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.max_num_batched_tokens, scheduling.max_num_seqs = MOST_TOKENS, sequences
    scheduling.enable_prefix_caching = True
    pipe = openvino_genai.ContinuousBatchingPipeline(file, scheduling, "CPU", {
        "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "bf16"})
    server = Server(("127.0.0.1", port), Handler)
    server.inbox = queue.Queue()
    threading.Thread(target=steps, args=(pipe, server.inbox), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
