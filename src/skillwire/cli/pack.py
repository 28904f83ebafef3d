"""`skillwire pack`: pack one skill into one reproducible archive."""

import base64
import hashlib
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from skillwire.cli.command import (
    AlreadyExistsError,
    BrokenSkillError,
    Json,
    MissingFolderError,
    MisuseError,
    NoSkillError,
    Output,
    OutputError,
    Verbose,
    command_output,
    new_app,
    plural,
)
from skillwire.cli.folders import FindingCounts, NamedFolder, located, print_findings
from skillwire.core import SKILL_FILE, ArchiveFormat, Finding, InvalidArchiveError, digest_of
from skillwire.core.archive import pack as pack_files
from skillwire.sources.directory.walk import Walk
from skillwire.sources.review import ReadSkill, read_skill

STDOUT = "-"

_SUGGESTIONS = 5

app = new_app()


@dataclass(frozen=True, slots=True)
class PackedSkill:
    """An archive of a skill, and its properties."""

    format: ArchiveFormat
    data: bytes
    files: int

    @property
    def digest(self) -> str:
        return digest_of(self.data)

    @property
    def integrity(self) -> str:
        """The digest in the form of Subresource Integrity, for tools that accept no other."""
        return "sha256-" + base64.b64encode(hashlib.sha256(self.data).digest()).decode()

    def to_json(self, path: str) -> dict[str, object]:
        return {
            "path": path,
            "format": self.format.value,
            "mediaType": self.format.media_type,
            "size": len(self.data),
            "digest": self.digest,
            "integrity": self.integrity,
            "files": self.files,
        }


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A skill's folder.", show_default=False)],
    destination: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write; - is standard output. [default: NAME.tar.gz]",
            show_default=False,
        ),
    ] = "",
    format: Annotated[
        ArchiveFormat | None, typer.Option(help="The kind of archive.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Pack a skill into one reproducible archive.

    The skill is validated first, and refused when it has errors. Prints the
    archive's size and digest, also in the form of Subresource Integrity.
    """
    with command_output("pack", json=json, verbose=verbose) as output:
        skill = NamedFolder.named(folder)
        chosen = _choose_format(destination, format)
        if destination == STDOUT:
            _require_usable_stdout(json=json)
        reading = _read(output, skill)
        target = (
            None
            if destination == STDOUT
            else _target(destination, f"{reading.name}.{chosen}", skill, force=force)
        )
        packed = pack_skill(reading, chosen)
        if target is None:
            sys.stdout.buffer.write(packed.data)
            sys.stdout.flush()
        else:
            write_whole(target, packed.data)
        _report(output, packed, target)


def pack_skill(reading: ReadSkill, format: ArchiveFormat) -> PackedSkill:
    """Pack the files of a skill that has no errors.

    Raises:
        InvalidArchiveError: A file was not read whole, or cannot be part of an archive.
        LimitError: The files are more than an archive may hold.
    """
    files = {path: content for path, content in reading.files.items() if isinstance(content, bytes)}
    if len(files) < len(reading.files):
        raise InvalidArchiveError("a file changed while it was read")
    return PackedSkill(format, pack_files(files, format, executables=reading.executables), len(files))


def write_whole(target: Path, data: bytes) -> None:
    """Write a file atomically; a failure leaves nothing behind.

    A symbolic link is kept, and the file it points to is replaced.

    Raises:
        OutputError: It cannot be written.
    """
    real = Path(os.path.realpath(target))
    temporary = real.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(real)
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _choose_format(output: str, format: ArchiveFormat | None) -> ArchiveFormat:
    named = ArchiveFormat.of_path(output)
    if format is not None and named is not None and format is not named:
        raise MisuseError(f"{output} is the name of a {named} archive, but --format is {format}")
    return format or named or ArchiveFormat.TAR_GZ


def _require_usable_stdout(*, json: bool) -> None:
    if json:
        raise MisuseError("the archive and the JSON cannot both go to standard output", fix="use -o FILE")
    if sys.stdout.isatty():
        raise MisuseError("standard output is a terminal", fix="use -o FILE, or redirect it: … > FILE")


def _read(output: Output, skill: NamedFolder) -> ReadSkill:
    """Read and validate the skill, and return it if it has no errors.

    Raises:
        NoSkillError: There is no skill in the folder.
        BrokenSkillError: The skill has errors.
    """
    found = None
    if os.path.lexists(skill.real_path(SKILL_FILE)):  # Otherwise this could be a folder of any size.
        found = next((found for found in Walk(skill.real).run().skills if not found.directory), None)
    if found is None:
        raise NoSkillError(f"there is no {SKILL_FILE} in {skill.path()}", fix=_suggestion(skill))
    reading = read_skill(skill.real, found)
    findings = [located(finding, skill.path()) for finding in reading.findings()]
    errors = [finding for finding in findings if finding.is_error]
    if errors:
        print_findings(output, skill.path(), findings, to_stderr=True)
        message = f"{skill.path()} has {plural(len(errors), 'error')}, so it is not packed"
        raise BrokenSkillError(message, findings=findings, fix="correct the errors and try again")
    _mention_warnings(output, skill, findings)
    return reading


def _suggestion(folder: NamedFolder) -> str:
    skills = sorted(path.parent.name for path in Path(folder.real).glob(f"*/{SKILL_FILE}"))
    if not skills:
        return "name a skill's own folder"
    shown = ", ".join(folder.path(name) for name in skills[:_SUGGESTIONS])
    return f"name one skill: {shown}" + (", …" if len(skills) > _SUGGESTIONS else "")


def _mention_warnings(output: Output, skill: NamedFolder, findings: list[Finding]) -> None:
    counts = FindingCounts.of(findings)
    if counts.warnings:
        which = "it" if counts.warnings == 1 else "them"
        output.message(f"{counts.words()}; see {which} with: skillwire validate {skill.path()}")


def _target(output: str, name: str, skill: NamedFolder, *, force: bool) -> Path:
    """Return the path to write to, after checking that it may be written."""
    target = Path(output or name)
    if target.is_dir():
        target /= name
    if not target.parent.is_dir():
        raise MissingFolderError(f"there is no folder {target.parent} to write to", fix="create it first")
    if Path(os.path.realpath(target)).is_relative_to(skill.real):
        fix = f"write it somewhere else: -o {Path('..', name)}"
        raise MisuseError(f"{target} would become part of the skill itself", fix=fix)
    if os.path.lexists(target):
        if not target.is_file() and target.exists():
            raise AlreadyExistsError(f"{target} exists and is not a file", fix="choose another name")
        if not force:
            raise AlreadyExistsError(f"{target} exists", fix="replace it with --force, or use -o FILE")
    return target


def _report(output: Output, packed: PackedSkill, target: Path | None) -> None:
    path = STDOUT if target is None else str(target)
    if output.json:
        output.document(packed.to_json(path))
        return
    say = output.message if target is None else output.line
    say("path    ", path, wrap=False)
    say("size    ", f"{plural(len(packed.data), 'byte')}, {plural(packed.files, 'file')}, {packed.format}")
    say("digest  ", packed.digest, wrap=False)
    say("sri     ", packed.integrity, wrap=False)
