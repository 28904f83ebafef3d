"""Tells the model which skill explains the tool it is about to call.

A server may explain its own tools and the user's folders any tool. A skill of
one server never gets attached to a tool of another: that would be a way into
conversations about someone else's tools.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from skillwire.core.characters import visible
from skillwire.core.fields import MAX_DESCRIPTION
from skillwire.host.attention import Attentions
from skillwire.host.origin import SkillId
from skillwire.host.presentation import LOAD_TOOL
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.view import RegistryView

MOST_NAMED: Final = 3

_MOST_TOOLS = 256
_MOST_ALLOWED = 4096
# What MCP lets tools be called. Nothing else is put into the host's own words.
_TOOL = re.compile("(?=.*[A-Za-z0-9])[A-Za-z0-9_./-]{1,128}")
# Such a name is an ordinary word or number as well, and prose that has it need not mean the tool.
_WORD = re.compile("[A-Za-z]?[a-z]*|[A-Z]+|[0-9]+")
_AFTER = r"(?!\w)(?![-./:]\w)"


class Nudges:
    """The hints of one conversation. Each skill is named in one of them at most."""

    def __init__(self) -> None:
        self._named: set[SkillId] = set()
        self._index = _Index(())

    def for_call(
        self,
        view: RegistryView,
        attention: Attentions,
        *,
        tool: str,
        server: str,
        loaded: Collection[SkillId],
    ) -> str:
        """Return a sentence about the skills that name this tool, or nothing.

        `server` is the label of the tool's server; it is empty for a tool of
        the agent's own, which only local skills explain. Skills that are
        loaded, that a hint has named, or that the model may not load are left
        out. Of many the first few are named, and none of the others later, so
        that no server can put a hint before every call.
        """
        name = tool.removeprefix(f"mcp__{server}__") if server else tool
        if not _TOOL.fullmatch(name):
            return ""
        if self._index.skills is not view.skills:
            self._index = _Index(view.skills)
        fitting = [
            skill
            for skill in self._index.explaining(name, server)
            if skill.id not in self._named and skill.id not in loaded and attention.is_for_the_model(skill)
        ]
        self._named.update(skill.id for skill in fitting)
        return _sentence(name, server, [skill.reference for skill in fitting]) if fitting else ""


class _Index:
    """The skills of one view by server, and what was found out about tools."""

    def __init__(self, skills: tuple[KnownSkill, ...]) -> None:
        self.skills = skills
        self._local: list[KnownSkill] = []
        self._remote: dict[str, list[KnownSkill]] = {}
        self._explaining: dict[tuple[str, str], tuple[KnownSkill, ...]] = {}
        for skill in skills:
            place = self._remote.setdefault(skill.id.origin.label, []) if skill.is_remote else self._local
            place.append(skill)

    def explaining(self, tool: str, server: str) -> tuple[KnownSkill, ...]:
        """Return the skills that may explain a tool and name it: the user's own first."""
        found = self._explaining.get((tool, server))
        if found is None:
            if len(self._explaining) >= _MOST_TOOLS:
                self._explaining.clear()
            found = self._explaining[tool, server] = tuple(self._search(tool, server))
        return found

    def _search(self, tool: str, server: str) -> Iterator[KnownSkill]:
        yield from _naming(self._local, tool, server, r"(?<![\w./:-])")
        if server:
            # Whatever a server puts before the name of its own tool, it means that tool.
            yield from _naming(self._remote.get(server, ()), tool, server, r"(?<![\w/-])")


def _naming(skills: Iterable[KnownSkill], tool: str, server: str, before: str) -> Iterator[KnownSkill]:
    """Yield the skills that name a tool as a whole identifier, plain or with its server's label."""
    name, label = re.escape(tool), re.escape(server)
    owner = f"(?:mcp__{label}__|(?i:{label})[.:/])" if server else "(?!)"
    named = in_prose = re.compile(f"{before}{owner}?{name}{_AFTER}")
    if _WORD.fullmatch(tool):
        in_prose = re.compile(rf"`{name}`|{before}{name}\(|{before}{owner}{name}{_AFTER}")
    for skill in skills:
        description, allowed = skill.description[:MAX_DESCRIPTION], _allowed(skill)
        if (tool in description and in_prose.search(description)) or (
            tool in allowed and named.search(allowed)
        ):
            yield skill


def _allowed(skill: KnownSkill) -> str:
    """Return the tools that a skill's frontmatter mentions, as text."""
    value = skill.entry.frontmatter.fields.get("allowed-tools")
    if isinstance(value, list):
        value = " ".join(item for item in value if isinstance(item, str))
    return value[:_MOST_ALLOWED] if isinstance(value, str) else ""


def _sentence(tool: str, server: str, references: Sequence[str]) -> str:
    call = f"{tool} of the server {visible(server)}" if server else tool
    shown = references[:MOST_NAMED]
    load = f"{LOAD_TOOL}(skill={json.dumps(shown[0], ensure_ascii=False)})"
    if len(references) == 1:
        which, advice = f"the skill {shown[0]} names", f"load it with {load}"
    else:
        more = len(references) - len(shown)
        others = f" and {more} more" if more else ""
        which = f"the skills {', '.join(shown)}{others} name"
        advice = f"load what fits, for example with {load},"
    return f"Before you call {call}: {which} this tool; {advice} and then decide."
