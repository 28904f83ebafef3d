"""A model that follows a script, behind the three APIs that coding agents speak, on loopback.

Each step of a script is a call of a tool or a text, and may first do something
itself, as a user would in another window. A request that shows the tool that is
to be called takes one step; what else an agent asks a model for (titles, routes,
counts, lists of models) gets a harmless answer.
"""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

LARGEST = 16 * 1024 * 1024
MOST_REQUESTS = 200
AGAIN_SECONDS = 0.3
SMALL_TALK = "ok"
"""What is answered when it is not the script's turn."""
SEARCH = "tool_search"
"""Codex's tool that finds others."""
CODE = "exec"
"""Codex's tool that runs code in which other tools are functions."""


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One answer: a call of the tool whose name ends so, or a text.

    `first` is done before it is given. It is given again, a little later, as
    long as the result of the call has no `until` in it.
    """

    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    text: str = ""
    first: Callable[[], None] | None = None
    until: str = ""


@dataclass(frozen=True, slots=True)
class Shown:
    """What one request shows a model: texts by the place they are in, tools, and results of calls."""

    texts: tuple[tuple[str, str], ...]
    tools: Mapping[str, str]
    results: tuple[str, ...]

    def name_of(self, tool: str) -> str:
        """Return the name under which a tool is shown, or nothing when it is not; no tool is any tool."""
        return next((name for name in self.tools if name.endswith(tool)), "")


class ModelApi(ABC):
    """How requests of one API are read, and how an answer is written in it."""

    streaming = ""
    """The end of the paths that stream an answer."""

    @abstractmethod
    def read(self, request: Json) -> Shown:
        """Return what a request shows the model."""

    @abstractmethod
    def events(self, number: int, step: ScriptStep, name: str) -> list[Json]:
        """Return the events of the answer that is a step; `name` is the tool's, as it is shown."""

    def other(self, path: str) -> Json:
        """Return the answer to a request that is not for a stream."""
        return {"object": "list", "data": [], "models": []}


