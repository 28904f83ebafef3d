"""The APIs of two providers on loopback: they check a request as the real ones do, and play a script.

What they would not take is answered with status 400, so that the client
library raises. Beyond their rules, a request has to go on exactly where the
one before ended: that is what prompt caches need.
"""

import json
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias, cast

from jsonschema import Draft202012Validator

from interop.adapting import FILE_TOOL, SERVER_TOOL, Shop
from skillwire.host import Tool
from skillwire.host.use.tools import Arguments

Json: TypeAlias = dict[str, Any]

_LARGEST = 4 * 1024 * 1024
_NAMES = {"anthropic": r"[a-zA-Z0-9_-]{1,128}", "openai": r"[a-zA-Z0-9_-]{1,64}"}


class Objection(Exception):
    """Why a provider does not take a request."""


def require(condition: object, why: str) -> None:
    if not condition:
        raise Objection(why)


@dataclass(slots=True)
class Provider:
    """A running API: what it will say, what it was sent, and what it objected to."""

    kind: str
    turns: list[Json]
    url: str = ""
    requests: list[Json] = field(default_factory=list[Json])
    objections: list[str] = field(default_factory=list[str])
    said: list[Json] = field(default_factory=list[Json])
    meanwhile: Callable[[int], None] = lambda _number: None
    tools_may_change: bool = False

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Json]:
        try:
            request = json.loads(body)
            self._check(path, headers, request)
        except (Objection, ValueError) as error:
            self.objections.append(str(error))
            return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": str(error)}}
        self.requests.append(request)
        self.meanwhile(len(self.requests))
        turn = self.turns.pop(0) if self.turns else self.done()
        self.said.append(turn)
        return 200, self._whole(turn)

    def done(self) -> Json:
        """What the model says when the script is over."""
        if self.kind == "anthropic":
            return {"content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn"}
        return {"message": {"role": "assistant", "content": "done", "refusal": None}, "finish_reason": "stop"}

    def _whole(self, turn: Json) -> Json:
        usage = {"input_tokens": 1, "output_tokens": 1}
        if self.kind == "anthropic":
            about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted"}
            return {**about, "stop_sequence": None, "usage": usage, **turn}
        about = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted"}
        choices = turn.get("choices", [{"index": 0, "logprobs": None, **turn}])
        return {**about, "choices": choices}

    def _check(self, path: str, headers: Mapping[str, str], request: Json) -> None:
        if self.kind == "anthropic":
            require(path == "/v1/messages", f"no such path: {path}")
            require(headers.get("anthropic-version"), "anthropic-version: header is required")
            require(headers.get("x-api-key") or headers.get("authorization"), "who are you?")
            _check_anthropic(request)
        else:
            require(path == "/v1/chat/completions", f"no such path: {path}")
            require(headers.get("authorization", "").startswith("Bearer "), "who are you?")
            _check_openai(request)
        self._check_words(request["messages"])
        if self.requests:
            self._check_going_on(self.requests[-1], request)

    def _check_words(self, messages: Sequence[Json]) -> None:
        """Whatever is sent back as the model's has to be what the model said, to the last field."""
        for message in messages:
            if message["role"] != "assistant":
                continue
            if self.kind == "anthropic":
                known = [turn["content"] for turn in self.said]
                require(message["content"] in known, f"the model never said this: {message}")
            else:
                known = [_without_nothing(turn["message"]) for turn in self.said]
                require(_without_nothing(message) in known, f"the model never said this: {message}")

    def _check_going_on(self, before: Json, now: Json) -> None:
        for key in ("system", "model", *(() if self.tools_may_change else ("tools",))):
            require(json.dumps(before.get(key)) == json.dumps(now.get(key)), f"{key} is not as it was")
        start = now["messages"][: len(before["messages"])]
        require(json.dumps(start) == json.dumps(before["messages"]), "what was said before was changed")


