"""A server of a language model on each rank, with OpenAI's API, and a router on node0 that spreads requests over them.

Every rank keeps one replica running on its own cores, and starts it again when it ends. Replicas tell the router, which
listens at MASTER_ADDR and MASTER_PORT, where they are. A request goes to the one that has the fewest, and to another if
that one does not answer; what a replica streams is passed on as it comes. A replica is

  --model DIR           a model that transformers loads, one request at a time
  --model FILE.gguf     llama.cpp, of the package xllamacpp
  --server "COMMAND"    any server that takes --host and --port: vllm serve DIR; python -m llama_cpp.server --model FILE

and without any of them a program that answers with the words it got, and needs nothing but Python. With SERVE_TOKEN in
the environment, clients and replicas must have it, as a key of the API.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import http.client
import json
import os
import re
import shlex
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
FAMILY = socket.AF_INET6 if ":" in HEAD[0] else socket.AF_INET
TOKEN = os.environ.get("SERVE_TOKEN", "")
KEYS = ("VLLM_API_KEY", "LLAMA_API_KEY")  # where servers of others read the key of their API
BEAT = 1.0  # seconds between two words of a replica
ATTEMPTS, STEADY = 5, 60.0  # a replica that ends so many times in a row within so many seconds will not stay up
SILENCE = 5.0  # seconds after which one without a word gets no more requests
PATIENCE = 600.0  # seconds in which a replica must begin to answer, and between two pieces of its answer
LARGEST = 1 << 24  # bytes of a request
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy is between hosts of a run


class Server(ThreadingHTTPServer):
    address_family = FAMILY


class Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out: ``answer`` returns status and value."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        size = self.headers.get("Content-Length", "0")
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        refusal = None
        if TOKEN and self.path != "/health" and not hmac.compare_digest(key.encode(), TOKEN.encode()):
            refusal = 401, "the key of this API is wrong"
        elif not re.fullmatch("[0-9]{1,20}", size) or "Transfer-Encoding" in self.headers:
            refusal = 411, "the request does not tell its length (Content-Length)"
        elif int(size) > LARGEST:
            refusal = 413, "the request is too large"
        if refusal:
            self.close_connection = True  # the body is not read
            self.reply(refusal[0], {"error": refusal[1]})
            return
        try:
            self.answer(self.rfile.read(int(size)))
        except (ValueError, KeyError, TypeError, http.client.InvalidURL) as error:
            self.reply(400, {"error": f"the request cannot be read: {error}"})

    do_POST = do_GET

    def answer(self, body: bytes) -> None:
        raise NotImplementedError

    def reply(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def write_place(address: str, port: int) -> str:
    """Returns an address with its port, as in a URL."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def call(address: str, port: int, path: str, body: bytes | None = None) -> int:
    """Returns the status of an answer. Raises `OSError`."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    try:
        url = f"http://{write_place(address, port)}{path}"
        with LOCAL.open(urllib.request.Request(url, body, headers), timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


# a replica -----------------------------------------------------------------------------------------------------------


def serve_replica(args: argparse.Namespace, address: str, port: int) -> None:
    if args.model and args.model.endswith(".gguf"):
        server = serve_gguf(args, address, port)
    else:
        server = serve_prompts(args, address, port)
    threading.Event().wait()
    del server


def serve_gguf(args: argparse.Namespace, address: str, port: int) -> Any:
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path, params.model_alias = str(Path(args.model).expanduser()), {args.name}
    params.hostnames, params.port = [address], port
    params.cpuparams.n_threads = len(os.sched_getaffinity(0))
    params.api_keys = [TOKEN] if TOKEN else []
    return Server(params)


def serve_prompts(args: argparse.Namespace, address: str, port: int) -> Any:
    complete, lock = load(args.model), threading.Lock()

    class Replica(Handler):
        def answer(self, body: bytes) -> None:
            if self.path == "/v1/models":
                self.reply(200, {"object": "list", "data": [{"id": args.name, "object": "model"}]})
                return
            if self.path not in ("/v1/completions", "/v1/chat/completions"):
                self.reply(404, {"error": f"there is no {self.path}"})
                return
            request = json.loads(body)
            if request.get("stream"):
                self.reply(400, {"error": "transformers answers as a whole; --model FILE.gguf and --server stream"})
                return
            chat = self.path.endswith("chat/completions")
            prompt = request["messages"] if chat else str(request["prompt"])
            with lock:  # one at a time has all cores
                text = complete(prompt, min(int(request.get("max_tokens", 64)), 4096))
            choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            kind = "chat.completion" if chat else "text_completion"
            choices = [{"index": 0, "finish_reason": "stop", **choice}]
            self.reply(200, {"object": kind, "model": args.name, "choices": choices})

    server = Server((address, port), Replica)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


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


# the router on node0, and what keeps a replica running ---------------------------------------------------------------


class Router(Server):
    """Which replicas are up, and how many requests each of them has."""

    def __init__(self) -> None:
        super().__init__(HEAD, RouterHandler)
        self.seen: dict[tuple[str, int], float] = {}
        self.ranks: dict[tuple[str, int], int] = {}
        self.busy = Counter[tuple[str, int]]()
        self.lock = threading.Lock()

    def list_places(self) -> list[tuple[str, int]]:
        with self.lock:
            fresh = [place for place, at in self.seen.items() if time.monotonic() - at < SILENCE]
            return sorted(fresh, key=lambda place: (self.busy[place], self.ranks[place]))


class RouterHandler(Handler):
    server: Router

    def answer(self, body: bytes) -> None:
        router = self.server
        if self.path == "/replicas" and body:
            replica = json.loads(body)
            place = self.client_address[0], int(replica["port"])
            with router.lock:
                router.seen[place], router.ranks[place] = time.monotonic(), int(replica["rank"])
            self.reply(200, {})
            return
        places = router.list_places()
        if self.path in ("/health", "/replicas"):
            self.reply(200 if places else 503, {"replicas": sorted(router.ranks[place] for place in places)})
            return
        for place in places:
            with router.lock:
                router.busy[place] += 1
            connection = http.client.HTTPConnection(*place, timeout=PATIENCE)
            try:
                self.forward(place, connection, body)
                return
            except http.client.InvalidURL:  # of the client
                raise
            except (OSError, http.client.HTTPException):  # it has ended before it began to answer: the next one
                with router.lock:
                    router.seen.pop(place, None)
            finally:
                connection.close()
                with router.lock:
                    router.busy[place] -= 1
        self.reply(503, {"error": "no replica is up"})

    def forward(self, place: tuple[str, int], connection: http.client.HTTPConnection, body: bytes) -> None:
        """Raises `OSError` and `HTTPException` until the replica begins to answer; afterwards the client's connection
        ends early, as the replica's did."""
        headers = {key: self.headers[key] for key in ("Authorization", "Content-Type", "Accept") if key in self.headers}
        connection.request(self.command, self.path, body or None, headers)
        response = connection.getresponse()
        self.close_connection = True  # where the answer ends, as its length may not be known yet
        try:
            self.send_response(response.status)
            self.send_header("Content-Type", response.headers.get("Content-Type", "application/json"))
            self.send_header("X-Replica", str(self.server.ranks[place]))
            if response.length is not None:  # by which a client knows an answer that is not whole
                self.send_header("Content-Length", str(response.length))
            self.send_header("Connection", "close")
            self.end_headers()
            while piece := response.read1(1 << 16):
                self.wfile.write(piece)
        except (OSError, http.client.HTTPException):
            with contextlib.suppress(OSError):  # the client itself has left
                self.connection.shutdown(socket.SHUT_RDWR)


