"""The walk of the official TypeScript client through a server, compared with the folder behind it."""

import json
from collections.abc import Sequence

from interop.serving import PAGE_SIZE, Endpoint
from interop.tools import Node
from interop.truth import Json, Truth, digest_of

REVISION = {"legacy": "2025-11-25", "modern": "2026-07-28"}

# Spellings of places that are not served: each is tried with every method that takes a URI.
NOWHERE = (
    "skill://gone/SKILL.md",
    "skill://gone",
    "skill://hello-world/gone.md",
    "skill://hello-world/SKILL.md/",
    "skill://hello-world/SKILL.md/x",
    "skill://hello-world/references/",
    "skill://hello-world/",
    "skill://hello-world//SKILL.md",
    "skill://hello-world/../../../etc/passwd",
    "skill://hello-world/%2e%2e/%2e%2e/etc/passwd",
    "skill://hello-world/..%2f..%2fetc%2fpasswd",
    "skill://hello-world/..%5c..%5cetc%5cpasswd",
    "skill://hello-world/..\\..\\etc\\passwd",
    "skill://hello-world%2fSKILL.md",
    "skill://hello-world/SKILL.md%00",
    "skill://hello-world/SKILL.md%",
    "skill://hello-world/SKILL.md?a=b",
    "skill:///etc/passwd",
    "skill://",
    "skill:hello-world/SKILL.md",
    "file:///etc/passwd",
    "/etc/passwd",
    "nonsense",
    "",
)

METHODS = ("skills/get", "resources/read", "resources/directory/read")

# What each method refuses although another serves it, and a cursor that no server gave out.
MISPLACED: Sequence[tuple[str, dict[str, str]]] = (
    ("skills/get", {"uri": "skill://sql-review"}),
    ("skills/get", {"uri": "skill://sql-review/references"}),
    ("skills/get", {"uri": "skill://sql-review/references/postgresql-locks.md"}),
    ("skills/get", {"uri": "skill://hello-world/SKILL.md#intro"}),
    ("skills/get", {}),
    ("resources/read", {"uri": "skill://sql-review"}),
    ("resources/read", {"uri": "skill://sql-review/references"}),
    ("resources/directory/read", {"uri": "skill://sql-review/SKILL.md"}),
    ("resources/directory/read", {"uri": "skill://sql-review/references/postgresql-locks.md"}),
    ("resources/directory/read", {"uri": "skill://sql-review/references/"}),
    ("resources/directory/read", {"uri": "skill://sql-review", "cursor": "nonsense"}),
    ("resources/directory/read", {}),
    ("skills/list", {"cursor": "nonsense"}),
    ("skills/list", {"cursor": ""}),
)

REFUSED: Sequence[tuple[str, dict[str, str]]] = (
    *((method, {"uri": uri}) for method in METHODS for uri in NOWHERE),
    *MISPLACED,
)


def walk(node: Node, endpoint: Endpoint, era: str, env: dict[str, str]) -> Json:
    """Let the client walk, and return its report."""
    refused = [{"method": method, "params": params} for method, params in REFUSED]
    where = {"url": endpoint.url} if endpoint.url else {"command": endpoint.command, "env": env}
    return node.json_of("client.mjs", json.dumps({"era": era, "refused": refused, **where}))


def differences(report: Json, truth: Truth, era: str) -> list[str]:
    """Say where a report differs from what the folder makes necessary."""
    told: dict[str, Json] = {
        "protocolVersion": report["protocolVersion"],
        "supported": report["supported"],
        "directoryRead": report["directoryRead"],
        "resources": "resources" in report["capabilities"],
        "entries": report["entries"],
        "got": report["got"],
        "listed": [uri for page in report["pages"] for uri in page["uris"]],
        "pages": [len(page["uris"]) for page in report["pages"]],
        "cache fields": [{"ttlMs", "cacheScope"} & page.keys() for page in report["pages"]],
        "files": {uri: told_of(file) for uri, file in report["files"].items()},
        "directories": {
            uri: {child["uri"]: child["mimeType"] == "inode/directory" for child in children}
            for uri, children in report["directories"].items()
        },
        "sizes": [size for children in report["directories"].values() for size in _sizes(children)],
        "media types": _disagreeing(report),
    }
    terms = {"ttlMs", "cacheScope"} if era == "modern" else set[str]()
    expected: dict[str, Json] = {
        "protocolVersion": REVISION[era],
        "supported": True,
        "directoryRead": True,
        "resources": True,
        "entries": truth.entries,
        "got": truth.entries,
        "listed": truth.uris,
        "pages": _pages(len(truth.uris)),
        "cache fields": [terms] * len(report["pages"]),
        "files": {
            uri: {
                "digest": digest_of(path.read_bytes()),
                "size": path.stat().st_size,
                "isText": truth.is_text(uri),
                "verified": True,
            }
            for uri, path in truth.files.items()
        },
        "directories": truth.directories,
        "sizes": [
            truth.files[child["uri"]].stat().st_size
            for children in report["directories"].values()
            for child in children
            if child["uri"] in truth.files
        ],
        "media types": [],
    }
    return [
        f"{what}: {told[what]!r} should be {expected[what]!r}"
        for what in expected
        if told[what] != expected[what]
    ]


def unrefused(report: Json, *, with_uri: bool) -> list[str]:
    """Say what was not refused as invalid parameters; with `with_uri`, also which refusal names no URI."""
    answers = zip(REFUSED, report["refusals"], strict=True)
    return [
        f"{method} {params}: {answer}"
        for (method, params), answer in answers
        if answer.get("code") != -32602
        or not answer["message"]
        or (with_uri and "uri" in params and "cursor" not in params and _uri_of(answer) != params["uri"])
    ]


def told_of(file: Json) -> Json:
    return {key: file[key] for key in ("digest", "size", "isText", "verified")}


def _uri_of(answer: Json) -> Json:
    return answer["data"] and answer["data"].get("uri")


def _pages(count: int) -> list[int]:
    full, rest = divmod(count, PAGE_SIZE)
    return [PAGE_SIZE] * full + [rest] * (rest > 0)


def _sizes(children: Json) -> list[int]:
    return [child["size"] for child in children if child["mimeType"] != "inode/directory"]


def _disagreeing(report: Json) -> list[str]:
    """Return the files whose media type is not the same in a directory, in the listing and when read."""
    described = [child for children in report["directories"].values() for child in children]
    described += [resource for page in report["resourcePages"] for resource in page]
    return [
        f"{resource['uri']}: {resource.get('mimeType')}"
        for resource in described
        if resource["uri"] in report["files"]
        and report["files"][resource["uri"]]["mimeType"] != resource.get("mimeType")
    ]
