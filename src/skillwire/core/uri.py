"""Skill URIs and paths of files: one canonical spelling, and dangerous ones refused.

A resource URI has the form `scheme://segment/segment/…`. The first segment
is where other schemes have a host name, but it is only a name: it is never
resolved, lower-cased or otherwise interpreted, which is why no URL library is
used here. Two spellings that decode to the same segments mean the same
resource and share one canonical spelling.
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from skillwire.core.characters import quoted
from skillwire.core.errors import InvalidUriError
from skillwire.core.finding import SKILL_FILE, Finding

DEFAULT_SCHEME = "skill"
MAX_URI_LENGTH = 16_384
MAX_PLAIN_LENGTH = 4096

# Schemes that make a host read the local disk or run code; no skill may use them (URI-12).
UNSAFE_SCHEMES = frozenset(
    {"about", "blob", "data", "file", "filesystem", "javascript", "vbscript", "view-source"}
)

_SKILL_SUFFIX = "/" + SKILL_FILE
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Separators and control characters in UTF-8, where U+0080 to U+009F take two bytes.
_HARMFUL = re.compile(rb"[\x00-\x1f\x7f/\\]|\xc2[\x80-\x9f]")
_MAX_DECODINGS = 8
# RFC 3986: pchar in a path segment, reg-name in the first one.
_AUTHORITY_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=")
_SEGMENT_SAFE = _AUTHORITY_SAFE | frozenset(b":@")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_PLAIN_SEGMENT = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=:@]+")
# Already canonical: unreserved characters only, so nothing needs decoding or encoding.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9\-_~][A-Za-z0-9\-._~]*(?:/[A-Za-z0-9\-_~][A-Za-z0-9\-._~]*)*")
_PLAIN_PATHS = re.compile(rf"{_PLAIN_PATH.pattern}(?:\n{_PLAIN_PATH.pattern})*")
_PLAIN_URI = re.compile(rf"[a-z][a-z0-9+.\-]*://{_PLAIN_PATH.pattern}")


@dataclass(frozen=True, slots=True)
class SkillUri:
    """The URI of a skill's `SKILL.md`, in canonical spelling.

    The text is the identity: two values are equal when they name the same
    resource. Use `parse` for an untrusted URI and `build` for a path of your
    own. `spelling` keeps the text that was parsed, because some servers accept
    only the spelling they published.
    """

    text: str
    spelling: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> "SkillUri":
        """Parse the URI of a `SKILL.md`.

        Raises:
            InvalidUriError: The URI is malformed, dangerous, or names something else.
        """
        canonical = canonical_uri(text)
        if not canonical.endswith(_SKILL_SUFFIX):
            raise InvalidUriError(f"{quoted(text)} is not the URI of a {SKILL_FILE}")
        if canonical.count("/") < 3:
            raise InvalidUriError(f"{quoted(text)} has no skill path before {SKILL_FILE}")
        return cls(canonical, text)

    @classmethod
    def build(cls, path: str, *, scheme: str = DEFAULT_SCHEME) -> "SkillUri":
        """Build the URI of the skill at `path`, such as `acme/billing/refunds`.

        Raises:
            InvalidUriError: A segment of the path cannot be part of a URI, or the URI is too long.
        """
        if _PLAIN_PATH.fullmatch(path):
            return cls(_bounded(f"{_checked_scheme(scheme)}://{path}/{SKILL_FILE}"))
        segments = path.split("/")
        for segment in segments:
            check_segment(segment)
        return cls(compose_uri(_checked_scheme(scheme), [*segments, SKILL_FILE]))

    @property
    def root(self) -> str:
        """The skill's directory: the URI without `/SKILL.md`, and no trailing slash."""
        return self.text.removesuffix(_SKILL_SUFFIX)

    @property
    def published(self) -> str:
        """The spelling to use in requests to the publisher of this skill."""
        return self.spelling or self.text

    @property
    def scheme(self) -> str:
        return self.text.partition(":")[0]

    @property
    def path(self) -> str:
        """The skill's path, decoded: `acme/billing/refunds`."""
        return "/".join(_decode(part) for part in self.root.split("/")[2:])

    @property
    def name(self) -> str:
        """The last segment of the path, which must equal the frontmatter's `name`."""
        return _decode(self.root.rpartition("/")[2])

    def join(self, path: str) -> str:
        """Return the URI of the file at `path` (decoded, `/`-separated) in this skill.

        Raises:
            InvalidUriError: The path is empty, absolute, leaves the skill, or is too long.
        """
        if not _PLAIN_PATH.fullmatch(path):
            path = "/".join(map(_encode, path.split("/")))
        return _bounded(f"{self.root}/{path}")

    def resolve(self, reference: str) -> str | None:
        """Resolve a relative reference in this skill's text to the URI of a file.

        None when the reference does not point to a file of this skill: it has
        a scheme, is absolute, leaves the root, is only a fragment, or is not a
        usable path (SEP-2640, "Reading").
        """
        target = re.split(r"[?#]", reference.strip(), maxsplit=1)[0]
        if not target or target.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.\-]*:", target):
            return None
        kept: list[str] = []
        try:
            for part in target.split("/"):
                segment = _decode(part)
                if segment == "..":
                    if not kept:
                        return None
                    kept.pop()
                elif segment not in ("", "."):
                    check_segment(segment)
                    kept.append(segment)
            return self.join("/".join(kept)) if kept else None
        except InvalidUriError:
            return None

    def contains(self, uri: str) -> bool:
        """Return whether `uri` names something inside this skill's directory."""
        try:
            return canonical_uri(uri).startswith(self.root + "/")
        except InvalidUriError:
            return False

    def relative_path(self, uri: str) -> str:
        """Return the path inside this skill, decoded, of the file at `uri`.

        Raises:
            InvalidUriError: The URI is malformed or outside this skill.
        """
        canonical, directory = canonical_uri(uri), self.text.removesuffix(_SKILL_SUFFIX) + "/"
        if not canonical.startswith(directory):
            raise InvalidUriError(f"{quoted(uri)} is not inside {quoted(self.root)}")
        rest = canonical[len(directory) :]
        return _decode(rest) if "%" in rest else rest

    def __str__(self) -> str:
        return self.text


