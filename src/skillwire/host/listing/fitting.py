"""Fitting a list into a number of tokens, whatever counts them.

Lists are laid out in bytes. What they come to in tokens only the counter
knows, so the text is measured, and laid out again until it fits.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from skillwire.host.listing.layout import Laid, lay_out
from skillwire.host.listing.sections import OriginKey, Section
from skillwire.host.listing.tokens import BYTES_PER_TOKEN, TokenCounter, estimated_tokens
from skillwire.host.listing.wording import Wording
from skillwire.host.listing.writing import Writer

_MOST_TRIES: Final = 10
_MOST_GROWTH: Final = 3
_MARGIN: Final = 0.98
_GOOD: Final = 0.95


def fit(
    sections: Sequence[Section],
    writer: Writer,
    wording: Wording,
    budget: int,
    caps: Mapping[OriginKey, int],
    count: TokenCounter,
) -> tuple[Laid, int] | None:
    """Return the list that makes the most of `budget` tokens, and how many it takes; None if none fits."""
    return _Fitting(sections, writer, wording, budget, caps, count).best() if budget > 0 else None


class _Fitting:
    def __init__(
        self,
        sections: Sequence[Section],
        writer: Writer,
        wording: Wording,
        budget: int,
        caps: Mapping[OriginKey, int],
        count: TokenCounter,
    ) -> None:
        self._sections = sections
        self._writer = writer
        self._wording = wording
        self._budget = budget
        self._caps = caps
        self._count = count
        self._factors = dict.fromkeys(caps, 1.0)

    def best(self) -> tuple[Laid, int] | None:
        """Search for the most room whose list fits: in proportion first, between what did and did not."""
        room = self._budget * BYTES_PER_TOKEN
        fits = too_much = growths = 0
        best: tuple[Laid, int] | None = None
        is_estimate = self._count is estimated_tokens
        for _ in range(_MOST_TRIES):
            laid = self._laid(room)
            if laid is None:
                # So few bytes hold nothing, but this counter may find few tokens in many bytes.
                if best or too_much or is_estimate or growths == _MOST_GROWTH:
                    return best
                room, growths = room * 2, growths + 1
                continue
            tokens = self._count(laid.text)
            if tokens > self._budget:
                too_much = room
            elif self._is_over_a_cap(laid):
                continue
            else:
                is_the_same = best is not None and best[0].text == laid.text
                fits, best = room, (laid, tokens)
                # The estimate is exact in bytes: more room would only be too much.
                is_good = is_estimate or tokens >= self._budget * _GOOD
                if is_good or is_the_same or laid.is_whole or growths == _MOST_GROWTH:
                    return best
                growths += 1
            guess = int(room * self._budget / max(tokens, 1) * _MARGIN)
            if too_much and not fits < guess < too_much:
                guess = (fits + too_much) // 2
            if guess <= fits:
                return best
            room = guess
        return best or self._without_capped()

    def _laid(self, room: int) -> Laid | None:
        per_token = room / self._budget
        caps = {key: int(cap * per_token * self._factors[key]) for key, cap in self._caps.items()}
        return lay_out(self._sections, self._writer, self._wording, room, caps)

    def _is_over_a_cap(self, laid: Laid) -> bool:
        """Tell whether a server takes more than it may, and give it less next time."""
        is_over = False
        for part in laid.arranged:
            key = part.section.contents.key
            if key in self._caps:
                tokens = self._count(part.written())
                if tokens > self._caps[key]:
                    self._factors[key] *= max(self._caps[key], 0) / tokens * _MARGIN
                    is_over = True
        return is_over

    def _without_capped(self) -> tuple[Laid, int] | None:
        """Leave out the servers that have a limit, for a counter under which nothing keeps to it."""
        self._factors = dict.fromkeys(self._factors, 0.0)
        room = self._budget * BYTES_PER_TOKEN
        while (laid := self._laid(room)) is not None:
            tokens = self._count(laid.text)
            if tokens <= self._budget:
                return laid, tokens
            room //= 2
        return None
