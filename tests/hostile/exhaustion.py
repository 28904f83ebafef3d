"""Scenarios that are expensive to look at, or to keep (attacks 59 and 79)."""

from typing import ClassVar

from hostile.catalog import DESCRIPTION, Published, refunds, reports, skill
from hostile.honest import Honest

LONG = 5000
"""How long a value is where no rule says otherwise; several of them stay below the limit on frontmatter."""


class Patterns(Honest):
    """Fills the frontmatter with what some program would take for a pattern. Attack 59.

    Form "harmless" has values of the same lengths in the same fields, made of
    letters. Each of the many skills is one that breaks no rule, except those
    of `odd_names`, whose names and descriptions are patterns too.
    """

    # Expressions that try for ever on a long run of one letter, braces that
    # stand for more words than there are atoms, and globs that go everywhere.
    values: ClassVar[dict[str, str]] = {
        "nested-groups": "(a+)+" * (LONG // 5) + "$",
        "long-run": "a" * LONG + "!",
        "alternatives": "(a|a)*" * (LONG // 6) + "b",
        "backtracking": ".*" * (LONG // 2) + "x",
        "lookbehind": "(?:(?:(?:a{0,999}){0,999}){0,999})" * (LONG // 34),
        "deep-parentheses": "(" * (LONG // 2) + ")" * (LONG // 2),
        "braces": "{a,b}" * (LONG // 5),
        "deep-braces": "{a," * (LONG // 4) + "}" * (LONG // 4),
        "ranges": "{1..999999999}" * (LONG // 14),
        "globs": "**/" * (LONG // 3) + "*",
        "stars": "*" * LONG,
        "classes": "[!" * (LONG // 2),
        "escapes": "\\" * (LONG // 6),
        "references": "${a:-" * (LONG // 5) + "}" * 100,
    }
    tools = (
        "Read Bash(*) B* {Bash,Write} .* (?i)bash Bash|Write [B]ash ?ash * ** Bash(git:{a,b}) ^Bash$ Ba\\sh"
    )

    def skills(self) -> list[Published]:
        return [self._skill(name, value) for name, value in self.values.items()] + [reports()]

    def _skill(self, name: str, value: str) -> Published:
        tools = f"{self.tools} {value}"
        return skill(
            f"acme/{name}",
            description=self._said(f"Helps. {value}"[:1024]),
            body=f"{name}.\n",
            allowed_tools=tools if self.form != "harmless" else f"Read {_letters(tools[5:])}",
            license=self._said(value),
            compatibility=self._said(value[:500]),
            paths=[self._said(value[:LONG]), self._said("**/*.{a,b,c}")],
            globs=self._said(value),
            metadata={"triggers": self._said(value)},
        )

    def _said(self, text: str) -> str:
        return text if self.form != "harmless" else _letters(text)


class OddPatterns(Patterns):
    """The same, where a rule is broken: names that are patterns, and values beyond every limit. Attack 59."""

    def skills(self) -> list[Published]:
        odd = [self._named(number, self._said(value)) for number, value in enumerate(self.values.values())]
        return [*odd, refunds(), reports()]

    def _named(self, number: int, value: str) -> Published:
        said = {"name": value, "description": value * 3, "compatibility": value, "allowed-tools": [value]}
        return skill(f"acme/odd-{number}", description=DESCRIPTION).claiming(frontmatter=said)


def _letters(text: str) -> str:
    """Return words of the same length as those of `text` that mean nothing."""
    return "".join("a" if character != " " else " " for character in text)


class Bulky(Honest):
    """Publishes much to keep: `count` skills with `files` files of so many `bytes` each. Attack 79."""

    def skills(self) -> list[Published]:
        count, files, size = (int(self.control.get(name, 1)) for name in ("count", "files", "bytes"))
        return [bulky(number, files, size) for number in range(count)]


def bulky(number: int, files: int, size: int) -> Published:
    """Return one skill of `Bulky`; no two files of any two are alike."""
    data = {f"data/{file:03}.bin": filling(number, file, size) for file in range(files)}
    return skill(f"acme/bulk-{number:03}", body=f"Bulk {number}.\n", files=data)


def filling(number: int, file: int, size: int) -> bytes:
    """Return the bytes of one file of a bulky skill."""
    mark = b"%d/%d\n" % (number, file)
    return (mark * (size // len(mark) + 1))[:size]
