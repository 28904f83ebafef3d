"""`SKILL.md`: the shortcut for simple frontmatter and libyaml say the same, and so does an entry's reader."""

import orjson

from fuzz.properties import require_fit
from skillwire.core import same_value
from skillwire.core.entry import check_frontmatter
from skillwire.core.errors import FrontmatterError
from skillwire.core.finding import RULES
from skillwire.core.frontmatter import SkillDocument, parse_skill_md
from skillwire.core.validation import validate
from skillwire.core.yaml12 import Event


def check(data: bytes) -> None:
    findings = validate("tea", {"SKILL.md": data})
    for finding in findings:
        assert finding.code in RULES, finding.code
        assert finding.line is None or 1 <= finding.line <= data.count(b"\n") + 1
    quick, slow = _parse(data, is_quick=True), _parse(data, is_quick=False)
    if isinstance(quick, FrontmatterError) or isinstance(slow, FrontmatterError):
        assert isinstance(quick, FrontmatterError), "only the shortcut reads it"
        assert isinstance(slow, FrontmatterError), "only the shortcut refuses it"
        assert (quick.reason, quick.line, str(quick)) == (slow.reason, slow.line, str(slow))
        assert quick.reason in RULES
        assert any(finding.is_error for finding in findings)
        return
    assert quick == slow
    assert data.endswith(quick.body.encode())
    fields = dict(quick.frontmatter.fields)
    written = orjson.dumps(fields)
    assert same_value(orjson.loads(written), fields)
    # What a file may hold, a listing may carry, and a host reads it there.
    listed, _ = check_frontmatter(orjson.loads(written))
    assert listed == quick.frontmatter


def _parse(data: bytes, *, is_quick: bool) -> SkillDocument | FrontmatterError:
    try:
        return parse_skill_md(data) if is_quick else parse_skill_md(data, _ignore)
    except FrontmatterError as error:
        require_fit(error.fix)
        return error


def _ignore(kind: type[object], event: Event, depth: int, is_key: bool) -> None:
    """Watch nothing: with anyone watching, libyaml reads all of it."""
