"""A web site that means harm, and one that is only odd, asked over real sockets."""

import gzip
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from folders import skill_md
from integration.web_sites import (
    INDEX,
    OLD_INDEX,
    SCHEMA,
    TEA,
    Certificate,
    Names,
    Page,
    WebSite,
    archive,
    digest,
    endless,
    packed,
    single,
    slowly,
    web_site,
)
from skillwire.core.errors import DigestMismatchError, LimitError, NotFoundError, SkillError
from skillwire.sources.wellknown.client import SiteClient, archive_uri
from skillwire.sources.wellknown.web import (
    ForeignHostError,
    SiteAnswerError,
    SiteTooSlowError,
    SiteUnavailableError,
    UnsafeAddressError,
)
from skillwire.wire.wellknown import SiteFile, SiteForm, files_digest, parse_site

TEA_URI = "skill://tea/SKILL.md"
BELOW = "/.well-known/agent-skills/"
ROOM = 1_000_000


@pytest.fixture
def site() -> Iterator[WebSite]:
    with web_site() as found:
        yield found


async def read(client: SiteClient, uri: str = TEA_URI, max_bytes: int = ROOM) -> bytes:
    return await client.read(await client.index(), uri, max_bytes=max_bytes)


# What is sent


@pytest.mark.requirement("DISC-13")
async def test_a_request_tells_the_site_nothing_about_us_but_the_program(site: WebSite) -> None:
    site.index(single())
    site.put(f"{BELOW}tea/SKILL.md", TEA, Set_Cookie="a=b")
    client = SiteClient(site.url)

    await read(client)
    await read(client)

    for asked in site.asked:
        assert asked.headers["host"] == f"127.0.0.1:{site.port}"
        assert asked.headers["accept-encoding"] == "identity"
        assert asked.headers["user-agent"].startswith("skillwire/")
        assert asked.headers.keys() <= {"host", "accept", "accept-encoding", "user-agent", "connection"}


async def test_a_proxy_of_the_environment_is_not_used(site: WebSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    site.index(single())

    assert "tea" in (await SiteClient(site.url).index()).by_name


@pytest.mark.requirement("DISC-08")
async def test_an_index_that_did_not_change_is_not_sent_twice(site: WebSite) -> None:
    site.index(single(), ETag='"one"', Cache_Control="max-age=60")
    client = SiteClient(site.url)

    first = await client.index()
    second = await client.index()
    site.index(single(), single(name="milk"), ETag='"two"')
    third = await client.index()

    assert second == first
    assert first.fresh_seconds == 60.0
    assert [asked.headers.get("if-none-match") for asked in site.asked] == [None, '"one"', '"one"']
    assert sorted(third.by_name) == ["milk", "tea"]


# The three forms


@pytest.mark.requirement("DISC-03")
@pytest.mark.requirement("CONF-22")
async def test_the_oldest_form_is_found_at_its_own_place_and_vouches_for_nothing(site: WebSite) -> None:
    site.put(
        OLD_INDEX,
        {"skills": [{"name": "tea", "description": "Tea.", "files": ["SKILL.md", "references/a b.md"]}]},
    )
    site.put("/.well-known/skills/tea/SKILL.md", TEA)
    site.put("/.well-known/skills/tea/references/a%20b.md", b"things")
    client = SiteClient(site.url)

    index = await client.index()

    assert index.site.form is SiteForm.V0_1_0
    assert [finding.code for finding in index.findings] == ["site-unverifiable"]
    assert await read(client) == TEA
    assert await read(client, "skill://tea/references/a%20b.md") == b"things"
    with pytest.raises(NotFoundError):
        await read(client, "skill://tea/other.md")
    assert site.paths[:2] == [INDEX, OLD_INDEX]


@pytest.mark.requirement("DISC-03")
@pytest.mark.requirement("DISC-12")
async def test_the_interim_form_holds_every_file_to_its_digest(site: WebSite) -> None:
    files = [{"path": "SKILL.md", "digest": digest(TEA)}, {"path": "a.md", "digest": digest(b"a")}]
    site_files, _ = parse_site({"version": "0.2.0", "skills": [_interim(files, "sha256:" + "0" * 64)]})
    assert site_files.entries == ()
    right = _interim(files, files_digest(_files(files)))
    site.put(INDEX, {"version": "0.2.0", "skills": [right]})
    site.put(f"{BELOW}tea/SKILL.md", TEA)
    site.put(f"{BELOW}tea/a.md", b"b")
    client = SiteClient(site.url)

    assert (await client.index()).site.form is SiteForm.INTERIM
    assert await read(client) == TEA
    with pytest.raises(DigestMismatchError):
        await read(client, "skill://tea/a.md")


@pytest.mark.requirement("DISC-03")
@pytest.mark.parametrize("index", [{"$schema": "https://x.example/9"}, {"version": "7"}, {"$schema": 4}])
async def test_an_index_of_a_form_nobody_knows_lists_nothing(site: WebSite, index: dict[str, Any]) -> None:
    site.put(INDEX, {**index, "skills": [single()]})

    found = await SiteClient(site.url).index()

    assert (found.site.form, found.by_name) == (None, {})
    assert [finding.code for finding in found.findings] == ["site-form-unknown"]
    assert site.paths == [INDEX]


@pytest.mark.parametrize(
    "page", [Page(status=404), Page(status=410), Page(b"<html>", headers={"Content-Type": "text/html"})]
)
async def test_a_site_without_an_index_says_so(site: WebSite, page: Page) -> None:
    site.pages[INDEX] = site.pages[OLD_INDEX] = page

    with pytest.raises(SiteAnswerError) as caught:
        await SiteClient(site.url).index()

    assert "no index" in str(caught.value)
    assert site.paths == [INDEX, OLD_INDEX]


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 50_000, b'{"a":1,"a":2}', b"\xff"])
async def test_an_index_that_is_no_json_is_refused(site: WebSite, body: bytes) -> None:
    site.put(INDEX, body)

    with pytest.raises(SiteAnswerError):
        await SiteClient(site.url).index()


