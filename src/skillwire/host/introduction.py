"""How a model learns which skills there are: a list, a search, and a hint at the right moment."""

from collections.abc import Callable
from functools import partial

import anyio.to_thread

from skillwire.host.activation import Activation, Windows
from skillwire.host.listing.forms import ListingForm
from skillwire.host.listing.frozen import FrozenListing
from skillwire.host.listing.rendering import DEFAULT_BUDGET
from skillwire.host.listing.tokens import TokenCounter, estimated_tokens
from skillwire.host.loading import Machinery
from skillwire.host.nudge import Nudges
from skillwire.host.search import SearchPage

RESULTS_PER_PAGE = 10
CHANGES_SECONDS = 1.0


class Introduction:
    """What one model is told of the skills it may load."""

    def __init__(self, machinery: Callable[[], Machinery], windows: Windows) -> None:
        self._machinery = machinery
        self._windows = windows
        self._listing = FrozenListing()
        self._nudges = Nudges()

    @property
    def loaded(self) -> tuple[Activation, ...]:
        """The open windows: every skill this model may be acting on, the oldest first."""
        return self._windows.all()

    def listing(
        self,
        *,
        budget_tokens: int = DEFAULT_BUDGET,
        form: ListingForm = ListingForm.COMPACT,
        count: TokenCounter = estimated_tokens,
    ) -> str:
        """Return the list of skills for the model's instructions; empty when there is none to be listed.

        It is made once for a conversation: later calls return the same bytes,
        whatever they ask for, and `listing_changes` says what to append.
        `count` is the tokenizer of the model in use; without it tokens are
        estimated as UTF-8 bytes divided by four.
        """
        machinery = self._machinery()
        view = machinery.registry.view
        return self._listing.text(
            view.skills, machinery.attention, form=form, budget_tokens=budget_tokens, count=count
        )

    async def listing_changes(self, *, wait_seconds: float = CHANGES_SECONDS) -> str:
        """Return what changed since the listing was made and since this was last called; mostly nothing.

        Call it before each request to the model, append what it returns, and
        leave what was said before as it is. Servers whose listing is no longer
        fresh are asked, and waited for as long as `wait_seconds`; who is
        slower is heard the next time.
        """
        machinery = self._machinery()
        view = await machinery.registry.refresh(wait_seconds=wait_seconds)
        return self._listing.changes(view.skills, machinery.attention)

    async def search(
        self,
        query: str,
        *,
        limit: int = RESULTS_PER_PAGE,
        cursor: str | None = None,
        label: str = "",
        everything: bool = False,
    ) -> SearchPage:
        """Find skills by words, from what the listings say. Nothing is read or asked for.

        `label` means one server's skills, or with `local` the user's own.
        What the model may not load is found only with `everything`, for people.

        Raises:
            InvalidCursorError: The cursor is not from this search, or the skills have changed since.
        """
        machinery = self._machinery()
        view = machinery.registry.view
        found = await anyio.to_thread.run_sync(
            partial(
                machinery.search.find,
                view,
                query,
                limit=limit,
                cursor=cursor,
                label=label,
                include=None if everything else machinery.attention.is_for_the_model,
            )
        )
        machinery.audit.record("search", found=found.total)
        return found

    def nudge(self, tool: str, server: str = "") -> str:
        """Return a sentence for the model about a skill that explains the tool it is about to call.

        `server` is the label of the tool's MCP server. Each skill is named
        once in a conversation; mostly there is nothing to say.
        """
        machinery = self._machinery()
        loaded = {window.skill.id for window in self.loaded}
        view = machinery.registry.view
        return self._nudges.for_call(view, machinery.attention, tool=tool, server=server, loaded=loaded)
