"""The house rules: which room may import which, and what each front door offers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import skillwire
import skillwire.core
import skillwire.host
import skillwire.runner
import skillwire.server
import skillwire.sources
import skillwire.sources.wellknown

SRC = Path(skillwire.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "wire": {"core", "errors"},
    "runner": {"core", "errors"},
    "sources": {"core", "errors", "wire"},
    "server": {"core", "errors", "runner", "sources", "wire"},
    "host": {"core", "errors", "runner", "sources", "wire"},
    "gateway": {"core", "errors", "host", "runner", "server", "sources", "wire"},
    "cli": {"core", "errors", "gateway", "host", "runner", "server", "sources", "wire"},
    "__init__": {"core", "errors"},
    "__main__": {"cli"},
}


def test_rooms_import_only_the_rooms_below_them() -> None:
    for path in SRC.rglob("*.py"):
        room = path.relative_to(SRC).parts[0].removesuffix(".py")
        imported = set(re.findall(r"(?m)^[ \t]*(?:from|import) skillwire\.(\w+)", path.read_text("utf-8")))
        assert imported <= MAY_IMPORT[room] | {room}, path


def test_no_module_imports_its_own_project_inside_a_function() -> None:
    for path in SRC.rglob("*.py"):
        assert not re.search(r"^[ \t]+(?:from|import) skillwire", path.read_text("utf-8"), re.MULTILINE), path


def test_core_knows_nothing_of_files_networks_or_event_loops() -> None:
    forbidden = r"^[ \t]*(?:from|import) (?:os|pathlib|socket|asyncio|anyio|mcp|subprocess)\b"
    for path in (SRC / "core").rglob("*.py"):
        assert not re.search(forbidden, path.read_text("utf-8"), re.MULTILINE), path


def test_the_front_door_offers_the_vocabulary_and_nothing_else() -> None:
    assert sorted(skillwire.__all__) == [
        "Finding",
        "Frontmatter",
        "InvalidSkillError",
        "Manifest",
        "ManifestFile",
        "NotFoundError",
        "Severity",
        "Skill",
        "SkillEntry",
        "SkillError",
        "SkillUri",
        "SourceError",
        "VerificationError",
        "__version__",
        "validate",
    ]


def test_the_front_door_of_core_is_pinned() -> None:
    assert set(skillwire.core.__all__) == {
        "MAX_FILES",
        "MAX_TOTAL_SIZE",
        "RULES",
        "SKILL_FILE",
        "Finding",
        "Frontmatter",
        "HiddenCharacter",
        "Manifest",
        "ManifestFile",
        "Rule",
        "Severity",
        "Skill",
        "SkillDocument",
        "SkillEntry",
        "SkillFile",
        "SkillUri",
        "canonical_uri",
        "check_entry",
        "digest_of",
        "entry_findings",
        "hidden_characters",
        "media_type_of",
        "parse_entry",
        "parse_skill_md",
        "revealed",
        "same_value",
        "validate",
        "visible",
    }


def test_the_front_door_of_sources_is_pinned() -> None:
    assert sorted(skillwire.sources.__all__) == [
        "Changes",
        "CombinedSource",
        "DirectorySource",
        "DynamicSkill",
        "LiveSource",
        "MemorySource",
        "PackageSource",
        "Report",
        "Snapshot",
        "Source",
    ]


def test_the_front_doors_of_server_and_host_are_pinned() -> None:
    assert sorted(skillwire.server.__all__) == [
        "Annotate",
        "DynamicSkill",
        "ListingRules",
        "Skill",
        "Skills",
        "Subject",
        "add_skills",
        "pointer_to",
        "with_format",
    ]
    assert sorted(skillwire.host.__all__) == [
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


def test_serving_loads_no_framework_but_the_sdk() -> None:
    code = "import sys, skillwire.server.http.server, skillwire.server.stdio; print('fastmcp' in sys.modules)"

    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("module", ["skillwire", "skillwire.cli.app"])
def test_importing_the_front_door_loads_neither_the_mcp_sdk_nor_an_event_loop(module: str) -> None:
    heavy = {"mcp", "asyncio", "watchfiles", "skillwire.sources"}
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"

    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert result.stdout.strip() == "[]"


def test_sites_have_a_front_door_of_their_own() -> None:
    # They need an HTTP library, which a server of folders can do without.
    assert skillwire.sources.wellknown.__all__ == ["WellKnownSource"]


def test_the_front_door_of_the_runner_is_pinned() -> None:
    assert sorted(skillwire.runner.__all__) == [
        "Availability",
        "Ending",
        "Interpreter",
        "LimitHit",
        "Limits",
        "Outcome",
        "OutputFile",
        "Policy",
        "PolicyError",
        "ReadFile",
        "Recorder",
        "RunRecord",
        "RunSlot",
        "Runner",
        "ScriptInterface",
        "ScriptRule",
        "ScriptRun",
        "SecretSource",
        "SkippedOutput",
        "Usage",
        "find_script",
        "interfaces_of",
        "load_policy",
        "parse_policy",
        "prepare",
        "scripts_of",
    ]
