"""URI templates (RFC 6570) for skills of which there are too many to list.

Three forms of expression are enough for paths: `{name}` stands for one
segment, `{+name}` for several, and `{/name}` for a slash and one segment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from skillwire.core.characters import quoted
from skillwire.core.uri import MAX_URI_LENGTH, SkillUri
from skillwire.errors import InvalidUriError

MAX_VARIABLES = 16

_EXPRESSION = re.compile(r"\{([+/]?)([A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*)\}")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SAMPLE = "x"


@dataclass(frozen=True, slots=True)
class Template:
    """A template whose every expansion is the URI of a `SKILL.md`."""

    text: str
    variables: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Read a template.

        Raises:
            InvalidUriError: It uses a form we do not know, has no variable or
                too many, or expands to something that is no skill's URI.
        """
        if len(text) > MAX_URI_LENGTH:
            raise InvalidUriError(f"the template {quoted(text)} is longer than {MAX_URI_LENGTH} characters")
        names = tuple(match[2] for match in _EXPRESSION.finditer(text))
        rest = _EXPRESSION.sub("", text)
        if "{" in rest or "}" in rest:
            raise InvalidUriError(f"the template {quoted(text)} has an expression that is not known")
        if not names:
            raise InvalidUriError(f"the template {quoted(text)} has no variable")
        if len(names) > MAX_VARIABLES or len(set(names)) != len(names):
            raise InvalidUriError(
                f"the template {quoted(text)} repeats a variable, or has more than {MAX_VARIABLES}"
            )
        template = cls(text, names)
        template.expand(dict.fromkeys(names, _SAMPLE))
        return template

    def expand(self, values: Mapping[str, str]) -> SkillUri:
        """Return the URI of the skill that these values name.

        Raises:
            InvalidUriError: A value is missing, or it would leave the place
                the template gives it.
        """

        def filled(match: re.Match[str]) -> str:
            operator, name = match[1], match[2]
            value = values.get(name)
            if not value:
                raise InvalidUriError(f"the template {quoted(self.text)} needs a value for {quoted(name)}")
            if operator == "+":
                return "/".join(map(_escaped, value.split("/")))
            return operator + _escaped(value)

        return SkillUri.parse(_EXPRESSION.sub(filled, self.text))


def _escaped(value: str) -> str:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise InvalidUriError(f"the value {quoted(value)} is not valid Unicode text") from None
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in data)
