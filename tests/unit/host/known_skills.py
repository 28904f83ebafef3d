"""Skills as a registry would know them, for tests that need no server."""

from collections.abc import Mapping

from skillwire.core.dialects import Dialect
from skillwire.core.entry import SkillEntry
from skillwire.core.frontmatter import SkillDocument, parse_skill_md
from skillwire.core.manifest import Manifest, ManifestFile
from skillwire.core.uri import SkillUri
from skillwire.host.model.origin import KnownSkill, Origin, OriginKind, SkillId

SKILL_MD = "---\nname: {name}\ndescription: Refunds an order. Use when a customer asks.\n{extra}---\n{body}"


def server(label: str = "acme", *, endpoint: str = "a") -> Origin:
    return Origin(OriginKind.SERVER, label, f"sha256:{endpoint * 64}")


def skill_md(name: str = "refunds", *, body: str = "Do it.\n", extra: str = "") -> bytes:
    return SKILL_MD.format(name=name, body=body, extra=extra).encode()


def known(
    name: str = "refunds",
    *,
    origin: Origin | None = None,
    body: str = "Do it.\n",
    extra: str = "",
    files: Mapping[str, bytes] | None = None,
    is_dynamic: bool = False,
    offline_since: str | None = None,
) -> KnownSkill:
    """Make the record of a skill with these files."""
    place = origin or server()
    uri = SkillUri.build(f"shop/{name}")
    content = skill_md(name, body=body, extra=extra)
    lines = [ManifestFile.of(uri.text, content)]
    lines += [ManifestFile.of(uri.join(path), data) for path, data in (files or {}).items()]
    manifest = None if is_dynamic else Manifest.of(lines)
    entry = SkillEntry(uri, parse_skill_md(content).frontmatter, manifest)
    reference = f"{place.label}/{name}" if place.is_remote else name
    return KnownSkill(
        SkillId(place, uri.text),
        reference,
        entry,
        dialect=Dialect.CORE if place.is_remote else Dialect.LOCAL,
        offline_since=offline_since,
    )


def document(name: str = "refunds", *, body: str = "Do it.\n") -> SkillDocument:
    return parse_skill_md(skill_md(name, body=body))


LOCAL = Origin(OriginKind.LOCAL, "user", "sha256:" + "f" * 64)
