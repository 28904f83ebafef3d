"""Consuming skills: from many servers and local folders, for an agent to use safely.

A server is a stranger here: its answers are held to the letter, every call has
a deadline, and whatever a listing may grow has a cap. Reading moves bytes and
activates nothing; loading is one path, and it ends at the user's approval.
This room never sees how a server works inside.
"""

from skillwire.host.activation import Activation
from skillwire.host.approval.approvals import (
    Approval,
    Ask,
    Change,
    Grant,
    Occasion,
    Question,
    Reply,
    Standing,
)
from skillwire.host.approval.consent import PromptLimits
from skillwire.host.approval.lockfile import InvalidLockError, LockDifference
from skillwire.host.approval.locktrust import LockReview, LockState
from skillwire.host.approval.policy import ProjectLock
from skillwire.host.approval.provenance import Judgement, Provenance, ProvenanceProvider, ProvenanceVerdict
from skillwire.host.approval.terms import RunTerms
from skillwire.host.archives import ArchivePolicy
from skillwire.host.asking import ask_in_terminal, text_of_question
from skillwire.host.attention import Attention, SkillSettings, Trust
from skillwire.host.calls.declaration import Declaration, declared
from skillwire.host.calls.directories import DirectoryItem, read_directory
from skillwire.host.calls.enumeration import Listing, RefusedEntry, list_skills
from skillwire.host.calls.reading import read_skill_uri
from skillwire.host.calls.retrieval import get_skill
from skillwire.host.connections.config import Servers, find_config, read_servers
from skillwire.host.connections.endpoints import HttpEndpoint, ServerConfig, SiteEndpoint, StdioEndpoint
from skillwire.host.connections.oauth import FileTokenStorage, oauth_for
from skillwire.host.connections.throttle import ConnectionLimits
from skillwire.host.conversation import Conversation
from skillwire.host.events import SkillActivated
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
from skillwire.host.guard import Guard
from skillwire.host.host import Host
from skillwire.host.listing.forms import ListingForm
from skillwire.host.listing.tokens import TokenCounter, estimated_tokens
from skillwire.host.mount import Mount
from skillwire.host.origin import Origin, OriginKind, SkillId
from skillwire.host.presentation import FramedText, LoadedSkill, SkillFileLine, summary_of
from skillwire.host.previewing import Preview
from skillwire.host.refusals import REFUSALS, Refusal
from skillwire.host.registry.known import KnownSkill
from skillwire.host.registry.local import LocalRoot
from skillwire.host.registry.registry import RegistryView, ServerStatus
from skillwire.host.registry.view import KnownTemplate
from skillwire.host.running.results import RanScript, ScriptPreview
from skillwire.host.search import Match, SearchPage
from skillwire.host.state.places import Places
from skillwire.host.toolbox import Toolbox
from skillwire.host.tools import Tool, ToolResult

__all__ = [
    "REFUSALS",
    "Activation",
    "Approval",
    "ApprovalError",
    "ArchivePolicy",
    "Ask",
    "Attention",
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
    "Guard",
    "Host",
    "HttpEndpoint",
    "InvalidAnswerError",
    "InvalidLockError",
    "Judgement",
    "KnownSkill",
    "KnownTemplate",
    "Listing",
    "ListingForm",
    "LoadedSkill",
    "LocalRoot",
    "LockDifference",
    "LockReview",
    "LockState",
    "Match",
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
    "Provenance",
    "ProvenanceProvider",
    "ProvenanceVerdict",
    "Question",
    "RanScript",
    "Refusal",
    "RefusedEntry",
    "RefusedError",
    "RegistryView",
    "Reply",
    "RunTerms",
    "ScriptPreview",
    "SearchPage",
    "ServerConfig",
    "ServerStatus",
    "Servers",
    "SiteEndpoint",
    "SkillActivated",
    "SkillFileLine",
    "SkillId",
    "SkillSettings",
    "Standing",
    "StdioEndpoint",
    "Step",
    "TokenCounter",
    "Tool",
    "ToolCall",
    "ToolKind",
    "ToolResult",
    "Toolbox",
    "Trust",
    "UnsafePlaceError",
    "Verdict",
    "ask_in_terminal",
    "declared",
    "estimated_tokens",
    "find_config",
    "get_skill",
    "list_skills",
    "oauth_for",
    "read_directory",
    "read_servers",
    "read_skill_uri",
    "summary_of",
    "text_of_question",
]