@contextmanager
def provider(kind: str, *turns: Json) -> Generator[Provider]:
    """Run an API of a kind, `anthropic` or `openai`, that answers with these turns."""
    api = Provider(kind, list(turns))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            assert length <= _LARGEST
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer = api.answer(self.path, headers, self.rfile.read(length))
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def own_tools(shop: Shop) -> list[Tool]:
    """Return the two tools of an agent in front of an API: one writes a file, and one is of the server."""

    async def write(arguments: Arguments) -> str:
        return shop.notebook.write(str(arguments["text"]))

    async def refund(arguments: Arguments) -> str:
        return shop.create_refund(str(arguments["order"]))

    def schema(name: str) -> Json:
        return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}

    return [
        Tool(FILE_TOOL, "Write a note.", schema("text"), write),
        Tool(SERVER_TOOL, "Pay money back.", schema("order"), refund),
    ]


def blocks_of(message: Json) -> list[Json]:
    """Return the blocks of a message in Anthropic's format; one that is only a text has none."""
    content: object = message["content"]
    return cast("list[Json]", content) if isinstance(content, list) else []


def _check_anthropic(request: Json) -> None:
    require(isinstance(request.get("max_tokens"), int), "max_tokens: field required")
    require("system" not in request or request["system"], "system: text must not be empty")
    for tool in request.get("tools", []):
        if "input_schema" in tool:
            _check_tool(tool["name"], tool["description"], tool["input_schema"], "anthropic")
    _check_distinct([tool["name"] for tool in request.get("tools", [])])
    messages = request["messages"]
    require(messages and messages[0]["role"] == "user", "messages: first must be of the user")
    waiting: list[str] = []
    for message in messages:
        require(message["content"], "messages: all must have content")
        blocks = blocks_of(message)
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        require(answered == waiting, f"tool_use {waiting} needs results right after it, not {answered}")
        kinds = [block["type"] for block in blocks]
        require("tool_result" not in kinds[len(answered) :], "results come before other content")
        for block in blocks:
            require(block["type"] != "text" or block["text"], "text blocks must not be empty")
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        require(not waiting or message["role"] == "assistant", "only the model calls tools")
    require(not waiting, f"tool_use {waiting} needs results")


def _check_openai(request: Json) -> None:
    for tool in request.get("tools", []):
        if tool["type"] == "function":
            function = tool["function"]
            _check_tool(function["name"], function["description"], function["parameters"], "openai")
    named = [tool["function"]["name"] for tool in request.get("tools", []) if tool["type"] == "function"]
    _check_distinct(named)
    require(request["messages"], "messages: empty")
    waiting: list[str] = []
    for message in request["messages"]:
        role = message["role"]
        if role == "tool":
            require(waiting and message["tool_call_id"] == waiting.pop(0), "a result nobody waits for")
            require(isinstance(message["content"], str), "a result needs content")
            continue
        require(not waiting, f"tool calls {waiting} need results right after them")
        require(role in ("system", "developer", "user", "assistant"), f"no such role: {role}")
        if role == "assistant":
            require("tool_calls" not in message or message["tool_calls"], "tool_calls: too short")
            spoken = message.get("content") is not None or message.get("refusal") is not None
            require(spoken or message.get("tool_calls"), "content: needed without tool calls")
            waiting = [call["id"] for call in message.get("tool_calls", [])]
        else:
            require(message["content"], "content: empty")
    require(not waiting, f"tool calls {waiting} need results")


def _check_tool(name: str, description: str, schema: Json, kind: str) -> None:
    require(re.fullmatch(_NAMES[kind], name), f"no name for a tool: {name}")
    require(description, "a tool needs a description")
    require(schema.get("type") == "object", "a tool takes an object")
    Draft202012Validator.check_schema(schema)


def _check_distinct(names: Sequence[str]) -> None:
    require(len(set(names)) == len(names), "tool names must be unique")


def _without_nothing(message: Json) -> Json:
    return {key: value for key, value in message.items() if value not in (None, [], "")}
