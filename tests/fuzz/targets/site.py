"""The index of a web site's skills, in all three of its forms."""

from urllib.parse import urlsplit

from fuzz.properties import require_fit, require_fit_findings
from skillwire.core import INDEX_PATH, encode
from skillwire.core.fields import is_name
from skillwire.core.json import StrictJsonError, parse_strictly
from skillwire.core.uri import SkillUri
from skillwire.wire.wellknown import (
    FilesEntry,
    Site,
    SiteEntry,
    artifact_url,
    file_url,
    files_digest,
    parse_site,
)

_INDEX_URL = f"https://skills.example{INDEX_PATH}"


def check(data: bytes) -> None:
    try:
        value = parse_strictly(data)
    except StrictJsonError as error:
        require_fit(str(error))
        return
    site, findings = parse_site(value)
    require_fit_findings(findings)
    if site.form is None:
        assert not site.entries
        assert findings
        return
    again, _ = parse_site(parse_strictly(encode(site.to_json())))
    assert again == site
    _check_entries(site)


def _check_entries(site: Site) -> None:
    names = [entry.name for entry in site.entries]
    assert len(set(names)) == len(names)
    assert all(map(is_name, names))
    for entry in site.entries:
        if isinstance(entry, SiteEntry):
            try:
                url = artifact_url(_INDEX_URL, entry.url)
            except ValueError:
                continue  # The reader of the site says so when the skill is wanted.
            assert "#" not in url
        else:
            _check_files(entry)


def _check_files(entry: FilesEntry) -> None:
    assert not entry.digest or files_digest(entry.files) == entry.digest
    for file in entry.files:
        SkillUri.build(entry.name).join(file.path)
        url = urlsplit(file_url(_INDEX_URL, entry.name, file.path))
        assert url.netloc == "skills.example"
        assert url.path.startswith(f"/.well-known/agent-skills/{entry.name}/")
        assert not url.query
        assert not url.fragment
