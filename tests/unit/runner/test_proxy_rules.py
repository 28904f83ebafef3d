"""What the proxy of a run understands, whom it lets through, and what a server gets to see."""

import time
from http import HTTPStatus
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.addresses import AddressScope, scope_of
from skillwire.core.errors import RunnerError
from skillwire.runner.proxy import is_refused_address
from skillwire.runner.proxy_requests import AllowList, ProxyRequest, RefusedRequestError, parse_request


def head(*lines: str) -> bytes:
    return "\r\n".join(lines).encode("latin-1")


def refused(*lines: str | bytes) -> RefusedRequestError:
    data = b"\r\n".join(line if isinstance(line, bytes) else line.encode("latin-1") for line in lines)
    with pytest.raises(RefusedRequestError) as caught:
        parse_request(data)
    return caught.value


# Who is let through


@pytest.mark.requirement("EXEC-12")
def test_a_host_is_let_through_on_the_port_it_is_listed_with() -> None:
    allowed = AllowList(["api.example.org", "www.example.org:80", "odd.example.org:8443"])

    for host, port in (("api.example.org", 443), ("www.example.org", 80), ("odd.example.org", 8443)):
        allowed.require(ProxyRequest(host, port))


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("api.example.org", 80),
        ("www.example.org", 443),
        ("example.org", 443),
        ("x.api.example.org", 443),
        ("api.example.org.evil.example", 443),
        ("apixexample.org", 443),
    ],
)
def test_any_other_host_or_port_is_not_let_through(host: str, port: int) -> None:
    allowed = AllowList(["api.example.org", "www.example.org:80"])

    with pytest.raises(RefusedRequestError) as caught:
        allowed.require(ProxyRequest(host, port))

    assert caught.value.status is HTTPStatus.FORBIDDEN
    assert caught.value.why == "not-allowed"
    assert f"'{host}:{port}'" in str(caught.value)


@pytest.mark.requirement("EXEC-12")
def test_an_empty_list_lets_nobody_through() -> None:
    with pytest.raises(RefusedRequestError):
        AllowList([]).require(ProxyRequest("example.org", 443))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "*.example.org",
        "Example.org",
        "127.0.0.1",
        "[::1]:443",
        "a b",
        "x:0",
        "x:99999",
        "x:",
        "u@x",
        "http://x",
    ],
)
def test_what_is_no_host_cannot_be_allowed(text: str) -> None:
    with pytest.raises(RunnerError):
        AllowList([text])


# Which addresses


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    "text",
    (
        "127.0.0.1 10.0.0.1 172.16.5.4 192.168.0.1 100.64.0.1 100.100.100.200 169.254.169.254 168.63.129.16 "
        "0.0.0.0 255.255.255.255 224.0.0.251 240.0.0.1 192.0.0.192 198.18.0.1 203.0.113.5 "
        "::1 :: fe80::1 fe80::1%lo fc00::1 fd00:ec2::254 ff02::1 fec0::1 2001:db8::1 "
        "::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 64:ff9b::10.0.0.1 "
        "64:ff9b::169.254.169.254 64:ff9b:1::1 2002:7f00:1:: 2002:a00:1::1 2001:0:7f00:1::1"
    ).split(),
)
def test_no_script_reaches_an_address_that_is_not_public(text: str) -> None:
    assert is_refused_address(ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::8.8.8.8"])
def test_scripts_reach_public_addresses(text: str) -> None:
    assert not is_refused_address(ip_address(text))


@given(st.ip_addresses())
def test_only_public_addresses_are_reached(address: object) -> None:
    parsed = ip_address(str(address))

    assert is_refused_address(parsed) == (scope_of(parsed) is not AddressScope.PUBLIC)


# Tunnels


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    "target", ["api.example.org:443", "API.Example.org:443", "api.example.org.:443", "api.example.org:0443"]
)
def test_a_tunnel_is_asked_for_with_a_host_and_a_port(target: str) -> None:
    request = parse_request(
        head(f"CONNECT {target} HTTP/1.1", f"Host: {target}", "Proxy-Connection: keep-alive")
    )

    assert request == ProxyRequest("api.example.org", 443)
    assert request.is_tunnel


