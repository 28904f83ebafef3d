"""The options of `skillwire serve`: the one place for each name, type, default, bound and help line.

A field with the metadata of `_option` is an option. Its name is the key in the
configuration file, and with hyphens the option on the command line. The command
line (`cli/serve.py`) and the configuration file (`config.py`) are made from
`OPTIONS`. The other fields are set by code alone. All values can be pickled.
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast, get_type_hints

from skillwire.core import InvalidUriError, JsonDict, SkillError, quoted, visible
from skillwire.runner import Policy, load_policy
from skillwire.runner.preparation import MAX_ARGUMENTS_SIZE
from skillwire.server.access.settings import AccessSettings, Oidc, Rate
from skillwire.server.hosts import LOOPBACK
from skillwire.server.limits import DEFAULT_PAGE_SIZE, MAX_MESSAGE_BYTES
from skillwire.server.ops.peers import Proxies
from skillwire.server.visibility import ListingRules, Visibility
from skillwire.sources.snapshot import Source

_T = TypeVar("_T")

_OPTION: Final = "option"
_MAX_PORT: Final = 65_535
LONGEST_NAME: Final = 100
"""The maximum length of the name of a server."""
_RATE: Final = re.compile(r"(?P<rate>\d{1,7}(?:\.\d{1,3})?)(?:/(?P<burst>\d{1,7}))?")
_BURST_SECONDS: Final = 5


class OptionError(SkillError):
    """An option has a value that cannot be used, alone or together with another option."""

    refusal = "misuse"


class ValueKind(Enum):
    """What the value of an option is."""

    FLAG = auto()
    WHOLE = auto()
    NUMBER = auto()
    TEXT = auto()
    TEXTS = auto()
    PATH = auto()
    PATHS = auto()


_KINDS: Final[dict[object, ValueKind]] = {
    bool: ValueKind.FLAG,
    int: ValueKind.WHOLE,
    int | None: ValueKind.WHOLE,
    float: ValueKind.NUMBER,
    str: ValueKind.TEXT,
    tuple[str, ...]: ValueKind.TEXTS,
    Path | None: ValueKind.PATH,
    tuple[Path, ...]: ValueKind.PATHS,
}


@dataclass(frozen=True, slots=True)
class _Spec:
    help: str
    metavar: str
    least: float
    most: float
    on_command_line: bool
    is_live: bool


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its key in the configuration file, and how its value is shown and checked."""

    name: str
    kind: ValueKind
    default: object
    help: str
    metavar: str
    least: float
    most: float
    on_command_line: bool
    """Whether it can be typed; every option can be set in the configuration file."""
    is_live: bool
    """Whether a new value takes effect on SIGHUP, without a restart."""

    @property
    def flag(self) -> str:
        """The option as it is, or was, typed on the command line."""
        no = "no-" if self.default is True else ""
        return f"--{no}{self.name.replace('_', '-')}"

    @property
    def label(self) -> str:
        """The option as a message names it."""
        return self.flag if self.on_command_line else self.name

    @property
    def line(self) -> str:
        """The line that sets the option in the configuration file, with a placeholder for its value."""
        if self.kind is ValueKind.FLAG:
            value = "false" if self.default is True else "true"
        elif self.kind in (ValueKind.WHOLE, ValueKind.NUMBER):
            value = self.metavar
        else:
            value = f'"{self.metavar}"'
        return f"{self.name} = {f'[{value}]' if self.kind in (ValueKind.TEXTS, ValueKind.PATHS) else value}"


def _option(
    help: str,
    *,
    metavar: str = "",
    least: float = 0,
    most: float = 0,
    on_command_line: bool = False,
    is_live: bool = False,
) -> dict[str, _Spec]:
    """Return the metadata of a field that is an option."""
    return {_OPTION: _Spec(help, metavar, least, most, on_command_line, is_live)}


@dataclass(slots=True)
class PublishingRequest:
    """A request of an authenticated caller below the path of the catalog; `route` is the rest of its path."""

    method: str
    route: str
    query: Mapping[str, str]
    caller: str
    rights: Visibility
    read_body: Callable[[], Awaitable[tuple[bytes, Visibility]]]
    """Returns the body, and what the caller may do when it has arrived."""

    async def read(self) -> bytes:
        """Return the body, which has a maximum size, and update `rights`."""
        body, self.rights = await self.read_body()
        return body


