"""The scripts of a skill: what they are for, what they take, and what they ask for."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from skillwire.cli.answer import Answer
from skillwire.cli.asking import print_lines
from skillwire.cli.outcomes import origin_json
from skillwire.core.fields import MAX_DESCRIPTION
from skillwire.core.manifest import ManifestFile
from skillwire.host import Host, KnownSkill
from skillwire.host.asking import Paragraph, about, foreign, lines_of
from skillwire.host.promises import promised_files, size_words
from skillwire.host.running.words import limit_words
from skillwire.runner import ScriptInterface, interfaces_of, scripts_of

MOST_ARGUMENTS = 50

_NONE = "has no scripts to run"
_UNTOLD = "does not tell beforehand which scripts it has; one that its text mentions can be named"


@dataclass(frozen=True, slots=True)
class ListedScript:
    """One script of a skill: its path, its line in the manifest if it has one, and what it declares."""

    path: str
    line: ManifestFile | None
    interface: ScriptInterface

    def to_json(self) -> dict[str, object]:
        declared = self.interface
        return {
            "path": self.path,
            "size": None if self.line is None else self.line.known_size,
            "digest": None if self.line is None else self.line.digest,
            "description": declared.description,
            "arguments": None if declared.arguments is None else dict(declared.arguments),
            "stdout": declared.stdout,
            "outputs": list(declared.outputs),
            "limits": dict(declared.limits),
            "network": list(declared.network),
            "secrets": list(declared.secrets),
            "problem": declared.problem,
        }


async def list_scripts(answer: Answer, host: Host, reference: str, places: Sequence[str] = ()) -> None:
    """Answer with the scripts of a skill. Nothing is run, and nothing loaded.

    `places` are the options that find the skill, for the example below.

    Raises:
        UnknownReferenceError: No skill has this reference.
        SkillError: What it says about its scripts cannot be had.
    """
    skill = await host.find(reference)
    scripts = await scripts_in(host, skill)
    if answer.json:
        answer.document(
            {
                "reference": skill.reference,
                "origin": origin_json(skill.id.origin),
                "uri": skill.id.uri,
                "scripts": [script.to_json() for script in scripts],
            }
        )
        return
    if not scripts:
        answer.word(f"{skill.reference} {_NONE if skill.entry.files is not None else _UNTOLD}")
        return
    print_lines(answer, lines_of(about(skill)[:2], answer.width))
    for script in scripts:
        answer.line("")
        print_lines(answer, lines_of(_paragraphs(script), answer.width))
    answer.word("")
    words = shlex.join((skill.reference, *places))
    answer.word(f"Run one with: skillwire run {words} SCRIPT --args JSON", wrap=False)


async def scripts_in(host: Host, skill: KnownSkill) -> list[ListedScript]:
    """Return the scripts of a skill, by path."""

    async def read(uri: str) -> bytes:
        return (await host.preview(skill.reference, uri)).content

    declared = await interfaces_of(skill.entry, read)
    files = promised_files(skill.entry)
    return [
        ListedScript(
            path,
            None if files is None else files.find(skill.entry.uri.join(path)),
            declared.get(path, ScriptInterface()),
        )
        for path in scripts_of(skill.entry)
    ]


def _paragraphs(script: ListedScript) -> Iterator[Paragraph]:
    yield foreign("Script", [script.path])
    if script.line is not None:
        yield Paragraph("Digest", (f"{script.line.digest}, {size_words(script.line.known_size)}",))
    declared = script.interface
    if declared.problem:
        yield foreign("It cannot be run", [declared.problem], is_warning=True)
    if declared.description:
        yield foreign("It says of itself", [declared.description], longest=MAX_DESCRIPTION)
    if arguments := [*argument_lines(declared)]:
        yield foreign("Arguments", arguments[:MOST_ARGUMENTS])
    elif declared.arguments is None:
        yield Paragraph("Arguments", ("it does not say; any JSON object is passed on",))
    if declared.stdout:
        yield foreign("It writes", [declared.stdout])
    if declared.outputs:
        yield foreign("It leaves files", declared.outputs)
    if declared.limits:
        yield Paragraph("Limits it asks for", (", ".join(limit_words(declared.limits)),))
    if declared.network:
        yield foreign("Hosts it wants to reach", declared.network, is_warning=True)
    if declared.secrets:
        yield foreign("Secrets it wants", declared.secrets, is_warning=True)


def argument_lines(declared: ScriptInterface) -> Iterator[str]:
    """Describe the properties of a schema, each in a line; what is no plain schema is shown as it is."""
    schema = declared.arguments
    if schema is None:
        return
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        yield orjson.dumps(dict(schema)).decode()
        return
    needed = required if isinstance(required, list) else []
    for name, about_it in properties.items():
        told = about_it if isinstance(about_it, dict) else {}
        kind, words = told.get("type"), told.get("description")
        must = ", required" if name in needed else ""
        kinds = kind if isinstance(kind, str) else "any" if kind is None else orjson.dumps(kind).decode()
        yield f"{name} ({kinds}{must}){f': {words}' if isinstance(words, str) else ''}"
