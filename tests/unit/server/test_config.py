"""The configuration file of `skillwire serve`."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.characters import visible
from skillwire.core.errors import SkillError
from skillwire.server.config import (
    MAX_CONFIG_SIZE,
    LiveOptions,
    OptionLayers,
    ServeConfigError,
    config_text,
    live_changes,
    parse_config,
    read_config,
)
from skillwire.server.options import (
    OPTIONS,
    Option,
    OptionError,
    ServeOptions,
    ValueKind,
    values_of,
    with_values,
)

HERE = Path("/etc/skillwire/serve.toml")
LOCAL = with_values(ServeOptions(), {"http": "127.0.0.1:8000"})
GUARDED = with_values(LOCAL, {"token_file": Path("/tokens")})


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return path


def some(option: Option) -> st.SearchStrategy[object]:
    """Return values that an option can have."""
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    paths = text.filter(lambda name: "\0" not in name).map(lambda name: Path("/srv") / name.lstrip("/"))
    kinds: dict[ValueKind, st.SearchStrategy[object]] = {
        ValueKind.FLAG: st.booleans(),
        ValueKind.WHOLE: st.integers(int(option.least), int(option.most)),
        ValueKind.NUMBER: st.floats(option.least, option.most),
        ValueKind.TEXT: text,
        ValueKind.TEXTS: st.lists(text, max_size=3).map(tuple),
        ValueKind.PATH: paths,
        ValueKind.PATHS: st.lists(paths, max_size=3).map(tuple),
    }
    return kinds[option.kind]


@given(st.fixed_dictionaries({}, optional={name: some(option) for name, option in OPTIONS.items()}))
def test_options_that_are_written_are_read_as_they_were(values: dict[str, object]) -> None:
    options = with_values(ServeOptions(), values)

    text = config_text(options)

    assert with_values(ServeOptions(), parse_config(text.encode(), HERE)) == options
    assert all(visible(character) == character for character in text if character != "\n")


@given(st.binary(max_size=200))
def test_no_bytes_make_anything_but_options_or_an_error(content: bytes) -> None:
    try:
        values = parse_config(content, HERE)
    except ServeConfigError:
        return
    assert values.keys() <= OPTIONS.keys()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('public-url = "x"', 'line 1: unknown key "public-url"; did you mean "public_url"?'),
        ("\n# x\npage_sise = 3", 'line 3: unknown key "page_sise"; did you mean "page_size"?'),
        ("colour = 3", 'line 1: unknown key "colour"'),
        ("[http]\nport = 3", "line 1: http is not a string, or empty"),
        ('name = """\nttl = x\n"""\nttl = "long"', "line 4: ttl is not a number from 0 to 3.1536e+07"),
        ("page_size = 0", "line 1: page_size is not a whole number from 1 to 10000"),
        ("page_size = true", "line 1: page_size is not a whole number"),
        ("ttl = nan", "line 1: ttl is not a number"),
        ('strict = "yes"', "line 1: strict is neither true nor false"),
        ('pin = "acme"', "line 1: pin is not a list of strings"),
        ('token_file = ""', "line 1: token_file is not a string, or empty"),
        ('folders = [""]', "line 1: folders has an empty path"),
        ("rate = 50", "line 1: rate is not a string, or empty"),
        ("rate =", "not TOML: "),
        ("rate = 1\nrate = 2", "not TOML: "),
    ],
)
def test_what_is_wrong_is_named_with_its_file_and_line(text: str, message: str) -> None:
    with pytest.raises(ServeConfigError) as caught:
        parse_config(text.encode(), HERE)

    assert str(caught.value).startswith(str(HERE))
    assert message in str(caught.value)


def test_a_value_that_cannot_be_used_is_not_repeated() -> None:
    with pytest.raises(ServeConfigError) as caught:
        parse_config(b'ttl = "skw_secret"', HERE)

    assert "skw_secret" not in f"{caught.value} {caught.value.fix}"


def test_a_path_starts_at_the_folder_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "serve.toml", 'access = "access.toml"\nfolders = ["skills", "/srv/skills"]')

    assert read_config(path) == {
        "access": tmp_path / "access.toml",
        "folders": (tmp_path / "skills", Path("/srv/skills")),
    }


def test_a_file_that_is_too_large_missing_or_writable_for_others_is_refused(tmp_path: Path) -> None:
    large = write(tmp_path / "large.toml", "#" * (MAX_CONFIG_SIZE + 1))
    shared = write(tmp_path / "shared.toml", "")
    shared.chmod(0o666)

    for path in (large, shared, tmp_path / "missing.toml", tmp_path):
        with pytest.raises(SkillError):
            read_config(path)


def test_what_is_typed_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path / "serve.toml", 'name = "file"\nttl = 5')

    options = OptionLayers({"name": "typed"}, path).read()

    assert (options.name, options.ttl, options.page_size) == ("typed", 5.0, ServeOptions().page_size)


def test_a_path_that_toml_cannot_hold_is_refused() -> None:
    with pytest.raises(OptionError):
        config_text(ServeOptions((Path("/srv/\udcff"),)))


@pytest.mark.parametrize(
    ("old", "new", "applied", "restart"),
    [
        (GUARDED, {"rate": "5"}, {"rate"}, []),
        (GUARDED, {"token_file": Path("/other")}, {"token_file"}, []),
        (GUARDED, {"access": Path("/rules"), "allow_anonymous": True}, {"access", "allow_anonymous"}, []),
        (GUARDED, {"page_size": 3, "rate": "5"}, {"rate"}, ["page_size"]),
        (GUARDED, {"token_file": None}, set[str](), ["token_file"]),
        (LOCAL, {"token_file": Path("/tokens")}, set[str](), ["token_file"]),
        (LOCAL, {"rate": "5"}, set[str](), ["rate"]),
        (with_values(LOCAL, {"rate": "3"}), {"rate": "5"}, {"rate"}, []),
        (GUARDED, {"tls_cert": Path("/a"), "tls_key": Path("/b")}, set[str](), ["tls_cert", "tls_key"]),
        (
            with_values(GUARDED, {"tls_cert": Path("/a"), "tls_key": Path("/b")}),
            {"tls_cert": Path("/c")},
            {"tls_cert"},
            [],
        ),
    ],
)
def test_some_options_can_change_while_a_server_runs(
    old: ServeOptions, new: dict[str, object], applied: set[str], restart: list[str]
) -> None:
    values, needed = live_changes(old, with_values(old, new))

    assert (values.keys(), needed) == (applied, restart)
    assert all(values[name] == new[name] for name in applied)


def test_a_new_version_is_applied_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "serve.toml", 'token_file = "tokens"\nrate = "5"')
    layers = OptionLayers({"http": "127.0.0.1:0"}, path)
    live = LiveOptions(layers.read(), layers.read)
    seen: list[str] = []

    def apply(options: ServeOptions) -> None:
        seen.append(options.endpoint.auth.rate)

    assert live.reload(apply)
    write(path, 'token_file = "tokens"\nrate = "6"\npage_size = 9')
    assert live.reload(apply)
    write(path, 'token_file = "tokens"\nrate = "often"')
    assert not live.reload(apply)
    write(path, "rate = ")
    assert not live.reload(apply)

    assert seen == ["6"]
    assert live.options.endpoint.auth.rate == "6"
    assert values_of(live.options)["page_size"] == ServeOptions().page_size
    said = [(record.levelno, record.message) for record in caplog.records]
    assert said[0] == (logging.WARNING, "restart the server to apply: page_size")
    assert [level for level, _ in said[1:]] == [logging.ERROR] * 2
    assert all("the previous settings stay in effect" in message for _, message in said[1:])
