"""Asking a server to run a script of its own, which is asked about each time: nobody here sees what runs."""

import re
import time
from collections.abc import Callable, Mapping
from functools import partial

import anyio.to_thread

from skillwire.core.characters import visible
from skillwire.core.manifest import digest_of
from skillwire.core.uri import SkillUri
from skillwire.core.yaml12 import JsonValue
from skillwire.errors import SkillError
from skillwire.host.activation import Activation
from skillwire.host.approval.approvals import Occasion, Question
from skillwire.host.approval.consent import Actor
from skillwire.host.approval.terms import RunTerms
from skillwire.host.connections.connection import Connection
from skillwire.host.dialects.execution import ExecVoice
from skillwire.host.dialects.voice import Peer, Voice
from skillwire.host.failures import ApprovalDeniedError, NotDeclaredError
from skillwire.host.gate import ToolCall, ToolKind
from skillwire.host.loading import Machinery
from skillwire.host.presentation import RUN_TOOL, one_word
from skillwire.host.registry.known import KnownSkill
from skillwire.host.running.preparing import plain_object
from skillwire.host.running.results import RanScript, ScriptPreview
from skillwire.host.running.words import frame_told, json_words
from skillwire.runner import OutputFile, ScriptInterface, find_script
from skillwire.runner.arguments import check_arguments, encode
from skillwire.wire.executed import LINK, TEXT, Executed, Piece
from skillwire.wire.execution import EXECUTE_METHOD

_LONGEST_NAME = 100
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
_CANCELLED = "cancelled"


async def run_on_server(
    machinery: Machinery,
    window: Activation,
    script: object,
    arguments: object,
    *,
    objections: Callable[[ToolCall, Activation], tuple[str, ...]],
    actor: Actor,
) -> RanScript:
    """Ask a skill's server to run one of its scripts, once, after the user agreed to this one run.

    Raises:
        NotDeclaredError: The server does not run scripts; nothing was sent.
        ApprovalError: The user does not agree, or cannot be asked; nothing was sent.
        PeerError: The server answered with an error.
        SkillError: There is no usable answer.
    """
    skill = window.skill
    preview = await preview_on_server(machinery, skill, script, arguments)
    path, given = preview.script, preview.arguments or {}
    label = skill.id.origin.label
    call = ToolCall(
        RUN_TOOL, ToolKind.EXECUTE, skill=skill.reference, script=path, detail=f"on the server {label}"
    )
    terms = RunTerms("server", arguments=preview.terms.arguments, beside=objections(call, window))
    question = Question(
        Occasion.CALL,
        skill,
        servers=(label,),
        call=f"ask the server to run {path} of {skill.reference}",
        terms=terms,
    )
    if not await machinery.consent.permit(question, actor=actor):
        raise ApprovalDeniedError(
            f"the user does not want {skill.reference} to be run on its server", reference=skill.reference
        )
    executed = await _execute(machinery, skill, path, given)
    return _ran(skill, path, executed, machinery.page_length)


async def preview_on_server(
    machinery: Machinery, skill: KnownSkill, script: object, arguments: object
) -> ScriptPreview:
    """Find the script that is meant, and check that it can be sent these arguments.

    Raises:
        ScriptNotFoundError: The server does not tell of such a script.
        InvalidScriptArgumentsError: The arguments are no JSON object, or are too large.
        NotDeclaredError: The server does not run scripts; nothing was sent.
    """

    async def ask(peer: Peer, voice: Voice) -> tuple[str, ...]:
        return await _exec(voice).scripts(peer, skill.entry.uri)

    paths = await _connection(machinery, skill).once(EXECUTE_METHOD, ask)
    path = find_script(paths, script)
    value: object = {} if arguments is None else plain_object(arguments)
    check = partial(check_arguments, value, ScriptInterface(), script=path)
    given = await anyio.to_thread.run_sync(check, abandon_on_cancel=True)
    terms = RunTerms("server", arguments=json_words(given))
    return ScriptPreview(skill, path, "server", terms, arguments=given)


async def _execute(
    machinery: Machinery, skill: KnownSkill, path: str, given: Mapping[str, JsonValue]
) -> Executed:
    """Send the one request, and write down what became of it, whatever that is."""
    uri: SkillUri = skill.entry.uri

    async def ask(peer: Peer, voice: Voice) -> Executed:
        return await _exec(voice).execute(peer, uri, path, given)

    connection = _connection(machinery, skill)
    started = time.monotonic()
    outcome = _CANCELLED
    try:
        executed = await connection.once(EXECUTE_METHOD, ask)
        outcome = "failed" if executed.is_error else "ran"
        return executed
    except SkillError as error:
        outcome = error.refusal
        raise
    finally:
        machinery.audit.record(
            "run",
            where="server",
            origin=skill.id.origin.label,
            skill=skill.id.uri,
            script=path,
            script_digest="",
            arguments_digest=digest_of(encode(given)),
            approval="for this run",
            outcome=outcome,
            duration_seconds=round(time.monotonic() - started, 3),
        )


def _ran(skill: KnownSkill, path: str, executed: Executed, page_length: int) -> RanScript:
    texts = [_text(piece) for piece in executed.pieces if piece.kind == TEXT and piece.content is not None]
    brought = [piece for piece in executed.pieces if piece.kind != TEXT and piece.content is not None]
    files = _files(brought)
    named = [_named(piece) for piece in executed.pieces if piece.content is None]
    text = frame_told(skill, path, texts, named, files, is_error=executed.is_error, page_length=page_length)
    verdict = f"the server says that it {'failed' if executed.is_error else 'ran'}"
    return RanScript(
        skill.reference, skill.id.origin, path, "", "server", None, text, executed.is_error, verdict, files
    )


def _files(pieces: list[Piece]) -> tuple[OutputFile, ...]:
    """Give what came along names that mean a file in one folder, whatever the server calls it."""
    taken: set[str] = set()
    files: list[OutputFile] = []
    for number, piece in enumerate(pieces, 1):
        last = _ODD.sub("-", piece.uri.rpartition("/")[2])[-_LONGEST_NAME:].strip(".-")
        name = last or f"{_ODD.sub('-', piece.kind)[:_LONGEST_NAME]}-{number}"
        if name.casefold() in taken:
            name = f"{number}-{name}"
        taken.add(name.casefold())
        files.append(OutputFile(name, piece.content or b""))
    return tuple(files)


def _named(piece: Piece) -> str:
    """Name something that has no content here: a link nobody follows, or a kind that is not known."""
    what = "a link" if piece.kind == LINK else f"content of the kind {one_word(piece.kind)}"
    about = [one_word(word) for word in (piece.name, piece.uri) if word]
    media = f", {visible(piece.media_type)[:_LONGEST_NAME]}" if piece.media_type else ""
    return " ".join([what, *about]) + media


def _text(piece: Piece) -> str:
    return (piece.content or b"").decode("utf-8", "replace")


def _connection(machinery: Machinery, skill: KnownSkill) -> Connection:
    found = machinery.fetcher.connection(skill.id.origin.label)
    assert isinstance(found, Connection), "web sites have no skills of this dialect"
    return found


def _exec(voice: Voice) -> ExecVoice:
    if not isinstance(voice, ExecVoice):
        raise NotDeclaredError(
            "the server no longer speaks the dialect in which it could be asked to run a script",
            violates="EXEC-01",
        )
    return voice
