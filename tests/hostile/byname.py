"""Servers that know skills by name, in three dialects; they are honest, and can be told to be odd."""

import base64
from collections.abc import Callable
from typing import ClassVar

from hostile.catalog import LOGO, POLICY, Json
from hostile.honest import EXTENSION, INVALID_PARAMS, Call, Honest, RpcError
from hostile.wire import Wire

CHANGED = "notifications/skills/list_changed"
NOTES = "file:///srv/inv/notes.md"
POLICY_URI = "skill://acme/billing/refunds/references/policy.md"
TOP = "---\nname: code-mode\ndescription: Another description.\nallowed-tools: Bash\n---\n\nUse code.\n"

Handler = Callable[[Call], Json]


class Primitive(Honest):
    """SEP-2076. `form` "undeclared" has the methods and no capability, "twins" lists a name twice."""

    change: ClassVar[str] = CHANGED

    def capabilities(self) -> Json:
        said: Json = {"resources": {"listChanged": True}, "tools": {}, "prompts": {}}
        return said if self.form == "undeclared" else {**said, "skills": {"listChanged": True}}

    def _handlers(self) -> dict[str, Handler]:
        return {
            **super()._handlers(),
            "prompts/list": lambda call: self.page(call, "prompts", [{"name": "greet"}]),
        }

    def list_resources(self, call: Call) -> Json:
        return {"resources": []}

    def list_tools(self, call: Call) -> Json:
        return {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}

    def items(self) -> list[Json]:
        needs = {"tools": ["pay", "refund"], "prompts": [{"type": "ref/prompt", "name": "bye"}]}
        refunds = {
            "name": "refunds",
            "title": "Refunds: all of them",
            "description": "Handles refunds. Use when a customer wants money back.",
            "version": "1.2",
            "tags": ["money", "customers"],
            "dependencies": needs,
        }
        reports = {"name": "acme/reports", "description": "Writes reports. Use when asked."}
        needy = {
            "name": "needy",
            "description": "Use in a region.",
            "arguments": [
                {"name": "region", "description": "Where it is.\n\x1b[2J", "required": True},
                {"name": "tone"},
            ],
        }
        found = [refunds, reports, needy]
        if self.form == "twins":
            found.append(reports)
        return [*found, {"name": "late", "description": "Use later."}] if self.version > 1 else found

    def list_skills(self, call: Call) -> Json:
        return self.page(call, "skills", self.items())

    def get_skill(self, call: Call) -> Json:
        name = str(call.params.get("name"))
        if name not in [item["name"] for item in self.items()] or name == self.control.get("gone"):
            raise RpcError(INVALID_PARAMS, f"Unknown skill: {name}")
        files = [
            {"name": "references/policy.md", "uri": POLICY_URI, "mimeType": "text/markdown"},
            {"name": "../../Notes, all", "uri": NOTES, "required": False},
        ]
        told = {"files": files} if name == "refunds" else {}
        if name == "needy":
            return self.made_of(call)
        return {"instructions": f"Steps of {name}, version {self.version}.\n", **told}

    def made_of(self, call: Call) -> Json:
        """Answer with a skill made out of arguments, one of whose files is another for each region."""
        given: Json = call.params.get("arguments") or {}
        if given.get("region") in (None, "nowhere"):
            raise RpcError(INVALID_PARAMS, "Missing or unusable argument: region")
        files = [{"name": "law.md", "uri": f"file:///srv/law/{given['region']}.md"}]
        return {
            "instructions": f"In {given['region']}, {given.get('tone', 'plainly')}.\n",
            "files": files,
        }

    def file(self, uri: str) -> bytes:
        if uri.startswith("file:///srv/law/"):
            return f"The law at {uri}.\n".encode()
        found = {NOTES: b"Notes.\n", POLICY_URI: POLICY}.get(uri)
        if found is None:
            raise RpcError(INVALID_PARAMS, f"Resource not found: {uri}")
        return found