class Publishing(Protocol):
    """A catalog that callers may publish to."""

    async def answer(self, request: PublishingRequest) -> tuple[int, JsonDict]:
        """Return the status and the document of the response."""
        ...


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Access options of a server: credentials, rules and rates."""

    token_file: Path | None = field(
        default=None,
        metadata=_option(
            "Require a token listed in this file; create tokens with `skillwire token`.",
            metavar="FILE",
            on_command_line=True,
            is_live=True,
        ),
    )
    oidc: str = field(default="", metadata=_option("Accept signed tokens of this issuer.", metavar="ISSUER"))
    audience: str = field(
        default="", metadata=_option("Audience of signed tokens; the public URL by default.", metavar="NAME")
    )
    access: Path | None = field(
        default=None,
        metadata=_option("Rules (TOML): which callers see which skills.", metavar="FILE", is_live=True),
    )
    allow_anonymous: bool = field(
        default=False,
        metadata=_option("Accept callers without a credential.", on_command_line=True, is_live=True),
    )
    rate: str = field(
        default="", metadata=_option("Requests per second of each caller.", metavar="N[/BURST]", is_live=True)
    )

    @property
    def is_open(self) -> bool:
        """Whether no credentials are configured."""
        return self.token_file is None and not self.oidc

    def settings(self, public_url: str) -> AccessSettings:
        """Return what these options mean for a server at `public_url`.

        Raises:
            OptionError: They contradict each other.
            AccessError: One of them cannot be used.
        """
        if self.access is not None and self.is_open:
            raise OptionError(
                "access needs callers with a credential, and none is required",
                fix=f"set {label('token_file')} or {label('oidc')}",
            )
        if self.audience and not self.oidc:
            raise OptionError("audience is for signed tokens", fix="set oidc to their issuer")
        return AccessSettings(
            tokens=self.token_file,
            oidc=Oidc(self.oidc, self.audience or public_url) if self.oidc else None,
            rules=self.access,
            allow_anonymous=self.allow_anonymous,
            rate=_rate(self.rate) if self.rate else None,
            public_url=public_url,
        )


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How a server is reached over HTTP."""

    http: str = field(
        default="", metadata=_option("Serve over HTTP, at /mcp.", metavar="HOST:PORT", on_command_line=True)
    )
    workers: int = field(
        default=1,
        metadata=_option(
            "Processes that serve HTTP; 1 by default.", metavar="N", least=1, most=64, on_command_line=True
        ),
    )
    public_url: str = field(
        default="",
        metadata=_option(
            "URL of the endpoint for clients, if it differs (behind a proxy).",
            metavar="URL",
            on_command_line=True,
        ),
    )
    proxy: tuple[str, ...] = field(
        default=(),
        metadata=_option("Trust `X-Forwarded-For` from these addresses or networks.", metavar="ADDRESS"),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=_option("Serve HTTPS with this certificate chain.", metavar="FILE", is_live=True),
    )
    tls_key: Path | None = field(
        default=None, metadata=_option("Private key of the certificate.", metavar="FILE", is_live=True)
    )
    access_log: bool = field(
        default=False, metadata=_option("Write a line of JSON per request to standard error.")
    )
    auth: AccessOptions = AccessOptions()

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port to listen on.

        Raises:
            OptionError: `http` is not HOST:PORT.
        """
        host, colon, port = self.http.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > _MAX_PORT:
            raise OptionError(f"{quoted(self.http)} is not HOST:PORT", fix="write it like 127.0.0.1:8000")
        return host, int(port)

    @property
    def host(self) -> str:
        """The host to listen on.

        Raises:
            OptionError: `http` is not HOST:PORT.
        """
        return self.address[0]

    @property
    def access(self) -> AccessSettings:
        """The access settings.

        Raises:
            OptionError: Options about it contradict each other.
            AccessError: One of them cannot be used.
        """
        return self.auth.settings(self.public_url)

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """The files of the certificate and of its key, if TLS is served.

        Raises:
            OptionError: Only one of them is set.
        """
        if self.tls_cert is None and self.tls_key is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise OptionError("tls_cert and tls_key belong together", fix="set both of them")
        return self.tls_cert.absolute(), self.tls_key.absolute()

    def check(self) -> None:
        """Check what can be checked without reading a file.

        Raises:
            OptionError: Options contradict each other, or other machines could use the server unasked.
            SkillError: One of them cannot be used.
        """
        host, access, _ = self.host, self.access, self.tls
        if access.is_open and host not in LOOPBACK and not self.auth.allow_anonymous:
            raise OptionError(
                f"{host} can be reached from other machines, and no credential is required",
                fix="make tokens with `skillwire token new NAME --file F` and add --token-file F, "
                "or add --allow-anonymous if everyone may see these skills",
            )
        Proxies(self.proxy)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What is served, and how."""

    folders: tuple[Path, ...] = field(
        default=(), metadata=_option("Folders of skills.", metavar="DIR", on_command_line=True)
    )
    catalog: str = field(
        default="",
        metadata=_option(
            "Serve this catalog instead of folders: sqlite:///FILE, postgresql://USER@HOST/DATABASE, or "
            "default, the one that `skillwire publish` uses. A password belongs in PGPASSWORD or ~/.pgpass.",
            metavar="URL",
            on_command_line=True,
        ),
    )
    stdio: bool = field(
        default=False,
        metadata=_option("Serve over standard input and output, also in a terminal.", on_command_line=True),
    )
    name: str = field(
        default="",
        metadata=_option(
            "Name of the server; the folder's name by default.", metavar="NAME", on_command_line=True
        ),
    )
    upstream: Path | None = field(
        default=None,
        metadata=_option(
            "Serve the skills of these MCP servers (mcp.json) too.", metavar="FILE", on_command_line=True
        ),
    )
    archives: bool = field(
        default=False, metadata=_option("Unpack skills that upstream servers serve as archives.")
    )
    dialect: tuple[str, ...] = field(
        default=(),
        metadata=_option(
            "Also serve an older dialect; may be repeated.", metavar="NAME", on_command_line=True
        ),
    )
    scripts: bool = field(
        default=False,
        metadata=_option(
            "Run scripts for clients, in a sandbox; also serves the dialect exec.", on_command_line=True
        ),
    )
    script_policy: Path | None = field(
        default=None,
        metadata=_option("Policy for scripts (TOML): limits, network and secrets.", metavar="FILE"),
    )
    watch: bool = field(
        default=True, metadata=_option("Publish changes of the folders while it runs.", on_command_line=True)
    )
    strict: bool = field(default=False, metadata=_option("Do not start when a skill cannot be published."))
    follow_links: bool = field(default=False, metadata=_option("Enter folders that are symbolic links."))
    prefix: str = field(default="", metadata=_option("Prefix of every skill's path.", metavar="PATH"))
    page_size: int = field(
        default=DEFAULT_PAGE_SIZE,
        metadata=_option("Number of skills per page of a listing.", metavar="N", least=1, most=10_000),
    )
    ttl: float = field(
        default=60.0,
        metadata=_option(
            "How long clients may cache an answer.", metavar="SECONDS", least=0, most=31_536_000
        ),
    )
    instructions: bool = field(
        default=True, metadata=_option("Name the skills in the instructions for models.")
    )
    mirror: bool = field(default=False, metadata=_option("Repeat frontmatter in the metadata of resources."))
    find: bool = field(default=False, metadata=_option("Offer the tool find_skills, a full-text search."))
    unlisted: tuple[str, ...] = field(
        default=(),
        metadata=_option("Serve the skills below these paths without listing them.", metavar="PATH"),
    )
    list_most: int | None = field(
        default=None,
        metadata=_option(
            "Above this number of skills, list only pinned ones.", metavar="N", least=0, most=10**9
        ),
    )
    pin: tuple[str, ...] = field(
        default=(), metadata=_option("Always list the skills below these paths.", metavar="PATH")
    )
    endpoint: HttpOptions = HttpOptions()

    default_name: str = ""
    """The name of the server when `name` is empty."""
    summary: str = ""
    """A text for the instructions that stands for the summary of the skills."""
    policy: Policy | None = None
    """What scripts may use, with `scripts`; by default that of `script_policy`."""
    is_replicated: bool = False
    """Whether servers on other machines serve the same skills, behind a balancer."""
    more_sources: Callable[[], Sequence[Source]] | None = None
    """Creates further sources, in the process that serves them."""
    publishing: Callable[[], AbstractAsyncContextManager[Publishing]] | None = None
    """Opens the catalog that callers may publish to, in the process that serves it."""
    is_fast: bool = True

    @property
    def server_name(self) -> str:
        """The name of the server, as clients and people see it; may be empty."""
        return self.name.strip() or self.default_name

    @property
    def listing(self) -> ListingRules:
        """The listing rules.

        Raises:
            OptionError: A path cannot be that of a folder.
        """
        try:
            return ListingRules(self.pin, self.unlisted, self.list_most)
        except InvalidUriError as error:
            fix = "write it like acme/billing"
            raise OptionError(f"pin or unlisted cannot be used: {error}", fix=fix) from error

    @property
    def script_rules(self) -> Policy | None:
        """The policy for scripts; None when no script is run.

        Raises:
            OptionError: There is a policy, and no script is run.
            PolicyError: The file of the policy cannot be used.
        """
        if not self.scripts:
            if self.script_policy is not None:
                raise OptionError("script_policy is for servers that run scripts", fix="add --scripts")
            return None
        if self.policy is not None:
            return self.policy
        return Policy() if self.script_policy is None else load_policy(self.script_policy)

    @property
    def message_bytes(self) -> int:
        """The maximum size of a client's message in bytes, over HTTP and stdio."""
        return MAX_MESSAGE_BYTES + (MAX_ARGUMENTS_SIZE if self.scripts else 0)


