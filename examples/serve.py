"""A server of a language model on each rank, with OpenAI's API, and a router on node0 that spreads requests over them.

Every rank keeps one replica running on its own cores, and starts it again when it ends. Replicas tell the router, which
listens at MASTER_ADDR and MASTER_PORT, where they are. A request goes to the one that has the fewest, and to another if
that one does not answer. With SERVE_TOKEN in the environment, clients and replicas must have it, as a key of the API.
Without ``--model`` a replica answers with the words it got, and needs nothing but Python.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RANK = int(os.environ.get("RANK", "0"))
HEAD = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
TOKEN = os.environ.get("SERVE_TOKEN", "")
BEAT = 1.0  # seconds between two words of a replica
ATTEMPTS, STEADY = 5, 60.0  # a replica that ends so many times in a row within so many seconds will not stay up
SILENCE = 5.0  # seconds after which one without a word gets no more requests
LARGEST = 1 << 24  # bytes of a request
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy is between hosts of a run


class Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out. ``answer`` gets path and body, and returns status and body."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.handle_request(b"")

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if size > LARGEST:
            self.close_connection = True
            self.reply(413, {"error": "the request is too large"})
        else:
            self.handle_request(self.rfile.read(size))

    def handle_request(self, body: bytes) -> None:
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if TOKEN and self.path != "/health" and not hmac.compare_digest(key.encode(), TOKEN.encode()):
            self.reply(401, {"error": "the key of this API is wrong"})
            return
        try:
            self.reply(*self.server.answer(self.path, body, self.client_address[0]))  # type: ignore[attr-defined]
        except (ValueError, KeyError, TypeError) as error:
            self.reply(400, {"error": f"the request cannot be read: {error}"})

    def reply(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def call(address: str, port: int, path: str, body: bytes | None, timeout: float) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"http://{address}:{port}{path}", body, headers)
    try:
        with LOCAL.open(request, timeout=timeout) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


# a replica -----------------------------------------------------------------------------------------------------------


def serve_replica(args: argparse.Namespace, address: str) -> None:
    complete, lock = load(args.model), threading.Lock()
    server = ThreadingHTTPServer((address, 0), Handler)

    def answer(path: str, body: bytes, _: str) -> tuple[int, Any]:
        if path == "/health":
            return 200, {"status": "ok"}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": args.name, "object": "model"}]}
        if path not in ("/v1/completions", "/v1/chat/completions"):
            return 404, {"error": f"there is no {path}"}
        asked = json.loads(body)
        chat = path.endswith("chat/completions")
        prompt = asked["messages"] if chat else str(asked["prompt"])
        with lock:  # one at a time has all cores
            text = complete(prompt, min(int(asked.get("max_tokens", 64)), 4096))
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        choices = [{"index": 0, "finish_reason": "stop", **choice}]
        return 200, {"object": kind, "model": args.name, "replica": RANK, "choices": choices}

    server.answer = answer  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = json.dumps({"rank": RANK, "port": server.server_address[1]}).encode()
    up, parent = False, os.getppid()
    while os.getppid() == parent:
        try:
            status, _ = call(*HEAD, "/replicas", place, 5.0)
            if status == 200 and not up:
                print(f"replica {RANK} is up at {address}:{server.server_address[1]}", flush=True)
                up = True
        except OSError:
            pass  # the router is not up yet, or starts again
        time.sleep(BEAT)


def load(directory: str | None) -> Any:
    """Returns what completes a prompt, or the messages of a chat, by so many tokens."""
    if not directory:
        return lambda prompt, _: prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = Path(directory).expanduser()
    dtype = torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    tokenizer, model = AutoTokenizer.from_pretrained(place), AutoModelForCausalLM.from_pretrained(place, dtype=dtype)

    def complete(prompt: Any, most: int) -> str:
        if not isinstance(prompt, str):
            prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        output = model.generate(ids, attention_mask=mask, max_new_tokens=most, do_sample=False)
        return str(tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))

    return complete


# the router on node0, and who keeps a replica running ----------------------------------------------------------------


class Router:
    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], float] = {}
        self.ranks: dict[tuple[str, int], int] = {}
        self.busy = Counter[tuple[str, int]]()
        self.lock = threading.Lock()

    def answer(self, path: str, body: bytes, client: str) -> tuple[int, Any]:
        if path == "/replicas" and body:
            told = json.loads(body)
            place = client, int(told["port"])
            with self.lock:
                self.seen[place], self.ranks[place] = time.monotonic(), int(told["rank"])
            return 200, {}
        places = self.list_places()
        if path in ("/health", "/replicas"):
            return (200 if places else 503), {"replicas": sorted(self.ranks[place] for place in places)}
        for place in places:
            with self.lock:
                self.busy[place] += 1
            try:
                return call(*place, path, body or None, 600.0)
            except (OSError, ValueError):  # it has ended: the next one
                with self.lock:
                    self.seen.pop(place, None)
            finally:
                with self.lock:
                    self.busy[place] -= 1
        return 503, {"error": "no replica is up"}

    def list_places(self) -> list[tuple[str, int]]:
        with self.lock:
            fresh = [place for place, at in self.seen.items() if time.monotonic() - at < SILENCE]
            return sorted(fresh, key=lambda place: (self.busy[place], self.ranks[place]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="directory of a model on the hosts (default: the words that it got)")
    parser.add_argument("--name", default="model", help="the model's name in answers")
    parser.add_argument("--replica", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.model and not Path(args.model).expanduser().is_dir():
        sys.exit(
            f"{socket.gethostname()} has no directory {args.model}: ipexctl sync --workdir carries one to all hosts"
        )
    if args.replica:
        serve_replica(args, args.replica)
        return
    if RANK == 0:
        server = ThreadingHTTPServer(HEAD, Handler)
        server.answer = Router().answer  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"the API is at http://{HEAD[0]}:{HEAD[1]}/v1", flush=True)
    with socket.socket(socket.AF_INET6 if ":" in HEAD[0] else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(HEAD)
        address = probe.getsockname()[0]
    failures = 0
    while failures < ATTEMPTS:
        begun = time.monotonic()
        replica = subprocess.run([sys.executable, "-u", *sys.argv, "--replica", address])
        print(f"replica {RANK} ended with {replica.returncode} and is started again", flush=True)
        failures = failures + 1 if time.monotonic() - begun < STEADY else 0
        time.sleep(1.0)
    sys.exit(f"replica {RANK} ended {ATTEMPTS} times within {STEADY:.0f} s of its start")


if __name__ == "__main__":
    main()
