"""What servers of other generations say about skills: read without a fault, and written back as it was."""

import base64
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

from fuzz.properties import json_of, require_fit, require_fit_findings
from skillwire.core import Frontmatter
from skillwire.core.errors import InvalidEntryError
from skillwire.core.fields import needs_in
from skillwire.core.finding import Finding
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.wire import by_name, execute
from skillwire.wire.by_name import declarations_in
from skillwire.wire.execute import parse_execution_result
from skillwire.wire.index import index_shape, parse_april_entry, parse_june_entry
from skillwire.wire.resources import ListedResource, parse_file_list, parse_resource, skills_among


class _Written(Protocol):
    def to_json(self) -> dict[str, Any]: ...


Reader: TypeAlias = Callable[[object], tuple[_Written | None, list[Finding]]]

_READERS: Mapping[str, Reader] = {
    "june": parse_june_entry,
    "april": parse_april_entry,
    "primitive item": by_name.parse_item,
    "primitive definition": by_name.parse_definition,
    "execution item": execute.parse_item,
}
_SKILL = SkillUri.build("acme/tea")


def check(data: bytes) -> None:
    _check_file_list(data)
    value, is_json = json_of(data)
    if not is_json:
        return
    index_shape(value)
    for name, reader in _READERS.items():
        found, findings = reader(value)
        require_fit_findings(findings)
        if found is not None:
            again, _ = reader(found.to_json())
            assert again == found, name
        else:
            assert findings, name
    _check_answers(value)
    _check_listing(value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in cast("dict[Any, Any]", value)):
        _check_frontmatter(Frontmatter(cast("dict[str, Any]", value)))


def _check_answers(value: object) -> None:
    skill, findings = execute.parse_skill(value)
    require_fit_findings(findings)
    if skill is not None:
        assert execute.parse_skill({"skill": skill.to_json()})[0] == skill
    content, findings = execute.parse_content(value)
    require_fit_findings(findings)
    if content is not None:
        blob = base64.b64encode(content.content).decode()
        assert execute.parse_content({"content": {"uri": content.uri, "blob": blob}})[0] is not None
    _, findings = parse_execution_result(value)
    require_fit_findings(findings)


def _check_listing(value: object) -> None:
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    listed = [parse_resource(position, item) for position, item in enumerate(items)]
    known: list[ListedResource] = [item for item in listed if item is not None]
    for item in known:
        assert canonical_uri(item.uri) == item.uri == canonical_uri(item.spelling)
    for skill in skills_among(known):
        assert SkillUri.parse(skill.uri.text) == skill.uri
        assert skill.description is None or skill.description.strip()
        for file in (*skill.files, *([skill.file_list] if skill.file_list else [])):
            assert skill.uri.contains(file.uri)


def _check_file_list(data: bytes) -> None:
    try:
        lines = parse_file_list(_SKILL, data)
    except InvalidEntryError as error:
        require_fit(str(error))
        return
    for line in lines:
        assert isinstance(line, dict)
        assert _SKILL.contains(cast(str, line["uri"]))


def _check_frontmatter(frontmatter: Frontmatter) -> None:
    require_fit_findings(declarations_in(frontmatter).findings)
    require_fit_findings(needs_in(frontmatter).findings)