def compose_uri(scheme: str, segments: Iterable[str]) -> str:
    """Return the canonical URI of decoded segments; the counterpart of `parse_uri`.

    Raises:
        InvalidUriError: A segment is not allowed, or the URI is too long.
    """
    authority, *path = segments
    return _bounded("/".join([f"{scheme}:/", _escape(authority, _AUTHORITY_SAFE), *map(_encode, path)]))


def canonical_uri(text: str) -> str:
    """Return the canonical spelling, which is used for every comparison of resource URIs.

    Raises:
        InvalidUriError: The URI is malformed or dangerous.
    """
    # A fast check for the common case: the URI is safe and already canonical.
    if (
        len(text) <= MAX_URI_LENGTH
        and _PLAIN_URI.fullmatch(text) is not None
        and not text.startswith(_UNSAFE_PREFIXES)
    ):
        return text
    return compose_uri(*parse_uri(text))


def segment_of(uri: str) -> str:
    """Return the last segment of a canonical URI, decoded."""
    return _decode(uri.rpartition("/")[2])


def are_plain(paths: Collection[str]) -> bool:
    """Return whether paths are short and need no escaping in a URI: a fast check for the common case."""
    joined = "\n".join(paths)
    return (
        _PLAIN_PATHS.fullmatch(joined) is not None
        # A path that contains a newline would count as two.
        and joined.count("\n") == len(paths) - 1
        and (len(joined) <= MAX_PLAIN_LENGTH or max(map(len, paths)) <= MAX_PLAIN_LENGTH)
    )