# Redirects


@pytest.mark.requirement("DISC-08")
@pytest.mark.requirement("DISC-04")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed_and_urls_start_where_it_led(site: WebSite, status: int) -> None:
    site.redirect(INDEX, "/moved/index.json", status)
    site.put("/moved/index.json", {"$schema": SCHEMA, "skills": [single(url="tea.md")]})
    site.redirect("/moved/tea.md", f"{site.url}/moved/there.md", status)
    site.put("/moved/there.md", TEA)

    assert await read(SiteClient(site.url)) == TEA


@pytest.mark.requirement("DISC-08")
async def test_redirects_in_a_circle_end_after_five(site: WebSite) -> None:
    site.redirect(INDEX, "/a")
    site.redirect("/a", "/b")
    site.redirect("/b", "/a")

    with pytest.raises(SiteAnswerError):
        await SiteClient(site.url).index()

    assert len(site.paths) == 6


@pytest.mark.requirement("DISC-11")
@pytest.mark.requirement("DISC-13")
@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("http://169.254.169.254/latest/meta-data/", ForeignHostError),
        ("https://169.254.169.254/", ForeignHostError),
        ("http://localhost:{port}/", ForeignHostError),
        ("http://127.0.0.1:1/", ForeignHostError),
        ("http://127.1:{port}/", ForeignHostError),
        ("http://[::ffff:127.0.0.1]:{port}/", ForeignHostError),
        ("//evil.example/", ForeignHostError),
        ("https://evil.example/", ForeignHostError),
        ("file:///etc/passwd", SiteAnswerError),
        ("gopher://127.0.0.1/", SiteAnswerError),
        ("", SiteAnswerError),
        ("http://[", SiteAnswerError),
    ],
)
async def test_a_redirect_to_somewhere_else_is_not_followed(
    site: WebSite, target: str, error: type[SkillError]
) -> None:
    site.redirect(INDEX, target.format(port=site.port))
    names = Names(**{"127_0_0_1": [["127.0.0.1"]]})

    with pytest.raises(error):
        await SiteClient(site.url, resolve=names).index()

    assert site.paths == [INDEX]
    assert names.asked == ["127.0.0.1"]


@pytest.mark.requirement("DISC-11")
async def test_artifacts_on_another_host_need_the_users_word(site: WebSite) -> None:
    with web_site() as cdn:
        cdn.put("/tea.md", TEA)
        site.index(single(url=f"{cdn.url}/tea.md"))

        with pytest.raises(ForeignHostError) as caught:
            await read(SiteClient(site.url))
        assert cdn.asked == []
        assert await read(SiteClient(site.url, hosts=[f"127.0.0.1:{cdn.port}"])) == TEA

    assert f"127.0.0.1:{cdn.port}" in caught.value.fix


# Addresses


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return Certificate.make(tmp_path, "skills.example", "127.0.0.1")


@pytest.mark.requirement("DISC-13")
async def test_a_name_is_resolved_once_and_the_connection_goes_to_that_address(
    certificate: Certificate,
) -> None:
    context, names = certificate.server, list[str | None]()
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with web_site(context) as site:
        site.index(single())
        # No name server knows this name, and a second answer would lead elsewhere.
        resolver = Names(skills_example=[["127.0.0.1"], ["10.255.255.1"]])
        client = SiteClient(f"https://skills.example:{site.port}", resolve=resolver, tls=certificate.client)

        assert "tea" in (await client.index()).by_name

    assert resolver.asked == ["skills.example"]
    assert names == ["skills.example"]
    assert site.asked[0].headers["host"] == f"skills.example:{site.port}"


