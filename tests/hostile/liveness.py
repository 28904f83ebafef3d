"""Scenarios that never end, never begin, or end too early (attacks 53 to 57, 60)."""

from collections.abc import Iterator
from typing import Any

from hostile.catalog import DESCRIPTION, SKILL_FILE, Json, Published, digest, refunds, reports, skill
from hostile.honest import Call, Honest
from hostile.integrity import MARK
from hostile.wire import BodyWire, Wire, encoded

MAX_FILES = 512
MAX_BYTES = 16_777_216


class EndlessListing(Honest):
    """Has always one more page. Attack 53."""

    def list_skills(self, call: Call) -> Json:
        number = self.count("pages")
        first = [skill.entry for skill in self.listed()] if call.params.get("cursor") is None else []
        more = [skill(f"acme/more-{number}").entry]
        forms: dict[str, Json] = {
            "fresh": {"skills": [*first, *more], "nextCursor": f"c-{number}"},
            "same": {"skills": first, "nextCursor": "c"},
            "cycle": {"skills": first, "nextCursor": f"c-{number % 3}"},
            "empty": {"skills": first, "nextCursor": f"c-{number}"},
            "own-cursor": {"skills": first, "nextCursor": call.params.get("cursor") or "c"},
            "blank": {"skills": first, "nextCursor": ""},
            "number": {"skills": first, "nextCursor": 7},
            "long": {"skills": first, "nextCursor": "c" * 100_000},
        }
        return forms[self.form]


class EndlessDirectory(Honest):
    """Has always one more page of a directory. Attack 53."""

    def read_directory(self, call: Call) -> Json:
        return {"resources": [], "nextCursor": f"c-{self.count('pages')}"}


class HugeListing(Honest):
    """Lists as many skills as the test says, `page` at a time. Attack 54."""

    def skills(self) -> list[Published]:
        return [refunds(), reports()]

    def list_skills(self, call: Call) -> Json:
        count, size = int(self.control.get("entries", 100_000)), int(self.control.get("page", 1000))
        start = int(str(call.params.get("cursor") or "0"))
        entries = [_small_entry(number) for number in range(start, min(count, start + size))]
        return {"skills": entries} | ({"nextCursor": str(start + size)} if start + size < count else {})


class HugeMessage(Honest):
    """Answers `at` with one message of so many `bytes`, sent as fast as the host takes it. Attack 54."""

    def deliver(self, call: Call, message: Json, wire: Wire) -> None:
        if call.method != self.control.get("at", "skills/list"):
            return super().deliver(call, message, wire)
        whole = encoded(message)
        wire.pour(_padded(whole, int(self.control.get("bytes", 200_000_000))))


class Slow(Honest):
    """Answers one method, `at`, late, in drops, or not at all. Attack 56."""

    def deliver(self, call: Call, message: Json, wire: Wire) -> None:
        if call.method != self.control.get("at", "skills/list") or self.control.get("quick"):
            return super().deliver(call, message, wire)
        if self.form == "silent":
            wire.hang()
        elif self.form == "drops":
            wire.pour((bytes([byte]) for byte in encoded(message)), pause=0.2)
        elif self.form == "comments" and isinstance(wire, BodyWire):
            wire.pour(_nothing(), pause=0.1)


class Leaves(Honest):
    """Ends the connection instead of answering `at`, unless `stay` is said. Attack 57."""

    def deliver(self, call: Call, message: Json, wire: Wire) -> None:
        if call.method != self.control.get("at", "skills/list") or self.control.get("stay"):
            return super().deliver(call, message, wire)
        if self.form == "half" and isinstance(wire, BodyWire):
            wire.pour([encoded(message)[:20]])
        wire.cut()


class Floods(Honest):
    """Sends messages nobody asked for before it answers `at`. Attacks 54 and 57."""

    def deliver(self, call: Call, message: Json, wire: Wire) -> None:
        if call.method == self.control.get("at", "skills/list") and not isinstance(wire, BodyWire):
            for number in range(int(self.control.get("messages", 100_000))):
                wire.send(encoded(self._noise(number)))
        super().deliver(call, message, wire)

    def _noise(self, number: int) -> Json:
        head: Json = {"jsonrpc": "2.0"}
        forms: dict[str, Json] = {
            "log": {"method": "notifications/message", "params": {"level": "info", "data": MARK}},
            "answers": {"id": 1_000_000 + number, "result": {"skills": []}},
            "changes": {"method": "notifications/resources/list_changed"},
            "questions": {"id": f"q-{number}", "method": "ping"},
        }
        return head | forms[self.form or "log"]