def test_an_old_client_may_leave_the_host_out() -> None:
    assert parse_request(head("CONNECT a.example:443 HTTP/1.0")) == ProxyRequest("a.example", 443)


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("api.example.org", 400),
        ("api.example.org:", 400),
        ("api.example.org:x", 400),
        ("api.example.org:443:443", 400),
        ("user:pw@api.example.org:443", 400),
        ("https://api.example.org:443", 400),
        ("/", 400),
        ("*", 400),
        ("api.example.org%2eevil:443", 400),
        ("93.184.216.34:443", 403),
        ("127.1:443", 403),
        ("2130706433:443", 403),
        ("0x7f000001:443", 403),
        ("0177.0.0.1:443", 403),
        ("[2606:4700::1111]:443", 403),
        ("[::ffff:127.0.0.1]:443", 403),
        ("..:443", 403),
        ("-x.example:443", 403),
    ],
)
def test_a_tunnel_to_anything_but_a_name_and_a_port_is_refused(target: str, status: int) -> None:
    assert refused(f"CONNECT {target} HTTP/1.1").status == status


# Plain requests


@pytest.mark.requirement("EXEC-12")
def test_a_plain_request_is_written_anew_for_the_server() -> None:
    request = parse_request(
        head(
            "GET http://WWW.example.org/a%20b?q=1&r=//x HTTP/1.1",
            "Host: other.example",
            "Accept: */*",
            "Proxy-Authorization: Basic c2VjcmV0",
            "Proxy-Connection: keep-alive",
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "Keep-Alive: timeout=5",
            "TE: trailers",
            "Upgrade: websocket",
            "X-Kept:   yes \t",
        )
    )

    assert (request.host, request.port, request.body_bytes) == ("www.example.org", 80, 0)
    assert request.head == (
        b"GET /a%20b?q=1&r=//x HTTP/1.1\r\nHost: www.example.org\r\nAccept: */*\r\nX-Kept: yes\r\n"
        b"Connection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://a.example", "a.example", "/"),
        ("http://a.example?q", "a.example", "/?q"),
        ("HTTP://a.example:80/", "a.example", "/"),
        ("http://a.example:8080/x", "a.example:8080", "/x"),
        ("http://a.example/..%2f/../x@y:z", "a.example", "/..%2f/../x@y:z"),
    ],
)
def test_the_server_gets_the_path_and_its_own_name(url: str, host: str, path: str) -> None:
    assert parse_request(head(f"GET {url} HTTP/1.1")).head == (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    )


@pytest.mark.requirement("EXEC-12")
def test_a_body_is_as_long_as_said_even_if_that_is_called_a_matter_of_the_connection() -> None:
    request = parse_request(
        head("POST http://a.example/ HTTP/1.1", "Content-Length: 12", "Connection: Content-Length, Host")
    )

    assert request.body_bytes == 12
    assert b"\r\nContent-Length: 12\r\n" in request.head
    assert b"\r\nHost: a.example\r\n" in request.head


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/index.html", 400),
        ("*", 400),
        ("https://a.example/", 400),
        ("ftp://a.example/", 400),
        ("file:///etc/passwd", 400),
        ("http:///path", 400),
        ("http://user@a.example/", 400),
        ("http://user:pw@a.example/", 400),
        ("http://a.example@b.example/", 400),
        ("http://a.example\\@b.example/", 400),
        ("http://a.example/#fragment", 400),
        ("http://a.example:/", 400),
        ("http://a.example:80x/", 400),
        ("http://a%2eexample/", 400),
        ("http://127.0.0.1/", 403),
        ("http://[::1]/", 403),
        ("http://169.254.169.254/latest/meta-data/", 403),
    ],
)
def test_a_target_that_is_no_plain_url_of_a_host_is_refused(target: str, status: int) -> None:
    assert refused(f"GET {target} HTTP/1.1").status == status


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize(
    "lines",
    [
        ("",),
        ("", "GET http://a.example/ HTTP/1.1"),
        ("GET http://a.example/",),
        ("GET http://a.example/ HTTP/2.0",),
        ("GET  http://a.example/ HTTP/1.1",),
        ("get http://a.example/ HTTP/1.1",),
        ("GET http://a.example/ x HTTP/1.1",),
        ("GET http://a.example/\xe9 HTTP/1.1",),
        ("GET http://a.example/ HTTP/1.1", "Host: a.example", "Host: a.example"),
        ("GET http://a.example/ HTTP/1.1", "Host: a.example", "hOST: b.example"),
        ("GET http://a.example/ HTTP/1.1", "X: 1", " folded"),
        ("GET http://a.example/ HTTP/1.1", "X: 1", "\tfolded"),
        ("GET http://a.example/ HTTP/1.1", "X : 1"),
        ("GET http://a.example/ HTTP/1.1", ": 1"),
        ("GET http://a.example/ HTTP/1.1", "no colon"),
        ("GET http://a.example/ HTTP/1.1", "X: a\x0bb"),
        ("GET http://a.example/ HTTP/1.1", "X: a\x7fb"),
        ("GET http://a.example/ HTTP/1.1", "X: a\x00b"),
        ("GET http://a.example/ HTTP/1.1", "X: a\nHost: b"),
        ("GET http://a.example/ HTTP/1.1", "X: a\rHost: b"),
        ("GET http://a.example/ HTTP/1.1\nHost: b",),
        ("POST http://a.example/ HTTP/1.1", "Content-Length: 1", "Content-Length: 1"),
        ("POST http://a.example/ HTTP/1.1", "Content-Length: 1, 1"),
        ("POST http://a.example/ HTTP/1.1", "Content-Length: +1"),
        ("POST http://a.example/ HTTP/1.1", "Content-Length: 1_0"),
        ("POST http://a.example/ HTTP/1.1", "Content-Length: \xb2"),
        ("POST http://a.example/ HTTP/1.1", "Content-Length:"),
        ("POST http://a.example/ HTTP/1.1", "Content-Length: " + "9" * 20),
        ("POST http://a.example/ HTTP/1.1", "Content-Length: 1", "Transfer-Encoding: chunked"),
        ("CONNECT a.example:443 HTTP/1.1", "Content-Length: 1"),
        ("CONNECT a.example:443 HTTP/1.1", "Host: a.example", "Host: b.example"),
    ],
)
def test_a_request_that_could_be_read_in_two_ways_is_malformed(lines: tuple[str, ...]) -> None:
    refusal = refused(*lines)

    assert refusal.status is HTTPStatus.BAD_REQUEST
    assert refusal.why == "malformed"