class ResponsesApi(ModelApi):
    """OpenAI's Responses API, with a namespace for each server's tools."""

    streaming = "/responses"

    def read(self, request: Json) -> Shown:
        texts: list[tuple[str, str]] = [("instructions", request.get("instructions", ""))]
        results: list[str] = []
        items = request.get("input", [])
        for item in items:
            if item["type"] == "message":
                texts.append((item["role"], _joined(item["content"])))
            elif item["type"].endswith("_call_output"):
                results.append(_joined(item["output"]))
        tools: dict[str, str] = {}
        for tool in [*request.get("tools", []), *(tool for item in items for tool in item.get("tools", []))]:
            name = tool.get("name", tool["type"])
            if tool["type"] != "namespace":
                tools[name] = tool.get("description", "")
                continue
            texts.append(("namespace", tool.get("description", "")))
            tools |= {f"{name}/{one['name']}": one.get("description", "") for one in tool["tools"]}
        return Shown(tuple(texts), tools, tuple(results))

    def events(self, number: int, step: ScriptStep, name: str) -> list[Json]:
        identifier = f"resp_{number}"
        namespace, _, bare = name.rpartition("/")
        call: Json = {"id": f"item_{number}", "call_id": f"call_{number}", "status": "completed"}
        if not step.tool:
            content = [{"type": "output_text", "text": step.text}]
            item: Json = {"type": "message", "id": f"item_{number}", "role": "assistant", "content": content}
        elif bare == SEARCH:
            item = call | {
                "type": "tool_search_call",
                "execution": "client",
                "arguments": dict(step.arguments),
            }
        elif bare == CODE:
            item = call | {"type": "custom_tool_call", "name": bare, "input": step.arguments["code"]}
        else:
            item = call | {
                "type": "function_call",
                "name": bare,
                "arguments": json.dumps(dict(step.arguments)),
            }
            item |= {"namespace": namespace} if namespace else {}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        return [
            {"type": "response.created", "response": {"id": identifier}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": identifier, "usage": usage}},
        ]


class GeminiApi(ModelApi):
    """Google's API, with parts in contents."""

    streaming = ":streamGenerateContent"

    def read(self, request: Json) -> Shown:
        texts = [("system", _parts(request.get("systemInstruction", {})))]
        results: list[str] = []
        for content in request.get("contents", []):
            texts.append((content["role"], _parts(content)))
            answered = [part["functionResponse"]["response"] for part in content["parts"] if _RESULT in part]
            results += ["\n".join(f"{key}: {value}" for key, value in one.items()) for one in answered]
        tools: dict[str, str] = {}
        for group in request.get("tools", []):
            for tool in group.get("functionDeclarations", []):
                tools[tool["name"]] = tool.get("description", "")
        return Shown(tuple(texts), tools, tuple(results))

    def events(self, number: int, step: ScriptStep, name: str) -> list[Json]:
        call = {"name": name, "args": dict(step.arguments), "id": f"call_{number}"}
        part: Json = {"functionCall": call} if step.tool else {"text": step.text}
        return [self._answer(part)]

    def other(self, path: str) -> Json:
        if path.endswith(":countTokens"):
            return {"totalTokens": 1}
        return self._answer({"text": json.dumps({"answer": SMALL_TALK})})

    @staticmethod
    def _answer(part: Json) -> Json:
        content = {"role": "model", "parts": [part]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage,
        }


class ChatApi(ModelApi):
    """OpenAI's chat completions, which many other providers speak too."""

    streaming = "/chat/completions"

    def read(self, request: Json) -> Shown:
        messages = request.get("messages", [])
        texts = [(one["role"], _joined(one["content"])) for one in messages if one["role"] != "tool"]
        results = [_joined(one["content"]) for one in messages if one["role"] == "tool"]
        functions = [tool["function"] for tool in request.get("tools", [])]
        tools = {one["name"]: one.get("description", "") for one in functions}
        return Shown(tuple(texts), tools, tuple(results))

    def events(self, number: int, step: ScriptStep, name: str) -> list[Json]:
        delta: Json = {"role": "assistant", "content": step.text}
        if step.tool:
            function = {"name": name, "arguments": json.dumps(dict(step.arguments))}
            call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
            delta = {"role": "assistant", "tool_calls": [call]}
        start = {"id": f"chat_{number}", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        end: Json = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if step.tool else "stop"}
        return [
            {**start, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**start, "choices": [end], "usage": usage},
        ]


@dataclass(slots=True)
class ModelServer:
    """Answers with the steps of a script, one after another, and keeps what it was shown for each."""

    api: ModelApi
    steps: Sequence[ScriptStep]
    url: str = ""
    shown: list[Shown] = field(default_factory=list[Shown])
    others: list[str] = field(default_factory=list[str])
    """The paths of the requests that took no step."""
    failures: list[str] = field(default_factory=list[str])
    _taken: int = 0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def stream(self, path: str, request: Json) -> list[Json]:
        """Return the events of the next answer."""
        shown = self.api.read(request)
        with self._turn:
            step, is_again = self._next(shown)
            if step is None:
                self.others.append(path)
                return self.api.events(MOST_REQUESTS + len(self.others), ScriptStep(text=SMALL_TALK), "")
            self.shown.append(shown)
            assert len(self.shown) < MOST_REQUESTS, f"nothing says {step.until!r}"
            if is_again:
                time.sleep(AGAIN_SECONDS)
            elif step.first is not None:
                step.first()
            return self.api.events(len(self.shown), step, shown.name_of(step.tool))

    def _next(self, shown: Shown) -> tuple[ScriptStep | None, bool]:
        """Return the step that a request takes, if any, and whether it took the one before, too."""
        before = self.steps[self._taken - 1] if self._taken else ScriptStep()
        is_again = before.until not in "".join(shown.results[-1:])
        step = before if is_again else next(iter(self.steps[self._taken :]), None)
        if step is None or not shown.name_of(step.tool):
            return None, False
        self._taken += not is_again
        return step, is_again

    def answer(self, path: str) -> Json:
        """Return the answer to any other request."""
        with self._turn:
            self.others.append(path)
        return self.api.other(path)


@contextmanager
def scripted_model(api: ModelApi, steps: Sequence[ScriptStep]) -> Generator[ModelServer]:
    """Run a model on a port of loopback until the block ends."""
    model = ModelServer(api, steps)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(json.dumps(model.answer(self.path)), "application/json")

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            assert length <= LARGEST and len(model.others) < MOST_REQUESTS
            body = self.rfile.read(length)
            path = self.path.partition("?")[0]
            if not path.endswith(model.api.streaming):
                self._send(json.dumps(model.answer(path)), "application/json")
                return
            try:
                events = model.stream(path, json.loads(body))
            except Exception as error:
                model.failures.append(f"{type(error).__name__}: {error}")
                raise
            lines = [_event(event) for event in events]
            self._send("".join(lines) + _END.get(type(model.api), ""), "text/event-stream")

        def _send(self, content: str, kind: str) -> None:
            data = content.encode()
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


_RESULT = "functionResponse"
_END: Mapping[type[ModelApi], str] = {ChatApi: "data: [DONE]\n\n"}


def _event(event: Json) -> str:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


def _parts(content: Json) -> str:
    return "\n".join(part["text"] for part in content.get("parts", []) if "text" in part)


def _joined(content: object) -> str:
    """Return a content as one text, whether it came as a text or as parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)  # pyright: ignore
    return ""
