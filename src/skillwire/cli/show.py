"""`skillwire show`: show a skill, or one of its files, before it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from skillwire.cli.command import Json, Output, Verbose, command_output, new_app
from skillwire.cli.folders import print_findings
from skillwire.cli.hosting import (
    DEFAULT_WAIT,
    Archives,
    At,
    Config,
    Frozen,
    HostRequest,
    Lock,
    Wait,
    run_with_host,
)
from skillwire.cli.prompt import print_lines
from skillwire.cli.render import content_lines, content_paragraphs, is_text, path_of
from skillwire.cli.states import approvals_of, print_refusal, skill_json, state_of
from skillwire.core import (
    SKILL_FILE,
    Coverage,
    Manifest,
    SkillError,
    archive_line,
    coverage_words,
    digest_of,
    is_script,
    total_words,
)
from skillwire.host import (
    Approval,
    KnownSkill,
    Paragraph,
    Preview,
    Refusal,
    argument_paragraphs,
    binding_of,
    lines_of,
    needs_paragraphs,
    one_line,
    requested_tools,
    skill_paragraphs,
    untrusted_paragraph,
)

if TYPE_CHECKING:
    from skillwire.host import Host


SHORT_DIGEST = 12
MOST_FIELDS = 50
LONGEST_FIELD = 300

_BINDINGS = {
    Coverage.FILES: "Digest of all files",
    Coverage.SKILL_FILE: "Digest of what is covered",
    Coverage.ARCHIVE: "Digest of what is covered",
}
_SHOWN_FIELDS = frozenset({"name", "description", "allowed-tools"})

app = new_app()


@app.command()
def show(
    reference: Annotated[str, typer.Argument(metavar="REF", help="The skill, as it is listed.")],
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="A file of it to show.", show_default=False)
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Show its SKILL.md.")] = False,
    config: Config = None,
    at: At = None,
    lock: Lock = None,
    frozen: Frozen = False,
    wait: Wait = DEFAULT_WAIT,
    archives: Archives = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show a skill, or one of its files, before it is loaded.

    Prints its origin, the state of your approval, its files with sizes and
    digests, and what it asks for. With PATH, prints the file's content with
    hidden characters made visible. Nothing is loaded.
    """
    with command_output("show", json=json, verbose=verbose) as output:
        wanted = HostRequest.for_skill(
            reference, config, at, lock, frozen=frozen, wait=wait, archives=archives
        )
        file = path or (SKILL_FILE if body else "")
        run_with_host(output, wanted, lambda host: _show(output, host, reference, file))


async def _show(output: Output, host: Host, reference: str, path: str) -> None:
    skill = await host.find(reference)
    preview = await host.preview(skill.reference, path) if path else None
    missing = await _missing(host, skill) if preview is None else None
    if output.json:
        shown = {} if preview is None else {"content": _content_json(preview)}
        lacks = {"missing": None if missing is None else missing.to_json()}
        output.document({**skill_json(host, skill), **lacks, **shown})
    elif preview is None:
        _print_skill(output, host, skill)
    else:
        _print_content(output, preview)
    for problem in (*host.problems, *(() if missing is None else (missing,))):
        print_refusal(output, problem)


async def _missing(host: Host, skill: KnownSkill) -> Refusal | None:
    """Return the declared dependencies that its server does not have, or why they cannot be checked."""
    try:
        return await host.missing_dependencies(skill)
    except SkillError as error:
        return Refusal.of(error, skill.reference)


def _content_json(preview: Preview) -> dict[str, object]:
    return {
        "path": path_of(preview),
        "uri": preview.uri,
        "size": len(preview.content),
        "digest": digest_of(preview.content),
        "text": preview.text if is_text(preview) else None,
        "hidden": [
            {"kind": found.kind, "character": found.label, "line": found.line} for found in preview.hidden
        ],
    }