def _collected(model: type, found: dict[str, Option]) -> dict[str, Option]:
    hints = get_type_hints(model)
    for one in fields(model):
        if is_dataclass(one.default):
            _collected(type(one.default), found)
        spec = cast(_Spec | None, one.metadata.get(_OPTION))
        if spec is not None:
            assert one.name not in found, "every option has a name of its own"
            found[one.name] = Option(
                one.name,
                _KINDS[hints[one.name]],
                one.default,
                spec.help,
                spec.metavar,
                spec.least,
                spec.most,
                spec.on_command_line,
                spec.is_live,
            )
    return found


OPTIONS: Final[Mapping[str, Option]] = _collected(ServeOptions, {})
"""Every option by its name, in the order in which they are documented."""


def label(name: str) -> str:
    """Return how a message names an option."""
    return OPTIONS[name].label


def is_server_name(name: str) -> bool:
    """Return whether a server can have this name: empty for that of its folder, else one visible line."""
    return not name or (len(name) <= LONGEST_NAME and bool(name.strip()) and visible(name) == name)


def folder_name(folders: Sequence[Path]) -> str:
    """Return the name of a server of these folders, that of the first; empty when there is none."""
    first = os.fsencode(folders[0].resolve().name) if folders else b""
    return visible(first.decode("utf-8", "replace"), most=LONGEST_NAME)