class AsksBack(Honest):
    """Asks the host to sample, to elicit and for its folders before it answers a listing."""

    def deliver(self, call: Call, message: Json, wire: Wire) -> None:
        if call.method == "skills/list" and not isinstance(wire, BodyWire):
            for number, method in enumerate(("sampling/createMessage", "elicitation/create", "roots/list")):
                wire.send(encoded({"jsonrpc": "2.0", "id": f"back-{number}", "method": method, "params": {}}))
        super().deliver(call, message, wire)


class WantsInput(Honest):
    """Answers `at` with a request for input, whatever it is given."""

    def answer(self, call: Call) -> Json:
        answer = super().answer(call)
        if call.method != self.control.get("at", "skills/list"):
            return answer
        return {**answer, "resultType": "input_required", "inputRequests": {}, "requestState": MARK}


class NotJson(Honest):
    """Answers `at` with something that is no message."""

    def deliver(self, call: Call, message: Json, wire: Wire) -> None:
        if call.method != self.control.get("at", "skills/list"):
            return super().deliver(call, message, wire)
        forms: dict[str, bytes] = {
            "words": b"Welcome to the server!",
            "half": encoded(message)[:-9],
            "deep": b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            "other-id": encoded({**message, "id": 987_654}),
            "list": encoded([message]),
            "bytes": b"\xff\xfe\x00" + encoded(message),
            "surrogate": encoded(message).replace(b"Handles", b"\\ud800"),
            "both": encoded({**message, "error": {"code": -1, "message": MARK}}),
            "result-is-list": encoded({**message, "result": []}),
            "result-is-text": encoded({**message, "result": MARK}),
        }
        wire.send(forms[self.form])


class Redirects(Honest):
    """Sends every POST of `at` elsewhere, to `target`."""

    def deliver(self, call: Call, message: Json, wire: Wire) -> None:
        if call.method == self.control.get("at", "skills/list") and isinstance(wire, BodyWire):
            wire.redirect(str(self.control["target"]))
        else:
            super().deliver(call, message, wire)


class OddTtl(Honest):
    """Gives lifetimes and scopes that are none. Attack 60."""

    def answer(self, call: Call) -> Json:
        forms: dict[str, Json] = {
            "zero": {"ttlMs": 0},
            "eternal": {"ttlMs": 10**18},
            "negative": {"ttlMs": -5},
            "beyond": {"ttlMs": 10**400},
            "not-a-number": {"ttlMs": float("nan")},
            "infinite": {"ttlMs": float("inf")},
            "text": {"ttlMs": "60000"},
            "true": {"ttlMs": True},
            "half": {"ttlMs": 0.5},
            "null": {"ttlMs": None},
            "scope": {"cacheScope": "everyone"},
            "scope-number": {"cacheScope": 7},
        }
        answer = super().answer(call)
        return answer | forms[self.form] if call.method.startswith("skills/") else answer


class AtTheLimit(Honest):
    """Publishes a skill as large as one may be, or a little larger. Attack 55."""

    def skills(self) -> list[Published]:
        over = 1 if self.form.endswith("-over") else 0
        if self.form.startswith("files"):
            count = MAX_FILES + over - 1
            files = {f"data/{number:03}.txt": b"%d\n" % number for number in range(count)}
            return [skill("acme/refunds", description=DESCRIPTION, files=files), reports()]
        made = skill("acme/refunds", description=DESCRIPTION)
        rest = MAX_BYTES + over - len(made.files[SKILL_FILE])
        return [made.changing({"data/all.bin": b"a" * rest}), reports()]


class Claims(Honest):
    """Claims so many files or bytes that nobody could hold them; nothing of it exists. Attack 55."""

    def skills(self) -> list[Published]:
        true = refunds()
        lines: list[Any] = list(true.resources)
        if self.form == "bytes":
            lines[0] = {**lines[0], "size": 2**53 - 1}
        elif self.form == "beyond":
            lines[0] = {**lines[0], "size": 2**80}
        else:
            lines += [
                {"uri": f"{true.root}/data/{number}", "digest": digest(b""), "size": 0}
                for number in range(int(self.control.get("files", 5000)))
            ]
        return [true.claiming(resources=lines), reports()]


def _small_entry(number: int) -> Json:
    name = f"skill-{number}"
    uri = f"skill://crowd/{name}/{SKILL_FILE}"
    frontmatter = {"name": name, "description": "One of many. Use never."}
    return {
        "uri": uri,
        "frontmatter": frontmatter,
        "resources": [{"uri": uri, "digest": digest(b""), "size": 0}],
    }


def _padded(message: bytes, size: int) -> Iterator[bytes]:
    """Give a message piece by piece, with blanks before its last brace until it has `size` bytes."""
    piece = b" " * 65_536
    yield message[:-1]
    for _ in range((size - len(message)) // len(piece)):
        yield piece
    yield b"}"


def _nothing() -> Iterator[bytes]:
    """Give blanks for ever: a body that is alive and says nothing."""
    while True:
        yield b"\n"