@pytest.mark.requirement("EXEC-12")
def test_a_body_without_a_length_is_refused() -> None:
    assert refused("POST http://a.example/ HTTP/1.1", "Transfer-Encoding: chunked").status == 411


@pytest.mark.requirement("EXEC-12")
@pytest.mark.parametrize("method", ["TRACE", "PROPFIND", "PURGE"])
def test_other_methods_are_not_passed_on(method: str) -> None:
    assert refused(f"{method} http://a.example/ HTTP/1.1").status == 405


def test_a_request_with_countless_headers_is_refused() -> None:
    assert refused("GET http://a.example/ HTTP/1.1", *["X: 1"] * 101).status == 431


# Whatever comes


@pytest.mark.requirement("EXEC-12")
@given(st.text(st.characters(max_codepoint=255), max_size=200))
def test_a_refusal_is_one_whole_answer_with_one_line(text: str) -> None:
    refusal = refused(f"GET http://{text}", text)

    answer_head, _, body = refusal.answer.partition(b"\r\n\r\n")
    assert answer_head.startswith(b"HTTP/1.1 4")
    assert f"Content-Length: {len(body)}".encode() in answer_head.split(b"\r\n")
    assert body.count(b"\n") == 1
    assert body.decode().rstrip("\n").isprintable()


@given(
    st.sampled_from(["GET", "POST", "CONNECT"]),
    st.text(st.sampled_from("ab.:/@[]?#%\\-1"), max_size=30),
    st.lists(st.text(st.sampled_from("aHost: \t\r\n\x00é"), max_size=20), max_size=3),
)
def test_what_the_server_gets_has_one_host_and_one_end(method: str, target: str, lines: list[str]) -> None:
    try:
        request = parse_request(head(f"{method} http://a.example{target} HTTP/1.1", *lines))
    except RefusedRequestError:
        return

    assert request.head.count(b"\r\n\r\n") == 1
    assert request.head.endswith(b"\r\n\r\n")
    assert request.head.lower().count(b"\r\nhost:") == 1
    assert request.host == "a.example" or request.host.startswith("a.example")


@pytest.mark.parametrize("line", ["X:" + " " * 16_000 + "\x01", "X: " + "a " * 8_000 + "\x01", "X" * 16_000])
def test_an_awkward_header_is_read_in_a_moment(line: str) -> None:
    begun = time.process_time()

    refused("GET http://a.example/ HTTP/1.1", line)

    assert time.process_time() - begun < 0.5
