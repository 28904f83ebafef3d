"""Skills with descriptions of a test's own, as a registry would know them, and views of them."""

from collections.abc import Iterable

from skillwire.core import Frontmatter
from skillwire.core.dialects import Dialect
from skillwire.core.entry import SkillEntry
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.host.model.naming import RegistryView, view_of
from skillwire.host.model.origin import KnownSkill, SkillId
from unit.host.known_skills import LOCAL, server


def described(
    name: str, description: str = "", *, label: str = "acme", path: str = "", **fields: JsonValue
) -> KnownSkill:
    """Make the record of a skill with this description; without a label it is a local one."""
    origin = server(label) if label else LOCAL
    uri = SkillUri.build(path or f"shop/{name}")
    given = {key.replace("_", "-"): value for key, value in fields.items()}
    frontmatter = Frontmatter({"name": name, "description": description, **given})
    reference = f"{label}/{name}" if label else name
    dialect = Dialect.CORE if label else Dialect.LOCAL
    return KnownSkill(SkillId(origin, uri.text), reference, SkillEntry(uri, frontmatter, None), dialect)


def view(*skills: KnownSkill, revision: int = 1, more: Iterable[KnownSkill] = ()) -> RegistryView:
    return view_of(revision, [*skills, *more], [], ())
