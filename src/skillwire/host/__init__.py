"""The host half: skills from MCP servers and local folders, for an agent to use safely.

Answers of servers are checked strictly, every call has a deadline, and every
listing has a size limit. Reading returns bytes and activates nothing. Loading
is one path, and needs the user's approval.

`__all__` is what embedders need. Other classes are importable from their modules.
"""

from typing import TYPE_CHECKING

from skillwire.lazy import lazy_names

if TYPE_CHECKING:
    from skillwire.host.adapters.tools import Guard, Toolbox
    from skillwire.host.approval.consent import PromptLimits
    from skillwire.host.calls import ConnectionLimits, get_skill, list_skills
    from skillwire.host.connect.config import find_config, read_servers
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
        HttpEndpoint,
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
        ServerConfig,
        ShowRule,
        SiteEndpoint,
        SkillActivated,
        SkillSettings,
        StdioEndpoint,
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
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "adapters.tools": "Guard Toolbox",
            "approval.consent": "PromptLimits",
            "calls": "ConnectionLimits get_skill list_skills",
            "connect.config": "find_config read_servers",
            "connect.oauth": "FileTokenStorage oauth_for",
            "conversation": "Conversation",
            "host": "Host",
            "listing.text": "ListingForm",
            "model": (
                "Approval ApprovalError Ask ConfigError Grant HostEvent HttpEndpoint KnownSkill "
                "Occasion Origin Provenance ProvenanceProvider ProvenanceVerdict Question Refusal "
                "RefusedError Reply ServerConfig ShowRule SiteEndpoint SkillActivated SkillSettings "
                "StdioEndpoint Trust"
            ),
            "options": "HostLimits HostPolicy",
            "registry.local": "LocalRoot",
            "state.places": "Storage",
            "use.fetch": "ArchivePolicy",
            "use.gate": "ToolCall ToolKind Verdict",
            "use.present": "LoadedSkill",
            "use.question": "ask_in_terminal text_of_question",
            "use.tools": "Tool ToolResult",
        },
    )

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
