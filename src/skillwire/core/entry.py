"""`SkillEntry`: what is published about a skill, and the checks that server and host share."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal, TypeAlias, cast

from skillwire.core.characters import quoted
from skillwire.core.errors import FrontmatterMismatchError, InvalidEntryError, InvalidUriError, LimitError
from skillwire.core.fields import (
    KNOWN_FIELDS,
    MAX_COMPATIBILITY,
    MAX_DESCRIPTION,
    RESERVED_METADATA_PREFIX,
    is_name,
    published_findings,
)
from skillwire.core.finding import SKILL_FILE, Finding
from skillwire.core.manifest import (
    MAX_JSON_SIZE,
    UNKNOWN_SIZE,
    Coverage,
    Manifest,
    ManifestFile,
    is_digest,
    size_findings,
)
from skillwire.core.media import ArchiveFormat
from skillwire.core.uri import (
    DEFAULT_SCHEME,
    MAX_PLAIN_LENGTH,
    MAX_URI_LENGTH,
    SkillUri,
    are_plain,
    canonical_uri,
)
from skillwire.core.yaml12 import MAX_DEPTH, MAX_NODES, NO_FIELDS, Frontmatter, JsonValue, unknown_fields

# A fast path for untrusted entries of the common form.


PlainEntry: TypeAlias = tuple[str, dict[str, JsonValue], Manifest]
"""The URI, frontmatter and manifest of a plain entry."""

_ENTRY_FIELDS = frozenset({"uri", "frontmatter", "resources"})
_LINE_FIELDS = ("uri", "digest", "size")
_START = f"{DEFAULT_SCHEME}://"
_NO_FIELDS: dict[str, JsonValue] = {}
_columns = itemgetter(*_LINE_FIELDS)
# Some of the words that state when to use a skill, as most descriptions have them.
_WHEN_WORDS = re.compile(r" (?:when|whenever|for|if|before|after|while|use) ")


def plain_entries(values: Iterable[Any]) -> list[PlainEntry | None]:
    """Parse entries that are plain; the others become None.

    A plain entry has a canonical URI that starts with `skill://`, plain
    frontmatter with the name in that URI, a plain manifest, and no other
    fields.
    """
    entries = list(map(_plain_entry, values))
    if _are_valid([entry for entry in entries if entry is not None]):
        return entries
    return [entry if entry is not None and _are_valid([entry]) else None for entry in entries]


def plain_manifest(base: str, lines: list[Any]) -> Manifest | None:
    """Parse `resources` if every line is complete, canonical and without other fields; else None.

    `base` is the skill's directory, canonical and with a slash.
    """
    if len(base) > MAX_URI_LENGTH - MAX_PLAIN_LENGTH:
        return None
    manifest = _manifest(base, lines)
    return manifest if manifest is not None and _are_valid_manifests([manifest]) else None


def _plain_entry(value: Any) -> PlainEntry | None:
    """Parse an entry that may be plain, without checking its paths, digests and sizes."""
    entry = cast("dict[str, Any]", value)
    if type(value) is not dict or entry.keys() != _ENTRY_FIELDS:
        return None
    uri, fields, lines = entry["uri"], entry["frontmatter"], entry["resources"]
    if (
        (type(uri), type(fields), type(lines)) == (str, dict, list)
        and uri.startswith(_START)
        and are_plain_fields(fields)
        and uri.endswith(f"/{fields['name']}/{SKILL_FILE}")
        and (manifest := _manifest(uri[: -len(SKILL_FILE)], lines)) is not None
    ):
        return uri, fields, manifest
    return None


def _are_valid(entries: Sequence[PlainEntry]) -> bool:
    """Return whether the URIs and manifests of all entries are valid, checked together."""
    return not entries or (
        are_plain([uri[len(_START) :] for uri, _, _ in entries])
        and _are_valid_manifests([manifest for _, _, manifest in entries])
    )


def _manifest(base: str, lines: list[Any]) -> Manifest | None:
    """Build a manifest, if every line has all columns and is inside `base`, each once."""
    if set(map(type, lines)) != {dict} or set(map(len, lines)) != {len(_LINE_FIELDS)}:
        return None
    try:
        uris, digests, sizes = zip(*map(_columns, lines), strict=True)
        joined = "\n".join(uris)
    except (KeyError, TypeError):  # A field is missing, or not a string.
        return None
    # A URI that does not start with `base` stays attached to a newline, which no plain path contains.
    before, *references = f"\n{joined}".split(f"\n{base}")
    ordered = sorted(set(references))
    if before or not len(ordered) == len(references) == len(lines) or SKILL_FILE not in references:
        return None
    if ordered != references:
        order = sorted(range(len(references)), key=references.__getitem__)
        digests = tuple([digests[place] for place in order])
        sizes = tuple([sizes[place] for place in order])
    return Manifest(base, tuple(ordered), digests, sizes)


def _are_valid_manifests(manifests: Sequence[Manifest]) -> bool:
    """Return whether manifests have plain paths, and valid digests and sizes."""
    sizes = [size for manifest in manifests for size in manifest.sizes]
    return (
        are_plain([reference for manifest in manifests for reference in manifest.references])
        and _are_digests([digest for manifest in manifests for digest in manifest.digests])
        and set(map(type, sizes)) == {int}
        and 0 <= min(sizes) <= max(sizes) <= MAX_JSON_SIZE
    )


def _are_digests(texts: Sequence[str]) -> bool:
    """Return whether all texts are SHA-256 digests in wire format."""
    try:
        # A text that contains a newline yields too many parts, or leaves the newline in one of them.
        before, *digits = "\n".join(("", *texts)).split("\nsha256:")
        is_hexadecimal = not "".join(digits).encode().translate(None, b"0123456789abcdef")
    except (TypeError, UnicodeEncodeError):  # One is not a string, or holds a lone surrogate.
        return False
    return is_hexadecimal and not before and len(digits) == len(texts) and set(map(len, digits)) == {64}


def are_plain_fields(fields: dict[Any, Any]) -> bool:
    """Return whether frontmatter and `metadata` hold only strings and have no findings."""
    if not fields.keys() <= KNOWN_FIELDS:
        return False
    top = dict(fields)
    inner = top.pop("metadata", _NO_FIELDS)
    if type(inner) is not dict:
        return False
    metadata = cast("dict[Any, Any]", inner)
    texts = [*top.values(), *metadata, *metadata.values()]
    try:
        joined = "\n".join(texts)
        joined.encode()
    except (TypeError, UnicodeEncodeError):  # A value is not a string, or holds a lone surrogate.
        return False
    name, description = top.get("name", ""), top.get("description", "")
    return (
        is_name(name)
        and (" when " in description or _WHEN_WORDS.search(description) is not None)
        and len(description) <= MAX_DESCRIPTION
        and 1 <= len(top.get("compatibility", "-")) <= MAX_COMPATIBILITY
        and RESERVED_METADATA_PREFIX not in joined
        and 2 * len(texts) < MAX_NODES
    )


DYNAMIC: Literal["dynamic"] = "dynamic"

JsonObject: TypeAlias = dict[str, JsonValue]

_FIRST_SEGMENT = re.compile(r"[a-z0-9._-]+")
_MAX_MESSAGES = 10
_RESOURCE_FIELDS = frozenset({"uri", "digest", "size"})


@dataclass(frozen=True, slots=True)
class SkillEntry:
    """The published entry of a skill: its URI, frontmatter and manifest.

    `manifest` is None for a dynamic skill, whose content is generated when it is
    read, so that there are no digests; `dynamic_files` are then the URIs of the
    files its source knows of, which are not published. `extra` keeps fields of
    the wire this version does not know, so that a relay passes them on.
    `is_summary` means that the publisher sent only some fields of the frontmatter,
    as in dialects whose listings have only a name and a description.
    `unpacked` are the files of the archive that the manifest covers.
    """

    uri: SkillUri
    frontmatter: Frontmatter
    manifest: Manifest | None
    extra: Mapping[str, JsonValue] = field(default_factory=lambda: NO_FIELDS)
    dynamic_files: tuple[str, ...] = ()
    is_summary: bool = False
    unpacked: Manifest | None = None

    @property
    def name(self) -> str:
        return self.frontmatter.name

    @property
    def is_dynamic(self) -> bool:
        return self.manifest is None

    @property
    def coverage(self) -> Coverage | None:
        """The coverage of the manifest; None when there is none."""
        return None if self.manifest is None else self.manifest.coverage

    @property
    def files(self) -> Manifest | None:
        """All files of the skill with their digests, where known: listed, or unpacked."""
        if self.unpacked is not None:
            return self.unpacked
        return self.manifest if self.coverage is Coverage.FILES else None

    def check_limits(self) -> None:
        """Check both limits of the extension from the entry alone, before anything is fetched.

        Raises:
            LimitError: The skill has too many files, or they are too large together.
        """
        if self.manifest is None:
            return
        for finding in size_findings(len(self.manifest.references), self.manifest.total_size):
            raise LimitError(finding.message, fix=finding.fix)

    def to_json(self) -> JsonObject:
        """Return the entry as `skills/list` and `skills/get` carry it."""
        resources: JsonValue = DYNAMIC
        if self.manifest is not None:
            resources = [
                {"uri": file.published, "digest": file.digest, **_size_of(file), **(file.extra or {})}
                for file in self.manifest.files
            ]
        return {
            "uri": self.uri.published,
            "frontmatter": dict(self.frontmatter.fields),
            "resources": resources,
            **self.extra,
        }


def parse_entry(value: object) -> SkillEntry:
    """Parse an untrusted entry.

    Warnings do not matter here: an entry is either within the extension's
    rules or it is not used.

    Raises:
        InvalidEntryError: It breaks a rule; the message names each one, or the first few.
    """
    entry, findings = check_entry(value)
    errors = [finding for finding in findings if finding.is_error]
    if entry is None or errors:
        messages = [finding.message for finding in errors[:_MAX_MESSAGES]]
        if len(errors) > len(messages):
            messages.append(f"and {len(errors) - len(messages)} more")
        raise InvalidEntryError("; ".join(messages))
    return entry


def check_entry(value: object, *, shortcuts: bool = True) -> tuple[SkillEntry | None, list[Finding]]:
    """Parse an untrusted entry and return it with all findings about it.

    The entry is None when it cannot be parsed. An entry with one finding of
    severity error must not be used. Findings quote little of the untrusted
    text. The result is the same without `shortcuts`, and takes longer.
    """
    if not isinstance(value, dict):
        return None, [_broken("entry-invalid", "the entry is not a JSON object")]
    raw = cast(Mapping[str, object], value)
    uri, findings = _check_uri(raw.get("uri"))
    frontmatter, field_problems = check_frontmatter(raw.get("frontmatter"), shortcuts=shortcuts)
    findings += field_problems
    if uri is None or frontmatter is None:
        return None, findings
    findings += name_findings(uri, frontmatter.name)
    resources = raw.get("resources")
    if resources == DYNAMIC:
        manifest = None
    else:
        manifest, resource_problems = _check_resources(uri, resources, shortcuts=shortcuts)
        findings += resource_problems
        if manifest is None:
            return None, findings
    return SkillEntry(uri, frontmatter, manifest, unknown_fields(raw, _ENTRY_FIELDS)), findings


def check_entries(values: Sequence[object]) -> Iterator[tuple[SkillEntry | None, list[Finding]]]:
    """Parse each entry as `check_entry` does; faster for many, because plain ones are checked together."""
    for value, plain in zip(values, plain_entries(values), strict=True):
        if plain is None:
            yield check_entry(value)
        else:
            uri, fields, manifest = plain
            yield SkillEntry(SkillUri(uri, uri), Frontmatter(fields), manifest, NO_FIELDS), []


def entry_findings(entry: SkillEntry) -> list[Finding]:
    """Check an entry of our own before it is published: fields, name, limits, first segment."""
    return [
        *published_findings(entry.frontmatter),
        *name_findings(entry.uri, entry.frontmatter.name),
        *segment_findings(entry.uri),
        *limit_findings(entry.manifest),
    ]


def segment_findings(uri: SkillUri) -> list[Finding]:
    """Check the first segment of a skill's path, which is where other URIs have a host name."""
    first = uri.root.split("/")[2]
    if _FIRST_SEGMENT.fullmatch(first):
        return []
    message = f"the first path segment {quoted(first)} is not a plain lowercase name"
    return [Finding("uri-first-segment", message, file="", fix="use a-z, 0-9, hyphens and dots")]


