"""A server, to be run as a program, of more skills than it lists: one for each product."""

from collections.abc import AsyncIterator, Sequence

import anyio

from skillwire.core.entry import SkillEntry
from skillwire.core.errors import NotFoundError
from skillwire.core.skill import Skill
from skillwire.core.uri import SkillUri
from skillwire.server.options import ServeOptions
from skillwire.server.stdio import serve_stdio
from skillwire.sources import Source
from skillwire.wire.index import SkillTemplate, Template

NAMES = ("teapot", "teacup", "kettle")
PLACE = "skill://docs/"


class Products:
    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        for _ in ():
            yield _

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        return _skill(uri.text).entry()

    async def read_file(self, uri: str) -> bytes:
        found = _skill(uri)
        if uri != found.uri.text:
            raise NotFoundError("no such file", uri=uri)
        return found.skill_md

    def skill_templates(self) -> list[SkillTemplate]:
        template = Template.parse(f"{PLACE}{{product}}/SKILL.md")
        return [SkillTemplate("Product", template, "One skill for each \x1b[31mproduct.")]

    async def complete_template(self, template: str, variable: str, typed: str) -> list[str]:
        return [name for name in NAMES if name.startswith(typed)]


def _skill(uri: str) -> Skill:
    name = uri.removeprefix(PLACE).partition("/")[0]
    if name not in NAMES or not uri.startswith(PLACE):
        raise NotFoundError("no such product", uri=uri)
    return Skill(name, path=f"docs/{name}", description=f"Use when selling a {name}.", body="Sell it.\n")


def more() -> Sequence[Source]:
    return (Products(),)


if __name__ == "__main__":
    anyio.run(serve_stdio, ServeOptions((), watch=False, dialect=("index-april",), more_sources=more))