@pytest.mark.requirement("DISC-13")
@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "fe80::1", "0.0.0.0", "::", "::ffff:127.0.0.1", "224.0.0.1", "2002:7f00:1::"],
)
async def test_a_public_name_at_an_address_no_site_has_is_refused(address: str) -> None:
    resolver = Names(skills_example=[["93.184.215.14", address]])

    with pytest.raises(UnsafeAddressError) as caught:
        await SiteClient("https://skills.example", resolve=resolver, seconds=5).index()

    assert caught.value.refusal == "unsafe-address"


@pytest.mark.requirement("DISC-13")
@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "100.64.0.1", "::1", "fd00::1", "192.168.0.1"])
async def test_a_host_the_site_chose_must_be_public(certificate: Certificate, address: str) -> None:
    with web_site(certificate.server) as site:
        resolver = Names(skills_example=[["127.0.0.1"]], x_cdn_example=[[address]])
        site.redirect(INDEX, f"https://x.cdn.example:{site.port}/index.json")
        client = SiteClient(
            f"https://skills.example:{site.port}",
            hosts=[f"*.cdn.example:{site.port}"],
            resolve=resolver,
            tls=certificate.client,
        )

        with pytest.raises(UnsafeAddressError):
            await client.index()

        assert site.paths == [INDEX]


@pytest.mark.requirement("DISC-13")
async def test_a_certificate_for_another_name_ends_the_connection(certificate: Certificate) -> None:
    with web_site(certificate.server) as site:
        site.index(single(url=f"https://other.example:{site.port}/tea.md"))
        site.put("/tea.md", TEA)
        resolver = Names(skills_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
        client = SiteClient(
            f"https://skills.example:{site.port}",
            hosts=[f"other.example:{site.port}"],
            resolve=resolver,
            tls=certificate.client,
        )

        # Both names are at one address, and only one of them is the server's.
        with pytest.raises(SiteUnavailableError):
            await read(client)

        assert site.paths == [INDEX]


@pytest.mark.requirement("DISC-13")
async def test_a_certificate_nobody_signed_is_not_believed(certificate: Certificate) -> None:
    with web_site(certificate.server) as site:
        site.index(single())

        with pytest.raises(SiteUnavailableError) as caught:
            await SiteClient(site.url, tls=ssl.create_default_context()).index()

        assert "certificate" in str(caught.value)
        assert site.asked == []


async def test_a_name_without_an_address_is_a_site_that_is_away() -> None:
    with pytest.raises(SiteUnavailableError):
        await SiteClient("https://skills.example", resolve=Names()).index()


async def test_the_next_address_is_tried_when_one_does_not_answer(site: WebSite) -> None:
    site.index(single())
    resolver = Names(localhost=[["::1", "127.0.0.1"]])

    assert "tea" in (await SiteClient(f"http://localhost:{site.port}", resolve=resolver).index()).by_name


# Bodies


@pytest.mark.requirement("DISC-07")
async def test_an_artifact_with_one_byte_changed_is_refused(site: WebSite) -> None:
    data = archive()
    for position in (0, len(data) // 2, len(data) - 1):
        flipped = bytearray(data)
        flipped[position] ^= 1
        site.index(packed(data))
        site.put(f"{BELOW}bag.tar.gz", bytes(flipped), Content_Type="application/gzip")

        with pytest.raises(DigestMismatchError):
            await read(SiteClient(site.url), archive_uri("bag"))


async def test_a_body_without_end_is_cut_off_at_its_cap(site: WebSite) -> None:
    site.index(single())
    site.pages[f"{BELOW}tea/SKILL.md"] = Page(write=endless)

    with pytest.raises(LimitError):
        await read(SiteClient(site.url), max_bytes=100_000)


async def test_an_index_without_end_is_cut_off(site: WebSite) -> None:
    site.pages[INDEX] = Page(write=endless)

    with pytest.raises(LimitError):
        await SiteClient(site.url).index()


async def test_a_body_that_drips_is_given_up(site: WebSite) -> None:
    site.pages[INDEX] = Page(write=slowly)
    start = time.monotonic()

    with pytest.raises(SiteTooSlowError):
        await SiteClient(site.url, seconds=1.0).index()

    assert time.monotonic() - start < 10


async def test_a_name_server_that_does_not_answer_is_given_up() -> None:
    async def silent(host: str, port: int) -> list[str]:
        await anyio.sleep(60)
        return [host, str(port)]

    with pytest.raises(SiteTooSlowError):
        await SiteClient("https://skills.example", resolve=silent, seconds=0.2).index()


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "br", "deflate"])
async def test_a_compressed_answer_is_refused_unread(site: WebSite, coding: str) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    site.put(INDEX, bomb, Content_Encoding=coding)

    with pytest.raises(SiteAnswerError) as caught:
        await SiteClient(site.url).index()

    assert caught.value.violates == "LIM-06"


