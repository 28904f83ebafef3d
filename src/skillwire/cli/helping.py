"""Help texts that name an argument by what the user knows it as, and not by its type."""

from typing import Any

from typer.core import TyperArgument


def in_plain_words(command: Any) -> Any:
    """Return a command whose help says `DIR...`, where Typer says `{DIR}...` and `DIR <list[Path]>`."""
    for parameter in command.params:
        if type(parameter) is TyperArgument:
            parameter.__class__ = _Argument
    return command


class _Argument(TyperArgument):
    def display_type_rich(self, ctx: Any) -> str | None:
        return None

    def get_usage_pieces(self, ctx: Any) -> list[str]:
        name = self.display_name_raw if self.required else f"[{self.display_name_raw}]"
        return [name if self.nargs == 1 else f"{name}..."]
