"""Consuming skills: from many servers and local folders, for an agent to use safely.

A server is a stranger here: its answers are held to the letter, every call has
a deadline, and whatever a listing may grow has a cap. Reading moves bytes and
activates nothing; loading is one path, and it ends at the user's approval.
This room never sees how a server works inside.
"""

from skillwire.host.activation import Activation
from skillwire.host.approvals import Approval, Ask, Change, Grant, Occasion, Question, Reply
from skillwire.host.config import Servers, read_servers
from skillwire.host.consent import PromptLimits
from skillwire.host.conversation import Conversation
from skillwire.host.declaration import Declaration, declared
from skillwire.host.directories import DirectoryItem, read_directory
from skillwire.host.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.enumeration import Listing, RefusedEntry, list_skills
from skillwire.host.explain import Explanation, Step
from skillwire.host.failures import (
    ApprovalError,
    EndlessListingError,
    InvalidAnswerError,
    NotDeclaredError,
    PeerError,
    RefusedError,
)
from skillwire.host.gate import Decision, ToolCall, ToolKind, Verdict
from skillwire.host.host import Host, Preview
from skillwire.host.known import KnownSkill
from skillwire.host.local import LocalRoot
from skillwire.host.mount import Mount
from skillwire.host.oauth import FileTokenStorage, oauth_for
from skillwire.host.origin import Origin, OriginKind, SkillId
from skillwire.host.places import Places
from skillwire.host.presentation import FramedText, LoadedSkill, SkillFileLine
from skillwire.host.reading import read_skill_uri
from skillwire.host.refusals import REFUSALS, Refusal
from skillwire.host.registry import RegistryView, ServerStatus
from skillwire.host.retrieval import get_skill

__all__ = [
    "REFUSALS",
    "Activation",
    "Approval",
    "ApprovalError",
    "Ask",
    "Change",
    "Conversation",
    "Decision",
    "Declaration",
    "DirectoryItem",
    "EndlessListingError",
    "Explanation",
    "FileTokenStorage",
    "FramedText",
    "Grant",
    "Host",
    "HttpEndpoint",
    "InvalidAnswerError",
    "KnownSkill",
    "Listing",
    "LoadedSkill",
    "LocalRoot",
    "Mount",
    "NotDeclaredError",
    "Occasion",
    "Origin",
    "OriginKind",
    "PeerError",
    "Places",
    "Preview",
    "PromptLimits",
    "Question",
    "Refusal",
    "RefusedEntry",
    "RefusedError",
    "RegistryView",
    "Reply",
    "ServerConfig",
    "ServerStatus",
    "Servers",
    "SkillFileLine",
    "SkillId",
    "StdioEndpoint",
    "Step",
    "ToolCall",
    "ToolKind",
    "Verdict",
    "declared",
    "get_skill",
    "list_skills",
    "oauth_for",
    "read_directory",
    "read_servers",
    "read_skill_uri",
]