@pytest.mark.requirement("DISC-06")
@pytest.mark.parametrize(
    ("url", "headers", "as_zip"),
    [
        ("bag.tar.gz", {"Content_Type": "application/gzip"}, False),
        ("bag.zip", {"Content_Type": "application/zip; charset=binary"}, True),
        ("bag.zip", {"Content_Type": "application/gzip"}, False),
        ("bag", {"Content_Type": "application/zip"}, True),
        ("bag.tgz", {"Content_Type": "application/octet-stream"}, False),
        ("bag.zip?download=1", {"Content_Type": "application/octet-stream"}, True),
        ("bag.tar.gz", {}, False),
        ("bag.tar.gz", {"Content_Type": "application/x-tar", "Content_Encoding": "gzip"}, False),
    ],
)
async def test_how_an_archive_is_packed_is_told_by_its_type_and_else_by_its_end(
    site: WebSite, url: str, headers: dict[str, str], as_zip: bool
) -> None:
    data = archive(as_zip=as_zip)
    site.index(packed(data, url=url))
    site.put(f"{BELOW}{url}", data, **headers)

    assert await read(SiteClient(site.url), archive_uri("bag")) == data


@pytest.mark.requirement("DISC-06")
@pytest.mark.parametrize(
    ("url", "content_type", "as_zip"),
    [
        ("bag", "application/octet-stream", False),
        ("bag.tar.gz", "application/zip", False),
        ("bag.zip", "application/octet-stream", False),
        ("bag.rar", "application/vnd.rar", True),
    ],
)
async def test_an_archive_that_is_not_what_the_site_says_is_refused(
    site: WebSite, url: str, content_type: str, as_zip: bool
) -> None:
    data = archive(as_zip=as_zip)
    site.index(packed(data, url=url))
    site.put(f"{BELOW}{url}", data, Content_Type=content_type)

    with pytest.raises(SiteAnswerError) as caught:
        await read(SiteClient(site.url), archive_uri("bag"))

    assert caught.value.violates == "DISC-06"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, NotFoundError),
        (410, NotFoundError),
        (403, SiteUnavailableError),
        (500, SiteUnavailableError),
        (206, SiteAnswerError),
    ],
)
async def test_a_status_says_what_is_wrong(site: WebSite, status: int, error: type[SkillError]) -> None:
    site.index(single())
    site.pages[f"{BELOW}tea/SKILL.md"] = Page(TEA, status)

    with pytest.raises(error):
        await read(SiteClient(site.url))


async def test_an_answer_that_is_no_http_is_refused() -> None:
    async def babble(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"220 mail.example ESMTP\r\n")

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, babble)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)

        with pytest.raises(SiteAnswerError):
            await SiteClient(f"http://127.0.0.1:{port}").index()

        tasks.cancel_scope.cancel()


async def test_one_bad_entry_among_many_costs_only_itself(site: WebSite) -> None:
    site.index(
        single(),
        {**single(name="cup"), "digest": "md5:1"},
        {**single(name="pot"), "type": "wasm"},
        single(name="twin"),
        single(skill_md("twin"), name="twin"),
    )

    index = await SiteClient(site.url).index()

    assert list(index.by_name) == ["tea"]
    assert [finding.code for finding in index.findings] == [
        "site-entry-invalid",
        "site-type-unknown",
        "site-entry-invalid",
    ]


async def test_a_hundred_thousand_entries_are_read_and_one_more_is_not(site: WebSite) -> None:
    entries = [single(name=f"s{number}", url="x") for number in range(100_000)]
    body = json.dumps({"$schema": SCHEMA, "skills": entries}).encode()
    site.put(INDEX, body)
    client = SiteClient(site.url)

    assert len((await client.index()).by_name) == 100_000
    site.index(*entries, single())
    index = await client.index()

    assert index.by_name == {}
    assert [finding.code for finding in index.findings] == ["site-invalid"]


def _interim(files: list[dict[str, str]], whole: str) -> dict[str, Any]:
    return {"name": "tea", "description": "Tea.", "digest": whole, "files": files}


def _files(files: list[dict[str, str]]) -> list[SiteFile]:
    return [SiteFile(file["path"], file["digest"]) for file in files]
