"""A server process that can be made to lie: `python -m hostile.peer SCENARIO --stdio|--http --folder DIR`.

It uses the standard library only, speaks plain JSON-RPC in both generations of
the protocol, and says exactly what its scenario says. In its folder it keeps
`log.jsonl`, to which every message is appended before it is answered, and it
reads `control.json` anew for each of them. It ends with its input, when the
control file is gone, or when its time is over, whichever comes first.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hostile.catalog import Json
from hostile.honest import Call, Honest, RpcError
from hostile.scenarios import SCENARIOS
from hostile.wire import LONGEST_WAIT, BodyWire, Gone, PipeWire, Wire, encoded

LARGEST_REQUEST = 4 * 1024 * 1024
LISTEN = "subscriptions/listen"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
_POLL = 0.05


class Peer:
    """One running scenario, whatever the transport."""

    def __init__(self, scenario: Honest, folder: Path) -> None:
        self.scenario = scenario
        self._control = folder / "control.json"
        self._log = os.open(folder / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.reload()

    def reload(self) -> bool:
        """Take what the test says now; False when it says nothing any more."""
        try:
            self.scenario.control = json.loads(self._control.read_bytes())
        except FileNotFoundError:
            return False
        return True

    def note(self, **line: Any) -> None:
        """Append to the log in one write, so that processes sharing it never mix their lines."""
        said = {"pid": os.getpid(), "time": time.time(), **line}
        os.write(self._log, encoded(said) + b"\n")

    def handle(self, message: Json, wire: Wire, headers: dict[str, str] | None = None) -> None:
        """Note a message and answer it; a notification is only noted."""
        call = Call.of(message)
        self.note(method=call.method, params=call.params, id=call.id, era=call.era, headers=headers or {})
        if call.id is None or not call.method:
            return
        self.reload()
        head: Json = {"jsonrpc": "2.0", "id": call.id}
        try:
            answer = {**head, "result": self.scenario.answer(call)}
        except RpcError as error:
            answer = {**head, "error": error.error}
        with suppress(Gone):
            self.scenario.deliver(call, answer, wire)

    def told_changes(self, tell: Callable[[], None]) -> None:
        """Call `tell` each time the test raises `notify`, until the test is over."""
        seen = int(self.scenario.control.get("notify", 0))
        with suppress(Gone):
            while self.reload():
                now = int(self.scenario.control.get("notify", 0))
                if now > seen:
                    seen = now
                    tell()
                time.sleep(_POLL)

    def watch(self) -> None:
        """End the process when the test is over, however the host treats it."""
        deadline = time.monotonic() + LONGEST_WAIT
        while self._control.exists() and time.monotonic() < deadline:
            time.sleep(_POLL)
        os._exit(0)


def list_changed(scenario: Honest, subscription: Any = None) -> bytes:
    meta = {} if subscription is None else {"_meta": {SUBSCRIPTION_KEY: subscription}}
    return encoded({"jsonrpc": "2.0", "method": scenario.change, "params": {**scenario.changed, **meta}})


def acknowledged(message: Json) -> bytes:
    """Promise to tell of whatever a host wants to hear."""
    wanted = message.get("params", {}).get("notifications", {"resourcesListChanged": True})
    params = {"notifications": wanted, "_meta": {SUBSCRIPTION_KEY: message["id"]}}
    method = "notifications/subscriptions/acknowledged"
    return encoded({"jsonrpc": "2.0", "method": method, "params": params})


def serve_pipes(peer: Peer) -> None:
    """Answer each line of standard input on a thread of its own, so that a hanging answer stops no other."""
    wire = PipeWire(threading.Lock())
    if peer.scenario.control.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subscription: list[Any] = []

    def tell() -> None:
        wire.send(list_changed(peer.scenario, *subscription[-1:]))

    start(peer.told_changes, tell)
    with suppress(Gone):
        peer.scenario.greet(wire)
    while line := sys.stdin.buffer.readline(LARGEST_REQUEST):
        message = json.loads(line)
        if message.get("method") == LISTEN:
            peer.note(
                method=LISTEN, params=message.get("params", {}), id=message["id"], era="modern", headers={}
            )
            subscription.append(message["id"])
            with suppress(Gone):
                wire.send(acknowledged(message))
            continue
        start(peer.handle, message, wire)
    if peer.scenario.control.get("stubborn"):
        time.sleep(LONGEST_WAIT)


def serve_http(peer: Peer, port: int) -> None:
    """Answer POSTs at `/mcp` on the loopback, and keep the streams on which changes are told."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", "0"))
            message: Json = json.loads(self.rfile.read(min(size, LARGEST_REQUEST)))
            if message.get("method") == LISTEN:
                peer.note(
                    method=LISTEN,
                    params=message.get("params", {}),
                    id=message["id"],
                    era="modern",
                    headers={},
                )
                self._stream(acknowledged(message), message["id"])
                return
            as_events = bool(peer.scenario.control.get("events"))
            session = {"Mcp-Session-Id": "s-1"} if message.get("method") == "initialize" else {}
            wire = BodyWire(self, headers=session, as_events=as_events)
            peer.handle(message, wire, {name.lower(): value for name, value in self.headers.items()})
            if message.get("id") is None:
                self._nothing(202)

        def do_GET(self) -> None:
            self._stream(b"", None)

        def do_DELETE(self) -> None:
            self._nothing(200)

        def _nothing(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _stream(self, first: bytes, subscription: Any) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            if first:
                self._event(first)
            self.wfile.flush()
            peer.told_changes(lambda: self._event(list_changed(peer.scenario, subscription)))

        def _event(self, message: bytes) -> None:
            try:
                self.wfile.write(b"event: message\ndata: " + message + b"\n\n")
                self.wfile.flush()
            except OSError:
                raise Gone from None

        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet: what matters is in the log file."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Stay quiet when a host leaves in the middle of something."""

    with Server(("127.0.0.1", port), Handler) as server:
        peer.note(url=f"http://127.0.0.1:{server.server_address[1]}/mcp")
        server.serve_forever(poll_interval=_POLL)


def start(work: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=work, args=args, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="both")
    parser.add_argument("--port", type=int, default=0)
    transport = parser.add_mutually_exclusive_group(required=True)
    transport.add_argument("--stdio", action="store_true")
    transport.add_argument("--http", action="store_true")
    options = parser.parse_args()
    peer = Peer(SCENARIOS[options.scenario](options.era), options.folder)
    peer.note(started=options.scenario)
    start(peer.watch)
    if options.stdio:
        serve_pipes(peer)
    else:
        serve_http(peer, options.port)


if __name__ == "__main__":
    main()