class Executing(Honest):
    """The skills page. `form` "loud" says that there are no scripts, and "silent" does not say it.

    A script is answered for as it is said: with `result`, with an error `fails`, with so many `bytes`
    of text, or, if it `hangs`, never.
    """

    change: ClassVar[str] = CHANGED

    def capabilities(self) -> Json:
        scripts = {"": {"scripts": True}, "loud": {"scripts": False}}.get(self.form, {})
        return {"resources": {"listChanged": True}, "skills": {"listChanged": True, **scripts}}

    def _handlers(self) -> dict[str, Handler]:
        handlers: dict[str, Handler] = {
            **super()._handlers(),
            "skills/read": self.read_skill,
            "skills/read_reference": self.read_reference,
            "skills/execute": self.execute,
        }
        del handlers["skills/get"]
        return handlers

    def list_resources(self, call: Call) -> Json:
        return {"resources": []}

    def list_skills(self, call: Call) -> Json:
        charts = {
            "name": "charts",
            "description": "Makes charts. Use when asked to plot.",
            "title": "Charts",
            "keywords": ["plot"],
            "annotations": {"audience": ["assistant"], "priority": 0.7},
        }
        more = [{"name": "late", "description": "Use later."}] if self.version > 1 else []
        return self.page(call, "skills", [charts, *more])

    def read_skill(self, call: Call) -> Json:
        name = str(call.params.get("name"))
        if name != "charts" or self.control.get("gone"):
            raise RpcError(-32002, "Skill not found", {"name": name})
        return {
            "skill": {
                "name": name,
                "description": "Makes charts. Use when asked to plot.",
                "instructions": f"# Charts {self.version}\n\nRun scripts/plot.py.\n",
                "scripts": [{"name": "plot.py", "description": "Plots.", "path": "scripts/plot.py"}],
                "references": [
                    {"name": "styles.md", "description": "Styles.", "path": "references/styles.md"},
                    {"name": "lost.md", "description": "Lost.", "path": "references/lost.md"},
                    {"name": "escape.md", "description": "Out.", "path": "../../etc/passwd"},
                ],
                "assets": [{"name": "logo.png", "description": "Logo.", "path": "assets/logo.png"}],
                "metadata": {"version": "1"},
            }
        }

    def execute(self, call: Call) -> Json:
        if "fails" in self.control:
            raise RpcError(int(self.control["fails"]), str(self.control.get("words", "No luck")), {"a": 1})
        if "bytes" in self.control:
            return {"content": [{"type": "text", "text": "x" * int(self.control["bytes"])}]}
        return dict(
            self.control.get("result", {"content": [{"type": "text", "text": "ran"}], "isError": False})
        )

    def deliver(self, call: Call, message: Json, wire: Wire) -> None:
        if call.method == "skills/execute" and self.control.get("hangs"):
            return wire.hang()
        return super().deliver(call, message, wire)

    def read_reference(self, call: Call) -> Json:
        uri = "skill://charts/somewhere"
        match call.params.get("reference"):
            case "styles.md":
                return {"content": {"uri": uri, "mimeType": "text/markdown", "text": "Blue.\n"}}
            case "logo.png":
                return {"content": {"uri": uri, "blob": base64.b64encode(LOGO).decode()}}
            case other:
                raise RpcError(-32004, "Reference not found", {"reference": other})


class PromptOnly(Honest):
    """Skills as prompts and no other way. `form` "ordinary" declares no skills: its prompts are prompts."""

    def capabilities(self) -> Json:
        said: Json = {"prompts": {}}
        return said if self.form == "ordinary" else {**said, "extensions": {EXTENSION: {}}}

    def _handlers(self) -> dict[str, Handler]:
        kept = ("initialize", "server/discover", "ping")
        own = {"prompts/list": self.list_prompts, "prompts/get": self.get_prompt}
        return {name: handler for name, handler in super()._handlers().items() if name in kept} | own

    def list_prompts(self, call: Call) -> Json:
        prompts = [
            {"name": "start_code_mode", "title": "Code mode", "description": "Use to code."},
            {"name": "Plain", "description": "Use plainly."},
            {"name": "needy", "arguments": [{"name": "region", "required": True}, {"name": "tone"}]},
            {"name": "two", "description": "Use never."},
            {"name": "link", "description": "Use never."},
        ]
        return self.page(call, "prompts", prompts)

    def get_prompt(self, call: Call) -> Json:
        name = call.params.get("name")
        linked: Json = {"type": "resource_link", "uri": "skill://code-mode/SKILL.md", "name": "code-mode"}
        texts = {
            "start_code_mode": f"{TOP}\n--- references/a.md ---\nAbout a, {self.version}.\n",
            "Plain": "See skill://elsewhere/SKILL.md\n",
            "two": "One of two.",
        }
        given: Json = call.params.get("arguments") or {}
        if name == "needy" and given.get("region"):
            texts[name] = f"{TOP}In {given['region']}.\n\n--- law.md ---\nThe law of {given['region']}.\n"
        if name == "link":
            return {"messages": [{"role": "user", "content": linked}]}
        if name not in texts:
            raise RpcError(INVALID_PARAMS, "Unknown prompt")
        message = {"role": "user", "content": {"type": "text", "text": texts[name]}}
        return {"messages": [message] * (2 if name == "two" else 1)}
