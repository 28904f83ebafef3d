"""Consuming skills: what a host asks of a server, and what it makes of the answers.

A server is a stranger here: its answers are held to the letter, every call has
a deadline, and whatever a listing may grow has a cap. Reading moves bytes and
activates nothing. This room never sees how a server works inside.
"""

from skillwire.host.declaration import Declaration, declared
from skillwire.host.directories import DirectoryItem, read_directory
from skillwire.host.enumeration import Listing, RefusedEntry, list_skills
from skillwire.host.failures import (
    EndlessListingError,
    InvalidAnswerError,
    NotDeclaredError,
    PeerError,
)
from skillwire.host.reading import read_skill_uri
from skillwire.host.retrieval import get_skill

__all__ = [
    "Declaration",
    "DirectoryItem",
    "EndlessListingError",
    "InvalidAnswerError",
    "Listing",
    "NotDeclaredError",
    "PeerError",
    "RefusedEntry",
    "declared",
    "get_skill",
    "list_skills",
    "read_directory",
    "read_skill_uri",
]
