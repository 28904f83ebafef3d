"""Consuming skills: from many servers and local folders, for an agent to use safely.

A server is a stranger here: its answers are held to the letter, every call has
a deadline, and whatever a listing may grow has a cap. Reading moves bytes and
activates nothing; loading is one path, and it ends at the user's approval.
This room never sees how a server works inside.
"""

from skillwire.host.activation import Activation
from skillwire.host.approval.approvals import Approval, Ask, Change, Grant, Occasion, Question, Reply
from skillwire.host.approval.consent import PromptLimits
from skillwire.host.approval.lockfile import InvalidLockError, LockDifference
from skillwire.host.approval.locktrust import LockReview, LockState
from skillwire.host.approval.policy import ProjectLock
from skillwire.host.calls.declaration import Declaration, declared
from skillwire.host.calls.directories import DirectoryItem, read_directory
from skillwire.host.calls.enumeration import Listing, RefusedEntry, list_skills
from skillwire.host.calls.reading import read_skill_uri
from skillwire.host.calls.retrieval import get_skill
from skillwire.host.connections.config import Servers, read_servers
from skillwire.host.connections.endpoints import HttpEndpoint, ServerConfig, StdioEndpoint
from skillwire.host.connections.oauth import FileTokenStorage, oauth_for
from skillwire.host.connections.throttle import ConnectionLimits
from skillwire.host.conversation import Conversation
from skillwire.host.explain import Explanation, Step
from skillwire.host.failures import (
    ApprovalError,
    ConfigError,
    EndlessListingError,
    InvalidAnswerError,
    NotDeclaredError,
    PeerError,
    RefusedError,
    UnsafePlaceError,
)
from skillwire.host.gate import Decision, ToolCall, ToolKind, Verdict
from skillwire.host.host import Host, Preview
from skillwire.host.mount import Mount
from skillwire.host.origin import Origin, OriginKind, SkillId
from skillwire.host.presentation import FramedText, LoadedSkill, SkillFileLine, summary_of
from skillwire.host.refusals import REFUSALS, Refusal
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.local import LocalRoot
from skillwire.host.registry.registry import RegistryView, ServerStatus
from skillwire.host.state.places import Places

__all__ = [
    "REFUSALS",
    "Activation",
    "Approval",
    "ApprovalError",
    "Ask",
    "Change",
    "ConfigError",
    "ConnectionLimits",
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
    "InvalidLockError",
    "KnownSkill",
    "Listing",
    "LoadedSkill",
    "LocalRoot",
    "LockDifference",
    "LockReview",
    "LockState",
    "Mount",
    "NotDeclaredError",
    "Occasion",
    "Origin",
    "OriginKind",
    "PeerError",
    "Places",
    "Preview",
    "ProjectLock",
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
    "UnsafePlaceError",
    "Verdict",
    "declared",
    "get_skill",
    "list_skills",
    "oauth_for",
    "read_directory",
    "read_servers",
    "read_skill_uri",
    "summary_of",
]
