"""Sharing out room: nobody gets more than wanted, and nobody less than an equal part of what is left."""

from collections.abc import Callable, Sequence


def fill(total: int, wants: Sequence[Callable[[int], int]]) -> list[int]:
    """Share `total` out so that the smallest unmet share is as large as it can be.

    Small wants are met in full, and the others get the same: a large want
    takes nothing from a small one (max-min fairness). A want is asked with a
    limit and answers what it is, or anything above the limit, so that large
    ones need not be drawn up.
    """
    shares = [0] * len(wants)
    unmet: list[int] = list(range(len(wants)))
    left = max(total, 0)
    while unmet:
        equal, over = divmod(left, len(unmet))
        found: dict[int, int] = {index: max(wants[index](equal), 0) for index in unmet}
        met = [index for index, want in found.items() if want <= equal]
        if not met:
            for place, index in enumerate(unmet):
                shares[index] = equal + (place < over)
            break
        for index in met:
            shares[index] = found[index]
            left -= found[index]
        unmet = [index for index in unmet if found[index] > equal]
    return shares


def level(total: int, wants: Sequence[int]) -> int:
    """Return the highest level to which all wants can be cut so that together they take at most `total`."""
    left = max(total, 0)
    for place, want in enumerate(sorted(wants)):
        equal = left // (len(wants) - place)
        if want > equal:
            return equal
        left -= want
    return max(wants, default=0)