def _print_skill(output: Output, host: Host, skill: KnownSkill) -> None:
    print_lines(output, lines_of(skill_paragraphs(skill)[:2], output.width))
    words, style = state if isinstance(state := state_of(host, skill), tuple) else (state, "")
    output.line(("State:", "bold"), " ", (words, style))
    print_lines(output, lines_of(_paragraphs(host, skill), output.width))
    if skill.findings:
        output.line("")
        print_findings(output, "Findings", skill.findings)


def _paragraphs(host: Host, skill: KnownSkill) -> Iterator[Paragraph]:
    for place, approval in approvals_of(host, skill):
        yield _approval_paragraph(place, approval, skill)
    manifest = skill.entry.manifest
    if manifest is not None:
        yield Paragraph(_BINDINGS[manifest.coverage], (binding_of(manifest),))
    yield from skill_paragraphs(skill)[2:]
    fields = [
        f"{name}: {_field_words(value)}"
        for name, value in skill.entry.frontmatter.fields.items()
        if name not in _SHOWN_FIELDS
    ]
    if fields:
        yield untrusted_paragraph("More of its frontmatter", fields[:MOST_FIELDS], longest=LONGEST_FIELD)
    if tools := requested_tools(skill):
        yield untrusted_paragraph("It asks for these tools", [tools], is_warning=True)
    yield from argument_paragraphs(skill)
    yield from needs_paragraphs(skill)
    if manifest is None:
        words = "its files are generated when they are read, so they cannot be listed beforehand"
        yield Paragraph("No digests", (words,), is_warning=True)
        return
    if manifest.coverage is not Coverage.FILES:
        words = coverage_words(manifest, skill.id.uri)
        is_partial = manifest.coverage is Coverage.SKILL_FILE
        yield Paragraph("What has a digest", (words,), is_warning=is_partial)
    if manifest.coverage is Coverage.ARCHIVE:
        yield untrusted_paragraph("The archive's URI", [archive_line(manifest, skill.id.uri).uri])
    else:
        yield from _file_paragraphs(skill, manifest)


def _approval_paragraph(place: str, approval: Approval, skill: KnownSkill) -> Paragraph:
    where = "In skills.lock" if place == "lock" else "Approved"
    by = f" by {approval.granted_by}" if approval.granted_by else ""
    words = f"{', '.join(sorted(approval.grants))} on {approval.granted_at.date().isoformat()}{by}"
    if not approval.is_for(skill.entry):
        return Paragraph(where, (one_line(f"{words}, for other content"),), is_warning=True)
    return Paragraph(where, (one_line(words),))


def _file_paragraphs(skill: KnownSkill, manifest: Manifest) -> Iterator[Paragraph]:
    lines: dict[bool, list[str]] = {True: [], False: []}
    sizes = ["?" if file.known_size is None else f"{file.size:,}" for file in manifest.files]
    room = max(map(len, sizes))
    for file, size in zip(manifest.files, sizes, strict=True):
        path = skill.entry.uri.relative_path(file.uri)
        digest = file.digest.removeprefix("sha256:")[:SHORT_DIGEST]
        lines[is_script(path)].append(f"{size:>{room}}  {digest}  {one_line(path)}")
    if lines[True]:
        heading = f"Scripts ({len(lines[True])}): bytes, digest, path"
        yield Paragraph(heading, tuple(lines[True]), is_untrusted=True, is_warning=True)
    word = "Other files" if lines[True] else "Files"
    known = "with a digest" if manifest.coverage is Coverage.SKILL_FILE else "in all"
    heading = f"{word} ({len(manifest)} {known}, {total_words(manifest)}): bytes, digest, path"
    yield Paragraph(heading, tuple(lines[False]), is_untrusted=True)


def _field_words(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _print_content(output: Output, preview: Preview) -> None:
    """Print a file: behind bars on a terminal, and as it is elsewhere."""
    for line in lines_of(content_paragraphs(preview), output.width):
        output.message((line.lead, "cyan" if line.is_untrusted else "bold"), line.text, wrap=False)
    if output.width is not None:
        print_lines(output, content_lines(preview, output.width))
    elif is_text(preview):
        sys.stdout.flush()
        sys.stdout.buffer.write((preview.text or "").encode("utf-8"))
