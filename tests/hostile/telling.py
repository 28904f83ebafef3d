"""What servers tell besides: that their index or their prompts changed, and whatever is in `_meta`."""

from collections.abc import Callable
from typing import ClassVar

from hostile.byname import PromptOnly
from hostile.catalog import Json, Published, refunds, skill
from hostile.honest import Call, Honest
from hostile.packed import INDEX, Indexed


class TellsOfItsIndex(Indexed):
    """Says that its index was updated, to whoever subscribed to it, and nothing about its resources."""

    change: ClassVar[str] = "notifications/resources/updated"
    changed: ClassVar[Json] = {"uri": INDEX}

    def capabilities(self) -> Json:
        return {**super().capabilities(), "resources": {"subscribe": True}}

    def _handlers(self) -> dict[str, Callable[[Call], Json]]:
        return {**super()._handlers(), "resources/subscribe": self.subscribe}

    def subscribe(self, call: Call) -> Json:
        return {}

    def skills(self) -> list[Published]:
        names = ["refunds", "late"] if self.version > 1 else ["refunds"]
        return [skill(f"acme/{name}") for name in names]

    def index(self) -> list[Json]:
        return [
            {
                "url": made.uri,
                "digest": made.entry["resources"][0]["digest"],
                "frontmatter": dict(made.frontmatter),
            }
            for made in self.skills()
        ]


class TellsOfItsPrompts(PromptOnly):
    """Says that its prompts changed."""

    change: ClassVar[str] = "notifications/prompts/list_changed"

    def capabilities(self) -> Json:
        return {**super().capabilities(), "prompts": {"listChanged": True}}


class WithMeta(Honest):
    """Says more about a skill than the extension knows."""

    meta: ClassVar[Json] = {
        "com.example/owner": {"team": "billing", "on-call": ["a", None, 2.5, {"x": "\u00fc\u202e"}]},
        "com.example/empty": {},
    }

    def skills(self) -> list[Published]:
        return [refunds().claiming(_meta=self.meta)]