def implied_name(options: ServeOptions) -> str:
    """Return the name of a server that has none in its options; may be empty."""
    return "skillwire" if options.catalog else folder_name(options.folders)


def values_of(options: object) -> dict[str, object]:
    """Return the value of every option, by its name."""
    found: dict[str, object] = {}
    for one in fields(cast(Any, options)):
        value = getattr(options, one.name)
        if _OPTION in one.metadata:
            found[one.name] = value
        elif is_dataclass(one.default):
            found |= values_of(value)
    return found


def with_values(options: _T, values: Mapping[str, object]) -> _T:
    """Return the same options with other values for some of them, by their names."""
    changes: dict[str, object] = {}
    for one in fields(cast(Any, options)):
        if _OPTION in one.metadata and one.name in values:
            changes[one.name] = values[one.name]
        elif is_dataclass(one.default):
            changes[one.name] = with_values(getattr(options, one.name), values)
    return cast(_T, replace(cast(Any, options), **changes))


def _rate(text: str) -> Rate:
    match = _RATE.fullmatch(text)
    if match is None:
        raise OptionError(
            f"the rate {quoted(text)} cannot be used",
            fix="write requests per second, like 20, or 20/100 with a burst",
        )
    per_second = float(match["rate"])
    burst = int(match["burst"]) if match["burst"] else max(1, round(per_second * _BURST_SECONDS))
    return Rate(per_second, burst)