def limit_findings(manifest: Manifest | None) -> list[Finding]:
    """Check a manifest against both limits of the extension."""
    if manifest is None:
        return []
    return size_findings(len(manifest), manifest.total_size)


def _check_uri(value: object) -> tuple[SkillUri | None, list[Finding]]:
    if not isinstance(value, str):
        return None, [_broken("entry-invalid", "the entry has no `uri`")]
    try:
        return SkillUri.parse(value), []
    except InvalidUriError as error:
        return None, [_broken("uri-invalid", str(error))]


def name_findings(uri: SkillUri, name: str) -> list[Finding]:
    """Compare the last segment of a skill's path with the skill's name."""
    if uri.name == name:
        return []
    message = f"the path ends in {quoted(uri.name)} but the name is {quoted(name)}"
    return [_broken("uri-name-mismatch", message)]


def check_frontmatter(value: object, *, shortcuts: bool = True) -> tuple[Frontmatter | None, list[Finding]]:
    """Parse the frontmatter of an entry as `check_entry` does; None when no `SKILL.md` could contain it."""
    if not isinstance(value, dict):
        return None, [_broken("entry-invalid", "the entry has no `frontmatter` object")]
    fields = cast("dict[str, JsonValue]", value)
    if shortcuts and are_plain_fields(fields):
        return Frontmatter(fields), []
    problem = _frontmatter_problem(fields)
    if problem is not None:
        return None, [problem]
    frontmatter = Frontmatter(fields)
    return frontmatter, published_findings(frontmatter)


