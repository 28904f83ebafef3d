"""Names of synced folders, and the name inside `SKILL.md` where an agent shows that one.

A name has the label of the server, so that people and models see the origin,
and depends only on which skills are approved: what else a server lists, or
whether it answers, renames nothing.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from typing import Final

from skillwire.bridge.config_text import composed, pair_in
from skillwire.core import FrontmatterError, InvalidSkillError, frontmatter_text, parse_skill_md, same_value
from skillwire.host import SkillId, references_for

MAX_NAME: Final = 64
FOLDERS: Final[Mapping[str, str]] = {
    "claude": ".claude/skills",
    "agents": ".agents/skills",
    "codex": ".codex/skills",
    "cursor": ".cursor/skills",
    "gemini": ".gemini/skills",
}
"""The folder of skills in a project, by the name for `--to`; the same below a home."""

_PLAIN = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_OTHER = re.compile(r"[^a-z0-9]+")
_DIGITS = (8, 16, 64)


def agent_of(target: PurePath) -> str:
    """Return for which agent's folder a path is, by its last two parts; empty for any other folder."""
    tail = "/".join(target.parts[-2:])
    return next((name for name, folder in FOLDERS.items() if folder == tail), "")


def needs_own_name(target: PurePath) -> bool:
    """Return whether `name` in `SKILL.md` has to be the folder's name.

    All agents but Claude Code show that name, so two skills of one name would
    be confused, or one would replace the other; and the format wants both to
    agree. Claude Code ignores it.
    """
    return agent_of(target) != "claude"


def target_folder(name: str, project: Path) -> Path:
    """Return the folder for a value of `--to`: the project's folder of an agent, or a path."""
    return project / FOLDERS[name] if name in FOLDERS else Path(name).expanduser()


def folder_names(skills: Collection[SkillId]) -> dict[SkillId, str]:
    """Return the name of each skill's folder: `LABEL--NAME`, or with the path where a server repeats names.

    What is not made of lower-case letters, digits and single hyphens, or is
    too long, is replaced or cut, and gets a digest; so names never collide.
    """
    by_label: defaultdict[str, list[SkillId]] = defaultdict(list)
    for skill in skills:
        by_label[skill.origin.label].append(skill)
    names: dict[SkillId, str] = {}
    for label, own in by_label.items():
        references = references_for(label, [skill.uri for skill in own])
        names |= {skill: _name(references[skill.uri], skill, _DIGITS[0]) for skill in own}
    for digits in _DIGITS[1:]:
        owners: defaultdict[str, list[SkillId]] = defaultdict(list)
        for skill, name in names.items():
            owners[name].append(skill)
        repeated = [skill for own in owners.values() if len(own) > 1 for skill in own]
        names |= {skill: _marked(names[skill].rpartition("-")[0], skill, digits) for skill in repeated}
    return names


def _name(reference: str, skill: SkillId, digits: int) -> str:
    parts = reference.split("/")
    name = "--".join(parts)
    if all(map(_PLAIN.fullmatch, parts)) and len(name) <= MAX_NAME:
        return name
    words = (_OTHER.sub("-", part.lower()).strip("-") for part in re.split("[:/]+", reference))
    return _marked("--".join(filter(None, words)), skill, digits)


def _marked(name: str, skill: SkillId, digits: int) -> str:
    """Return a name cut to make room for a digest of what it stands for."""
    mark = hashlib.sha256(f"{skill.origin.label}\0{skill.uri}".encode()).hexdigest()[:digits]
    kept = name[: max(0, MAX_NAME - len(mark) - 1)].rstrip("-")
    return f"{kept}-{mark}" if kept else mark


def with_name(content: bytes, name: str) -> tuple[bytes, str]:
    """Return a `SKILL.md` with another `name`, and the name it had; that is empty if nothing was changed.

    Without a name, it gets one. Every byte but those of the value stays. The
    result is parsed again, and must have the same other fields and body.

    Raises:
        InvalidSkillError: The name cannot be replaced without changing more.
    """
    before = parse_skill_md(content)
    original = before.frontmatter.name
    if original == name:
        return content, ""
    text, _ = frontmatter_text(content)
    if (pair := pair_in(composed(text), "name")) is None:
        changed = f"name: {name}\n{text}".encode()
    else:
        start, end = pair[1].start_mark.index, pair[1].end_mark.index
        changed = f"{text[:start]}{name}{text[len(text[:end].rstrip(chr(10))) :]}".encode()
    opening = content.index(b"\n") + 1
    result = content[:opening] + changed + content[opening + len(text.encode()) :]
    try:
        after = parse_skill_md(result)
    except FrontmatterError as error:
        raise _not_adaptable(name) from error
    wanted = {**before.frontmatter.fields, "name": name}
    if after.body != before.body or not same_value(dict(after.frontmatter.fields), wanted):
        raise _not_adaptable(name)
    return result, original or name


def _not_adaptable(name: str) -> InvalidSkillError:
    return InvalidSkillError(
        f"the frontmatter is written in a way in which its name cannot be replaced by {name}",
        fix="ask the skill's author to write `name: …` on a line of its own",
    )
