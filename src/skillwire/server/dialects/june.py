"""`index-june`: every skill with its frontmatter, its digest and its archives, in one resource."""

from collections.abc import Sequence
from typing import ClassVar

from skillwire.core.entry import SkillEntry
from skillwire.server.dialects.indexing import IndexCompat, Labels, archive_uri
from skillwire.wire.dialect import Dialect
from skillwire.wire.encoding import encode
from skillwire.wire.june import JuneArchive, JuneEntry


class IndexJune(IndexCompat):
    """The index of 25 June 2026.

    Each skill is offered by URI and as two archives. The dialect knows the
    digest of `SKILL.md` alone, so `size` and `resources` are added as in the
    released extension: whoever understands them can verify every file (IDX-12).
    A dynamic skill has no digest, which the dialect requires, and is left out.
    """

    dialect: ClassVar[Dialect] = Dialect.INDEX_JUNE

    def line(self, entry: SkillEntry, labels: Labels) -> bytes | None:
        file = None if entry.manifest is None else entry.manifest.find(entry.uri.text)
        if file is None:
            return None
        archives = [
            JuneArchive(archive_uri(entry, format), format.media_type, label.digest, {"size": label.size})
            for format, label in labels.items()
        ]
        extra = {"size": file.size, "resources": entry.to_json()["resources"]}
        line = JuneEntry(entry.frontmatter.fields, entry.uri.published, file.digest, tuple(archives), extra)
        return encode(line.to_json())

    def document(self, lines: Sequence[bytes]) -> bytes:
        return b'{"skills":[' + b",".join(lines) + b"]}"
