"""Skills that an upstream serves and does not list: asked for one by one, and passed on."""

from collections.abc import AsyncIterator

from skillwire.core.entry import SkillEntry
from skillwire.core.manifest import MAX_TOTAL_SIZE
from skillwire.core.uri import SkillUri, canonical_uri
from skillwire.errors import InvalidUriError, NotFoundError
from skillwire.gateway.upstream import Upstream
from skillwire.host.failures import NotDeclaredError
from skillwire.wire.dialect import Dialect


class Unlisted:
    """The rest of an upstream: whatever it answers for beyond its listing, in the released extension."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def list_skills(self) -> AsyncIterator[SkillEntry]:
        """Yield nothing: what is listed comes from the upstream itself."""
        for entry in ():
            yield entry

    async def get_skill(self, uri: SkillUri) -> SkillEntry:
        upstream = self._upstream
        wanted = upstream.prefix.upstream(uri.text)
        if upstream.connection.dialect not in (None, Dialect.CORE):
            raise NotFoundError(f"no skill is served at {uri}", uri=uri.text)
        try:
            entry = await upstream.connection.get_skill(SkillUri.parse(wanted))
        except (InvalidUriError, NotDeclaredError) as error:
            raise NotFoundError(f"no skill is served at {uri}", uri=uri.text) from error
        upstream.require_visible(entry)
        said = upstream.provenance(entry.uri.text, Dialect.CORE, "upstream")
        return upstream.prefix.entry(entry, said)

    async def read_file(self, uri: str) -> bytes:
        wanted = self._upstream.prefix.upstream(canonical_uri(uri))
        root = wanted.rpartition("/")[0]
        while root.count("/") >= 2:
            try:
                entry = await self.get_skill(SkillUri(self._upstream.prefix.served(f"{root}/SKILL.md")))
            except NotFoundError:
                root = root.rpartition("/")[0]
                continue
            served = self._upstream.prefix.served(wanted)
            line = None if entry.manifest is None else entry.manifest.require(served)
            most = MAX_TOTAL_SIZE if line is None else line.most_bytes
            content = await self._upstream.connection.read_file(wanted, max_bytes=most)
            if line is not None:
                line.verify(content)
            return content
        raise NotFoundError(f"nothing is served at {uri}", uri=uri)
