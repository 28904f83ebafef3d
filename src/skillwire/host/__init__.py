"""The host half: skills from MCP servers and local folders, for an agent to use safely.

Answers of servers are checked strictly, every call has a deadline, and every
listing has a size limit. Reading returns bytes and activates nothing. Loading
is one path, and needs the user's approval.

`__all__` is what embedders need. Other classes are importable from their modules.
"""

from skillwire.host.adapters.tools import Guard, Toolbox
from skillwire.host.approval.consent import PromptLimits
from skillwire.host.calls import ConnectionLimits, get_skill, list_skills
from skillwire.host.connect.config import find_config, read_servers
from skillwire.host.connect.endpoints import HttpEndpoint, ServerConfig, SiteEndpoint, StdioEndpoint
from skillwire.host.connect.oauth import FileTokenStorage, oauth_for
from skillwire.host.conversation import Conversation
from skillwire.host.host import Host
from skillwire.host.listing.text import ListingForm
from skillwire.host.model import (
    Approval,
    ApprovalError,
    Ask,
    ConfigError,
    Grant,
    HostEvent,
    KnownSkill,
    Occasion,
    Origin,
    Provenance,
    ProvenanceProvider,
    ProvenanceVerdict,
    Question,
    Refusal,
    RefusedError,
    Reply,
    ShowRule,
    SkillActivated,
    SkillSettings,
    Trust,
)
from skillwire.host.options import HostLimits, HostPolicy
from skillwire.host.registry.local import LocalRoot
from skillwire.host.state.places import Storage
from skillwire.host.use.fetch import ArchivePolicy
from skillwire.host.use.gate import ToolCall, ToolKind, Verdict
from skillwire.host.use.present import LoadedSkill
from skillwire.host.use.question import ask_in_terminal, text_of_question
from skillwire.host.use.tools import Tool, ToolResult

__all__ = [
    "Approval",
    "ApprovalError",
    "ArchivePolicy",
    "Ask",
    "ConfigError",
    "ConnectionLimits",
    "Conversation",
    "FileTokenStorage",
    "Grant",
    "Guard",
    "Host",
    "HostEvent",
    "HostLimits",
    "HostPolicy",
    "HttpEndpoint",
    "KnownSkill",
    "ListingForm",
    "LoadedSkill",
    "LocalRoot",
    "Occasion",
    "Origin",
    "PromptLimits",
    "Provenance",
    "ProvenanceProvider",
    "ProvenanceVerdict",
    "Question",
    "Refusal",
    "RefusedError",
    "Reply",
    "ServerConfig",
    "ShowRule",
    "SiteEndpoint",
    "SkillActivated",
    "SkillSettings",
    "StdioEndpoint",
    "Storage",
    "Tool",
    "ToolCall",
    "ToolKind",
    "ToolResult",
    "Toolbox",
    "Trust",
    "Verdict",
    "ask_in_terminal",
    "find_config",
    "get_skill",
    "list_skills",
    "oauth_for",
    "read_servers",
    "text_of_question",
]