def _frontmatter_problem(fields: dict[str, JsonValue]) -> Finding | None:
    """Return why no `SKILL.md` could contain these fields, if so: its parser refuses the same (FMT-10)."""
    keys: list[object] = []
    leaves: list[JsonValue] = []
    nodes = 1
    opened: list[dict[str, JsonValue] | list[JsonValue]] = [fields]
    for _ in range(MAX_DEPTH):
        values: list[JsonValue] = []
        for collection in opened:
            if isinstance(collection, dict):
                keys += collection
                values += collection.values()
            else:
                values += collection
            if nodes + len(keys) + len(values) > MAX_NODES:
                return _broken("yaml-too-large", f"the frontmatter holds more than {MAX_NODES} values")
        nodes += len(values)
        leaves += [value for value in values if not isinstance(value, dict | list)]
        opened = [value for value in values if isinstance(value, dict | list)]
        if not opened:
            return _key_problem(keys) or _leaf_problem(leaves)
    return _broken("yaml-too-deep", f"the frontmatter nests deeper than {MAX_DEPTH} levels")


def _key_problem(keys: list[object]) -> Finding | None:
    if not all(isinstance(key, str) for key in keys):
        return _broken("yaml-non-string-key", "a key in the frontmatter is not a string")
    return _text_problem(cast("list[str]", keys))


