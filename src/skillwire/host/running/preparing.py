"""From a skill of this host to a run: its files as the host reads them, and the terms the user is told."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import anyio

from skillwire.core.entry import SkillEntry
from skillwire.errors import (
    InvalidUriError,
    NotFoundError,
    RunnerError,
    SandboxUnavailableError,
    ScriptNotFoundError,
)
from skillwire.host.approval.terms import RunTerms
from skillwire.host.failures import ScriptsOffError
from skillwire.host.loading import Machinery
from skillwire.host.registry.known import KnownSkill
from skillwire.host.running.words import json_words, limit_words, limits_words
from skillwire.runner import (
    Limits,
    Policy,
    ReadFile,
    Runner,
    ScriptInterface,
    ScriptRun,
    find_script,
    interfaces_of,
    prepare,
    scripts_of,
)
from skillwire.runner.interface import FOLDER, MANIFEST_PATH
from skillwire.wire.dialect import Dialect

_HTTPS = ":443"


def require_on(machinery: Machinery, reference: str) -> Runner:
    """Return what runs scripts here.

    Raises:
        ScriptsOffError: This host runs none.
    """
    if machinery.runner is None:
        raise ScriptsOffError("nobody has allowed this host to run scripts", reference=reference[:200])
    return machinery.runner


def require_sandbox(runner: Runner) -> None:
    """Check that there is a sandbox, before anyone is asked about what could not run.

    Raises:
        SandboxUnavailableError: There is none.
    """
    found = runner.availability
    if not found.is_available:
        raise SandboxUnavailableError(found.detail, reason=found.reason, backend=found.backend, fix=found.fix)


def require_interpreter(runner: Runner, script: str) -> None:
    """Check that there is something to run a script with.

    Raises:
        RunnerError: There is not.
    """
    if not runner.takes(script):
        raise RunnerError(
            "no interpreter of this machine takes a script whose name ends like that",
            script=script,
            fix="go on without it; the policy for scripts names the interpreters",
        )


async def prepared(
    machinery: Machinery, skill: KnownSkill, script: object, arguments: object, read: ReadFile
) -> ScriptRun:
    """Read and check everything of a skill, and make a run of it. Nobody was asked yet, and nothing runs.

    Without `arguments`, it is not yet known what the run would be given:
    only the script itself is read, for someone to look at.

    Raises:
        ScriptNotFoundError: The skill has no such script.
        InvalidScriptArgumentsError: The script does not take these arguments.
        SkillError: A file of the skill cannot be had.
    """
    in_turn = _in_turn(read)
    entry = await runnable_entry(machinery, skill, script, in_turn)
    reads = read if entry.files is not None else in_turn
    origin = rule_origin(skill)
    if arguments is not None:
        return await prepare(entry, script, plain_object(arguments), reads, origin=origin)
    path = find_script(scripts_of(entry), script)
    interface = (await interfaces_of(entry, reads)).get(path, ScriptInterface())
    files = {path: await reads(entry.uri.join(path))}
    return ScriptRun(entry.uri.text, path, files, interface=interface, origin=origin)


def plain_object(arguments: object) -> object:
    """Return arguments as the plain mapping that is checked and sent; anything else as it is."""
    return dict(cast("Mapping[str, object]", arguments)) if isinstance(arguments, Mapping) else arguments


async def runnable_entry(
    machinery: Machinery, skill: KnownSkill, script: object, read: ReadFile
) -> SkillEntry:
    """Return the entry of a skill with all its files that are known of, the wanted script among them.

    A skill that is made as it is read may not tell what it has: then exactly
    the script that is asked for is looked for, and what describes it.

    Raises:
        SkillError: The skill's server cannot be asked.
    """
    entry = skill.entry
    if entry.files is not None:
        return entry
    if not entry.dynamic_files and skill.dialect is not Dialect.CORE:
        connection = machinery.fetcher.connection(skill.id.origin.label)
        entry = replace(entry, dynamic_files=(await connection.get_skill(entry.uri)).dynamic_files)
    inside = tuple(uri for uri in dict.fromkeys(entry.dynamic_files) if uri != entry.uri.text)
    entry = replace(entry, dynamic_files=inside)
    try:
        find_script(scripts_of(entry), script)
    except ScriptNotFoundError as error:
        if error.candidates or not isinstance(script, str):
            raise
        wanted = script if script.startswith(FOLDER) else FOLDER + script
        found = [uri for path in (wanted, MANIFEST_PATH) if (uri := await _existing(entry, path, read))]
        return replace(entry, dynamic_files=tuple(dict.fromkeys((*inside, *found))))
    return entry


def rule_origin(skill: KnownSkill) -> str:
    """Return what a rule of the policy calls the skill's origin: its server's label, or nothing."""
    return skill.id.origin.label if skill.is_remote else ""


def granted_limits(policy: Policy, interface: ScriptInterface) -> Limits:
    return policy.limits.asked(interface.limits, policy.most)


def terms_of(policy: Policy, run: ScriptRun, *, beside: tuple[str, ...] = ()) -> RunTerms:
    """Say what a run would be given, and what it asks for in vain."""
    asked = run.interface
    rule = policy.rule_for(origin=run.origin, skill=run.skill, script=run.script, digest=run.digest)
    hosts = {_with_port(host) for host in rule.network} if rule is not None else set[str]()
    names = set(rule.secrets) if rule is not None else set[str]()
    network = tuple(host for host in asked.network if _with_port(host) in hosts)
    secrets = tuple(name for name in asked.secrets if name in names)
    unmet = [host for host in asked.network if host not in network]
    unmet += [name for name in asked.secrets if name not in secrets]
    return RunTerms(
        "sandbox",
        arguments=json_words(run.arguments),
        asked=limit_words(asked.limits),
        limits=limits_words(granted_limits(policy, asked)),
        network=network,
        secrets=secrets,
        unmet=tuple(unmet),
        beside=beside,
    )


async def _existing(entry: SkillEntry, path: str, read: ReadFile) -> str | None:
    try:
        uri = entry.uri.join(path)
        await read(uri)
    except (InvalidUriError, NotFoundError):
        return None
    return uri


def _in_turn(read: ReadFile) -> ReadFile:
    """Read one file at a time: where the user has to be asked about the first, the others wait."""
    turn = anyio.Lock()

    async def one(uri: str) -> bytes:
        async with turn:
            return await read(uri)

    return one


def _with_port(host: str) -> str:
    return host if ":" in host else host + _HTTPS
