"""Finding what somebody asks for among what is listed. A name is compared, and never made into a path."""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def last_segment(path: str) -> str:
    """Return the name of the file at `path`."""
    return path.rpartition("/")[2]


def stem_of(name: str) -> str:
    """Return a file name without its suffix; one that is nothing but a suffix stays whole."""
    return name.rpartition(".")[0] or name


def found(
    items: Iterable[Item],
    wanted: str,
    *,
    path_of: Callable[[Item], str],
    name_of: Callable[[Item], str] | None = None,
    aliases_of: Callable[[Item], Collection[str]] = lambda item: (),
) -> list[Item]:
    """Return what `wanted` may mean: files of this name, or path, or stem or alias, in this order (EXEC-06).

    One item is an answer, none and several are not. A step counts only when
    those before it found nothing, so `plot.py` is never shadowed by another file's alias.
    """
    listed = list(items)
    names = [name_of(item) if name_of else last_segment(path_of(item)) for item in listed]
    for hits in (
        [item for item, name in zip(listed, names, strict=True) if name == wanted],
        [item for item in listed if path_of(item) == wanted],
    ):
        if hits:
            return hits
    return [
        item
        for item, name in zip(listed, names, strict=True)
        if stem_of(name) == wanted or wanted in aliases_of(item)
    ]