def _leaf_problem(leaves: list[JsonValue]) -> Finding | None:
    for value in leaves:
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            return _broken("yaml-number", "the frontmatter holds an integer that does not fit into 64 bits")
        if isinstance(value, float) and not math.isfinite(value):
            return _broken("yaml-number", "the frontmatter holds a number that has no JSON form")
        if not isinstance(value, str | int | float | None):
            return _broken("entry-invalid", "the frontmatter holds a value that has no JSON form")
    return _text_problem([value for value in leaves if isinstance(value, str)])


def _text_problem(texts: list[str]) -> Finding | None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return _broken("yaml-syntax", "the frontmatter contains a lone surrogate")
    return None


def _check_resources(
    uri: SkillUri, value: object, *, shortcuts: bool
) -> tuple[Manifest | None, list[Finding]]:
    if not isinstance(value, list):
        return None, [_broken("resources-invalid", '`resources` is neither a list nor "dynamic"')]
    lines = cast(list[object], value)
    inside = uri.root + "/"
    if shortcuts and (manifest := plain_manifest(inside, lines)) is not None:
        return manifest, []
    files: dict[str, ManifestFile] = {}
    for line in lines:
        problem = _check_resource(line, inside, files)
        if problem is not None:
            return None, [problem]
    if uri.text not in files:
        return None, [_broken("resource-self-missing", f"`resources` does not list {quoted(uri.text)}")]
    return Manifest.of(files.values()), []


def _check_resource(item: object, inside: str, files: dict[str, ManifestFile]) -> Finding | None:
    """Add one line of `resources` to `files`, keyed by canonical URI, or return a finding."""
    if not isinstance(item, dict):
        return _broken("resource-invalid", "a line of `resources` is not an object")
    line = cast(Mapping[str, object], item)
    uri, digest, size = line.get("uri"), line.get("digest"), line.get("size")
    if not isinstance(uri, str):
        return _broken("resource-invalid", "a line of `resources` has no `uri`")
    try:
        canonical = canonical_uri(uri)
    except InvalidUriError as error:
        return _broken("uri-invalid", str(error))
    if not canonical.startswith(inside):
        return _broken("resource-outside", f"{quoted(canonical)} is outside the skill's directory")
    if canonical in files:
        return _broken("resource-invalid", f"{quoted(canonical)} is listed twice")
    if not isinstance(digest, str) or not is_digest(digest):
        return _broken("resource-invalid", f"{quoted(canonical)} has no well-formed sha256 digest")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_JSON_SIZE:
        return _broken("resource-invalid", f"{quoted(canonical)} has no size in bytes")
    extra = unknown_fields(line, _RESOURCE_FIELDS) or None
    spelling = "" if uri == canonical else uri
    files[canonical] = ManifestFile(canonical, digest, size, spelling, extra)
    return None