def run_replica(command: str | None, address: str) -> int:
    """Returns its exit code; meanwhile the router gets to know of it as long as it answers."""
    with socket.create_server((address, 0), family=FAMILY) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-u", *sys.argv, "--replica", f"{address}:{port}"]
    if command:
        words = [*shlex.split(command), "--host", address, "--port", str(port)]
    place = json.dumps({"rank": RANK, "port": port}).encode()
    answers = 0
    with subprocess.Popen(words, env={**os.environ, **dict.fromkeys(KEYS if TOKEN else (), TOKEN)}) as replica:
        while replica.poll() is None:
            try:
                answer = call(address, port, "/v1/models") == 200 and call(*HEAD, "/replicas", place) == 200
                answers += answer
                if answer and answers == 1 and RANK == 0:
                    print(f"the API is at http://{write_place(*HEAD)}/v1", flush=True)
                if answer and answers == 2:  # the sign for --ready, when who waits for it has that address
                    print(f"replica {RANK} is up at {write_place(address, port)}", flush=True)
            except OSError:
                pass  # it loads its model, or the router is not up yet or starts again
            time.sleep(BEAT)
    return replica.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory or .gguf file of a model on the hosts (default: the words it got)")
    parser.add_argument("--server", help="command of a server that takes --host and --port")
    parser.add_argument("--name", default="model", help="the model's name in answers")
    parser.add_argument("--replica", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.model and not Path(args.model).expanduser().exists():
        sys.exit(f"{socket.gethostname()} has no {args.model}: ipexctl sync --workdir carries one to all hosts")
    if args.replica:
        address, _, port = args.replica.rpartition(":")
        serve_replica(args, address, int(port))
        return
    if RANK == 0:
        threading.Thread(target=Router().serve_forever, daemon=True).start()
    with socket.socket(FAMILY, socket.SOCK_DGRAM) as probe:
        probe.connect(HEAD)
        address = probe.getsockname()[0]
    failures = 0
    while failures < ATTEMPTS:
        begun = time.monotonic()
        code = run_replica(args.server, address)
        print(f"replica {RANK} ended with {code} and is started again", flush=True)
        failures = failures + 1 if time.monotonic() - begun < STEADY else 0
        time.sleep(1.0)
    sys.exit(f"replica {RANK} ended {ATTEMPTS} times within {STEADY:.0f} s of its start")


if __name__ == "__main__":
    main()
