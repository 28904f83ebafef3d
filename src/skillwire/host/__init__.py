"""The host half: skills from MCP servers and local folders, for an agent to use safely.

Answers of servers are checked strictly, every call has a deadline, and every
listing has a size limit. Reading returns bytes and activates nothing. Loading
is one path, and needs the user's approval.

`__all__` is what embedders need. The other names here are for the commands and
the gateway of this project, and may change.
"""

from typing import TYPE_CHECKING

from skillwire.lazy import lazy_names

if TYPE_CHECKING:
    from skillwire.host.adapters.tools import Guard, Toolbox
    from skillwire.host.approval.consent import PromptLimits
    from skillwire.host.approval.lock import InvalidLockError as InvalidLockError
    from skillwire.host.approval.lock import LockDifference as LockDifference
    from skillwire.host.approval.lock_trust import LockReview as LockReview
    from skillwire.host.approval.lock_trust import LockState as LockState
    from skillwire.host.approval.lock_trust import LockTrust as LockTrust
    from skillwire.host.approval.store import APPROVALS_FILE as APPROVALS_FILE
    from skillwire.host.approval.store import ApprovalRecords as ApprovalRecords
    from skillwire.host.approval.store import ApprovalStore as ApprovalStore
    from skillwire.host.approval.synced import FolderChange as FolderChange
    from skillwire.host.approval.synced import SyncedFolder as SyncedFolder
    from skillwire.host.approval.synced import SyncedFolders as SyncedFolders
    from skillwire.host.approval.synced import SyncRecord as SyncRecord
    from skillwire.host.approval.synced import SyncTarget as SyncTarget
    from skillwire.host.calls import ConnectionLimits, get_skill, list_skills
    from skillwire.host.calls import DirectoryItem as DirectoryItem
    from skillwire.host.calls import Listing as Listing
    from skillwire.host.connect.config import Servers as Servers
    from skillwire.host.connect.config import project_of as project_of
    from skillwire.host.connect.config import read_servers
    from skillwire.host.connect.config import servers_of as servers_of
    from skillwire.host.connect.config_file import CONFIG_PATHS as CONFIG_PATHS
    from skillwire.host.connect.config_file import find_config
    from skillwire.host.connect.connection import connection_for as connection_for
    from skillwire.host.connect.oauth import FileTokenStorage, oauth_for
    from skillwire.host.conversation import Conversation
    from skillwire.host.dialects.base import SkillConnection as SkillConnection
    from skillwire.host.host import Host
    from skillwire.host.listing.render import DEFAULT_BUDGET as DEFAULT_BUDGET
    from skillwire.host.listing.text import ListingForm
    from skillwire.host.listing.text import clean as clean
    from skillwire.host.listing.text import cut as cut
    from skillwire.host.model import LOCAL as LOCAL
    from skillwire.host.model import MOST_FILE_BYTES as MOST_FILE_BYTES
    from skillwire.host.model import REFUSALS as REFUSALS
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
    from skillwire.host.model import ApprovalDeniedError as ApprovalDeniedError
    from skillwire.host.model import ApprovalRequiredError as ApprovalRequiredError
    from skillwire.host.model import ApprovalState as ApprovalState
    from skillwire.host.model import ApprovalValidity as ApprovalValidity
    from skillwire.host.model import ArgumentsNeededError as ArgumentsNeededError
    from skillwire.host.model import Basis as Basis
    from skillwire.host.model import Change as Change
    from skillwire.host.model import Comparison as Comparison
    from skillwire.host.model import DiffLine as DiffLine
    from skillwire.host.model import DynamicDeclinedError as DynamicDeclinedError
    from skillwire.host.model import FieldChange as FieldChange
    from skillwire.host.model import FileChange as FileChange
    from skillwire.host.model import FileState as FileState
    from skillwire.host.model import Hunk as Hunk
    from skillwire.host.model import InvalidArgumentsError as InvalidArgumentsError
    from skillwire.host.model import KnownTemplate as KnownTemplate
    from skillwire.host.model import LockUntrustedError as LockUntrustedError
    from skillwire.host.model import NotDeclaredError as NotDeclaredError
    from skillwire.host.model import OmissionReason as OmissionReason
    from skillwire.host.model import OriginKind as OriginKind
    from skillwire.host.model import PeerError as PeerError
    from skillwire.host.model import Preview as Preview
    from skillwire.host.model import RegistryView as RegistryView
    from skillwire.host.model import ServerStatus as ServerStatus
    from skillwire.host.model import ShowRules as ShowRules
    from skillwire.host.model import SkillChangedError as SkillChangedError
    from skillwire.host.model import SkillId as SkillId
    from skillwire.host.model import TooSlowError as TooSlowError
    from skillwire.host.model import UnavailableError as UnavailableError
    from skillwire.host.model import UnknownReferenceError as UnknownReferenceError
    from skillwire.host.model import UnsafePathsError as UnsafePathsError
    from skillwire.host.model import UnsafePlaceError as UnsafePlaceError
    from skillwire.host.model import UntrustedConfigError as UntrustedConfigError
    from skillwire.host.model import binding_of as binding_of
    from skillwire.host.model import declared_arguments as declared_arguments
    from skillwire.host.model import estimated_tokens as estimated_tokens
    from skillwire.host.model import full_reference as full_reference
    from skillwire.host.model import references_for as references_for
    from skillwire.host.model import skeleton as skeleton
    from skillwire.host.model import with_lines as with_lines
    from skillwire.host.options import HostLimits, HostPolicy
    from skillwire.host.registry.local import LocalRoot
    from skillwire.host.registry.local import LocalSkills as LocalSkills
    from skillwire.host.registry.local import default_roots as default_roots
    from skillwire.host.registry.servers import fresh_seconds as fresh_seconds
    from skillwire.host.state.content import MAX_CACHE_BYTES as MAX_CACHE_BYTES
    from skillwire.host.state.content import UNPACKED_FOLDER as UNPACKED_FOLDER
    from skillwire.host.state.content import CacheUsage as CacheUsage
    from skillwire.host.state.content import ContentCache as ContentCache
    from skillwire.host.state.content import OriginUsage as OriginUsage
    from skillwire.host.state.content import UnpackedArchives as UnpackedArchives
    from skillwire.host.state.places import Storage
    from skillwire.host.state.trust import FileTrust as FileTrust
    from skillwire.host.state.trust import FolderTrust as FolderTrust
    from skillwire.host.state.vault import SealedFolder as SealedFolder
    from skillwire.host.use.explain import Explanation as Explanation
    from skillwire.host.use.explain import Step as Step
    from skillwire.host.use.export import ApprovedSkill as ApprovedSkill
    from skillwire.host.use.export import SkillExport as SkillExport
    from skillwire.host.use.fetch import NO_ARCHIVES as NO_ARCHIVES
    from skillwire.host.use.fetch import ArchivePolicy
    from skillwire.host.use.gate import ToolCall, ToolKind, Verdict
    from skillwire.host.use.present import LoadedSkill
    from skillwire.host.use.question import ANSWER_SECONDS as ANSWER_SECONDS
    from skillwire.host.use.question import LONGEST_NAME as LONGEST_NAME
    from skillwire.host.use.question import Paragraph as Paragraph
    from skillwire.host.use.question import QuestionLine as QuestionLine
    from skillwire.host.use.question import Terminal as Terminal
    from skillwire.host.use.question import argument_paragraphs as argument_paragraphs
    from skillwire.host.use.question import ask_in_terminal, text_of_question
    from skillwire.host.use.question import choices_of as choices_of
    from skillwire.host.use.question import final_question as final_question
    from skillwire.host.use.question import lines_of as lines_of
    from skillwire.host.use.question import list_paragraph as list_paragraph
    from skillwire.host.use.question import name_of as name_of
    from skillwire.host.use.question import needs_paragraphs as needs_paragraphs
    from skillwire.host.use.question import one_line as one_line
    from skillwire.host.use.question import paragraphs_of as paragraphs_of
    from skillwire.host.use.question import requested_tools as requested_tools
    from skillwire.host.use.question import skill_paragraphs as skill_paragraphs
    from skillwire.host.use.question import untrusted_lines as untrusted_lines
    from skillwire.host.use.question import untrusted_paragraph as untrusted_paragraph
    from skillwire.host.use.question import uses_older_dialect as uses_older_dialect
    from skillwire.host.use.question import wrapped as wrapped
    from skillwire.host.use.script_results import ScriptPreview as ScriptPreview
    from skillwire.host.use.script_results import ScriptResult as ScriptResult
    from skillwire.host.use.script_results import format_amount as format_amount
    from skillwire.host.use.script_results import format_limit_hit as format_limit_hit
    from skillwire.host.use.script_results import format_limits as format_limits
    from skillwire.host.use.search import MAX_LIMIT as MAX_LIMIT
    from skillwire.host.use.search import Match as Match
    from skillwire.host.use.search import SearchPage as SearchPage
    from skillwire.host.use.tools import Tool, ToolResult
    from skillwire.host.use.tools import tools_for as tools_for
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "adapters.tools": "Guard Toolbox",
            "approval.consent": "PromptLimits",
            "approval.lock": "InvalidLockError LockDifference",
            "approval.lock_trust": "LockReview LockState LockTrust",
            "approval.store": "APPROVALS_FILE ApprovalRecords ApprovalStore",
            "approval.synced": "FolderChange SyncRecord SyncTarget SyncedFolder SyncedFolders",
            "calls": "ConnectionLimits DirectoryItem Listing get_skill list_skills",
            "connect.config": "Servers project_of read_servers servers_of",
            "connect.config_file": "CONFIG_PATHS find_config",
            "connect.connection": "connection_for",
            "connect.oauth": "FileTokenStorage oauth_for",
            "conversation": "Conversation",
            "dialects.base": "SkillConnection",
            "host": "Host",
            "listing.render": "DEFAULT_BUDGET",
            "listing.text": "ListingForm clean cut",
            "model": (
                "Approval ApprovalDeniedError ApprovalError ApprovalRequiredError ApprovalState "
                "ApprovalValidity ArgumentsNeededError Ask Basis Change Comparison ConfigError DiffLine "
                "DynamicDeclinedError FieldChange FileChange FileState Grant HostEvent HttpEndpoint "
                "Hunk InvalidArgumentsError KnownSkill KnownTemplate LOCAL LockUntrustedError "
                "MOST_FILE_BYTES NotDeclaredError Occasion OmissionReason Origin OriginKind PeerError "
                "Preview Provenance ProvenanceProvider ProvenanceVerdict Question REFUSALS Refusal "
                "RefusedError RegistryView Reply ServerConfig ServerStatus ShowRule ShowRules "
                "SiteEndpoint SkillActivated SkillChangedError SkillId SkillSettings StdioEndpoint "
                "TooSlowError Trust UnavailableError UnknownReferenceError UnsafePathsError UnsafePlaceError "
                "UntrustedConfigError binding_of declared_arguments estimated_tokens full_reference "
                "references_for skeleton with_lines"
            ),
            "options": "HostLimits HostPolicy",
            "registry.local": "LocalRoot LocalSkills default_roots",
            "registry.servers": "fresh_seconds",
            "state.content": (
                "CacheUsage ContentCache MAX_CACHE_BYTES OriginUsage UNPACKED_FOLDER UnpackedArchives"
            ),
            "state.places": "Storage",
            "state.trust": "FileTrust FolderTrust",
            "state.vault": "SealedFolder",
            "use.explain": "Explanation Step",
            "use.export": "ApprovedSkill SkillExport",
            "use.fetch": "ArchivePolicy NO_ARCHIVES",
            "use.gate": "ToolCall ToolKind Verdict",
            "use.present": "LoadedSkill",
            "use.question": (
                "ANSWER_SECONDS LONGEST_NAME Paragraph QuestionLine Terminal argument_paragraphs "
                "ask_in_terminal choices_of final_question lines_of list_paragraph name_of "
                "needs_paragraphs one_line paragraphs_of requested_tools skill_paragraphs "
                "text_of_question untrusted_lines untrusted_paragraph uses_older_dialect wrapped"
            ),
            "use.script_results": "ScriptResult ScriptPreview format_amount format_limit_hit format_limits",
            "use.search": "MAX_LIMIT Match SearchPage",
            "use.tools": "Tool ToolResult tools_for",
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
