"""Answering only once what a client has already."""

from starlette.requests import Request


def is_known(request: Request, etag: str) -> bool:
    """Tell whether the client has what `etag` stands for already."""
    tags = ",".join(request.headers.getlist("if-none-match"))
    return tags.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in tags.split(","))