def _size_of(file: ManifestFile) -> JsonObject:
    return {} if file.known_size is None else {"size": file.size}


def _broken(code: str, message: str) -> Finding:
    return Finding(code, message, file="")


MEDIA_TYPE = "mimeType"
"""The key in the `extra` of an archive's line that holds its media type."""

_MOST_DIFFERENCES = 10


def archive_line(manifest: Manifest, uri: str) -> ManifestFile:
    """Return the line of the archive in the manifest of the skill at `uri`."""
    lines = manifest.files
    return next((line for line in lines if line.uri != uri), lines[0])


def packed_skill_file(manifest: Manifest, uri: str) -> ManifestFile | None:
    """Return the line of the `SKILL.md` inside an archive, if the server lists it too."""
    return manifest.find(uri) if len(manifest) > 1 else None


def archive_format(line: ManifestFile) -> ArchiveFormat | None:
    """Return an archive's format by its media type, else by its suffix; None if neither is known."""
    said = (line.extra or {}).get(MEDIA_TYPE)
    if isinstance(said, str):
        return ArchiveFormat.of_media_type(said)
    return ArchiveFormat.of_path(line.uri)


def files_with_digests(entry: SkillEntry) -> Manifest | None:
    """Return the known files of a skill that have digests; None if there are none.

    The files of an archive are unknown until it is unpacked.
    """
    if entry.files is not None:
        return entry.files
    return entry.manifest if entry.coverage is Coverage.SKILL_FILE else None


def has_digest(entry: SkillEntry, uri: str) -> bool:
    """Return whether the file at `uri` is covered by a digest."""
    return entry.coverage in (Coverage.FILES, Coverage.ARCHIVE) or (
        entry.coverage is Coverage.SKILL_FILE and uri == entry.uri.text
    )


def path_in(entry: SkillEntry, uri: str) -> str:
    """Return the path of a manifest line inside the skill, or the URI of an archive."""
    return entry.uri.relative_path(uri) if entry.uri.contains(uri) else uri


def frontmatter_differences(entry: SkillEntry, own: Frontmatter) -> tuple[str, ...]:
    """Return the names of the fields that differ between a file's frontmatter and the listing.

    If the listing has only some fields, only these are compared.
    """
    listed = entry.frontmatter.fields
    return tuple(
        name for name in entry.frontmatter.differences(own) if not entry.is_summary or name in listed
    )


def require_listed_frontmatter(entry: SkillEntry, own: Frontmatter) -> None:
    """Check that a file's frontmatter matches the listing.

    Raises:
        FrontmatterMismatchError: A field differs.
    """
    differences = frontmatter_differences(entry, own)
    if differences:
        raise FrontmatterMismatchError(
            f"the frontmatter of {entry.uri.text} differs from the listing: "
            f"{', '.join(quoted(name) for name in differences[:_MOST_DIFFERENCES])}",
            uri=entry.uri.text,
            differences=differences,
        )


def size_words(size: int | None) -> str:
    """Return a size as `1,234 bytes`, or `size unknown`."""
    return "size unknown" if size is None or size == UNKNOWN_SIZE else f"{size:,} bytes"


def total_words(manifest: Manifest) -> str:
    """Return the total size of all files, as far as it is listed."""
    if UNKNOWN_SIZE not in manifest.sizes:
        return f"{manifest.total_size:,} bytes"
    return f"at least {manifest.total_size:,} bytes" if manifest.total_size else "size unknown"


def coverage_words(manifest: Manifest | None, uri: str = "") -> str:
    """Return a clause about what the digests of the skill at `uri` cover."""
    if manifest is None:
        return "no digests"
    if manifest.coverage is Coverage.SKILL_FILE:
        return "only SKILL.md has a digest; other files are whatever the server sends"
    if manifest.coverage is Coverage.ARCHIVE:
        line = archive_line(manifest, uri)
        size = "" if line.known_size is None else f", {line.size:,} bytes"
        return f"one archive, digest {line.digest}{size}; its files are known when it is unpacked"
    count = len(manifest)
    return f"{'1 file' if count == 1 else f'{count:,} files'}, {total_words(manifest)}"