def parse_uri(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a resource URI into its scheme and decoded segments.

    Raises:
        InvalidUriError: The URI is malformed or dangerous.
    """
    scheme, separator, rest = _bounded(text).partition("://")
    if not separator:
        raise InvalidUriError(f"{quoted(text)} is not of the form scheme://path")
    scheme = _checked_scheme(scheme)
    if "?" in rest or "#" in rest:
        raise InvalidUriError(f"{quoted(text)} has a query or a fragment")
    authority, *path = rest.split("/")
    if "@" in authority or ":" in authority or "[" in authority or "]" in authority:
        raise InvalidUriError(
            f"{quoted(text)} has user information, a port or an address in its first segment"
        )
    segments = tuple(map(_decode, (authority, *path)))
    for segment in segments:
        check_segment(segment)
    return scheme, segments


def check_segment(segment: str) -> None:
    """Check that a decoded segment is safe, however often it is decoded again.

    Raises:
        InvalidUriError: It is empty, `.` or `..`, contains a separator, a
            control character or a lone surrogate, or is percent-encoded repeatedly.
    """
    if _PLAIN_SEGMENT.fullmatch(segment) and segment not in (".", ".."):
        return
    if not segment:
        raise InvalidUriError("a path has an empty segment")
    try:
        decoded = segment.encode()
    except UnicodeEncodeError:
        raise InvalidUriError(f"the path segment {quoted(segment)} is not valid Unicode text") from None
    for _ in range(_MAX_DECODINGS):
        if decoded in (b".", b".."):
            raise InvalidUriError(f"the path segment {quoted(segment)} is a relative path component")
        if _HARMFUL.search(decoded):
            raise InvalidUriError(
                f"the path segment {quoted(segment)} contains a separator or control character"
            )
        again = _unescape(decoded)
        if again == decoded:
            return
        decoded = again
    raise InvalidUriError(f"the path segment {quoted(segment)} is percent-encoded repeatedly")


@lru_cache(maxsize=64)
def _checked_scheme(scheme: str) -> str:
    if not _SCHEME.fullmatch(scheme):
        raise InvalidUriError(f"{quoted(scheme)} is not a URI scheme")
    scheme = scheme.lower()
    if scheme in UNSAFE_SCHEMES:
        raise InvalidUriError(f"the scheme {scheme!r} is not allowed for skills")
    return scheme


def _bounded(uri: str) -> str:
    if len(uri) > MAX_URI_LENGTH:
        raise InvalidUriError(f"{quoted(uri)} is longer than {MAX_URI_LENGTH} characters")
    return uri


def _encode(segment: str) -> str:
    check_segment(segment)
    return segment if _PLAIN_SEGMENT.fullmatch(segment) else _escape(segment, _SEGMENT_SAFE)


def _escape(segment: str, safe: frozenset[int]) -> str:
    return "".join(chr(byte) if byte in safe else f"%{byte:02X}" for byte in segment.encode())


def _unescape(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), text)


def _decode(part: str) -> str:
    if "%" not in part:
        return part
    if _BAD_ESCAPE.search(part):
        raise InvalidUriError(f"{quoted(part)} has an invalid percent-escape")
    try:
        return _unescape(part.encode()).decode("utf-8")
    except UnicodeError:
        raise InvalidUriError(f"{quoted(part)} does not decode to UTF-8 text") from None


_UNSAFE_PREFIXES = tuple(f"{scheme}://" for scheme in sorted(UNSAFE_SCHEMES))


# Paths of files inside a skill.


_RESERVED = r"(?i:(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?|.*[. ])"
_GENERATED = (
    r"(?:.*/)?(?:__pycache__|node_modules)/.*|.*\.(?:pyc|pyo|swp|swo|orig|rej)|.*~|(?:.*/)?Thumbs\.db"
)
# Matches whatever the two patterns above match, in many lowercase paths at once, one per line.
_NOTABLE = (
    r"(?m)(?:^|/)(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|/|$)|[. ](?:/|$)|~$"
    r"|__pycache__|node_modules|\.(?:pyc|pyo|swp|swo|orig|rej)$|thumbs\.db$"
)
# Cheap to search for: at least one of them is present whenever the pattern above matches.
_HINTS = (
    "con",
    "prn",
    "aux",
    "nul",
    "com",
    "lpt",
    "./",
    ".\n",
    "~\n",
    "__",
    "node_",
    ".pyc",
    ".pyo",
    ".sw",
    ".orig",
    ".rej",
    "thumbs",
)
_SKILL_FILE_FOLDED = SKILL_FILE.lower()
# A placeholder for the skill's own URI, to validate paths with.
_HERE = SkillUri.build("skill")


def path_findings(paths: Collection[str]) -> list[Finding]:
    """Check the paths of all files of a skill, `/`-separated and relative to its folder."""
    return [] if _all_ordinary(paths) else list(_findings_of_each(paths))


def fold_path(path: str) -> str:
    """Return a key that is equal for paths that some file systems treat as the same.

    This is Unicode's canonical caseless matching.
    """
    if path.isascii():
        return path.casefold()
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())


def as_text(path: str) -> str:
    """Return a path for display, with replacement characters for what is not valid Unicode."""
    try:
        raw = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = path.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "replace")


def folders_of(paths: Collection[str]) -> set[str]:
    """Return every parent folder of `paths`."""
    folders: set[str] = set()
    for path in paths:
        while "/" in path:
            path = path.rpartition("/")[0]
            folders.add(path)
    return folders


def _all_ordinary(paths: Collection[str]) -> bool:
    """Return whether all paths are free of findings: a fast check for the common case."""
    if not are_plain(paths):
        return False
    text = "\n".join(paths) + "\n"
    # Without capitals other than in SKILL.md, different paths stay different when case is ignored.
    rest = text.replace(f"{SKILL_FILE}\n", "", 1)
    if rest and (not rest.islower() or _SKILL_FILE_FOLDED in rest):
        return False
    if any(map(text.__contains__, _HINTS)) and re.search(_NOTABLE, text):
        return False
    return folders_of(paths).isdisjoint(paths)


def _findings_of_each(paths: Collection[str]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    folders = {fold_path(folder) for folder in folders_of(paths)}
    for path in sorted(paths):
        try:
            _HERE.join(path)
        except InvalidUriError as error:
            yield Finding("unusable-path", str(error), file=as_text(path), fix="rename the file")
            continue
        folded = fold_path(path)
        other = seen.setdefault(folded, path)
        if other != path:
            message = f"its path and {other!r} are the same on systems that ignore case or Unicode form"
            yield Finding("path-twins", message, file=path, fix="rename one of the two")
        elif folded in folders:
            message = "the same path is used for a file and for a folder"
            yield Finding("path-twins", message, file=path, fix="rename one of the two")
        if any(re.fullmatch(_RESERVED, segment) for segment in path.split("/")):
            message = "the name is reserved on Windows, so hosts there cannot store the file"
            yield Finding("reserved-path", message, file=path, fix="rename the file")
        if re.fullmatch(_GENERATED, path):
            message = "this looks generated; each change to it changes the manifest and revokes approvals"
            yield Finding("generated-file", message, file=path, fix="delete it from the skill's folder")


# Lookup of a requested file among those listed. A name is only compared, and never becomes a path.


Item = TypeVar("Item")


def last_segment(path: str) -> str:
    """Return the name of the file at `path`."""
    return path.rpartition("/")[2]


def stem_of(name: str) -> str:
    """Return a file name without its suffix; a name that is only a suffix is unchanged."""
    return name.rpartition(".")[0] or name


def matching(
    items: Iterable[Item],
    wanted: str,
    *,
    path_of: Callable[[Item], str],
    name_of: Callable[[Item], str] | None = None,
    aliases_of: Callable[[Item], Collection[str]] = lambda item: (),
) -> list[Item]:
    """Return the files that `wanted` matches: by name, or path, or stem or alias, in this order (EXEC-06).

    Only a single item is an unambiguous match. A step counts only when those
    before it matched nothing, so `plot.py` is never shadowed by another file's alias.
    """
    listed = list(items)
    names = [name_of(item) if name_of else last_segment(path_of(item)) for item in listed]
    for hits in (
        [item for item, name in zip(listed, names, strict=True) if name == wanted],
        [item for item in listed if path_of(item) == wanted],
    ):
        if hits:
            return hits
    return [
        item
        for item, name in zip(listed, names, strict=True)
        if stem_of(name) == wanted or wanted in aliases_of(item)
    ]
