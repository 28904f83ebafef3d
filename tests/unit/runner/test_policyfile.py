"""A policy file: each thing an operator can say, and that nothing else is ever taken for a grant."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillwire.core.errors import RunnerError
from skillwire.runner.policy import (
    MAX_POLICY_SIZE,
    MAX_SECRET_SIZE,
    MIB,
    MOST,
    EnvironmentSecret,
    FileSecret,
    Interpreter,
    Limits,
    Policy,
    PolicyError,
    load_policy,
    parse_policy,
)

DIGEST = "sha256:" + "0" * 64
GRANT = '[[grant]]\nskill = "skill://weather/SKILL.md"\nscript = "scripts/tell.py"\n'
WHOLE = f"""
pool = 2
concurrent = 3
queue = 4
queue_seconds = 5.5
bubblewrap = "/opt/bwrap"
uid = 1234
cgroup = "/sys/fs/cgroup/scripts"

[limits]
wall_seconds = 20
memory_mib = 128
stderr_mib = 0.5

[most]
wall_seconds = 600
processes = 512

[interpreters.".py"]
path = "/opt/python/bin/python3"
arguments = ["-I"]
trees = ["/opt/python"]
address_space_mib = 2048

[interpreters.".rb"]
path = "/usr/bin/ruby"

[[grant]]
skill = "skill://weather/SKILL.md"
script = "scripts/tell.py"
network = ["api.example.com", "example.org:8443"]

[[grant]]
skill = "skill://weather/SKILL.md"
script = "scripts/tell.py"
origin = "acme"
digest = "{DIGEST}"
network = ["api.example.com"]
[grant.secrets]
API_KEY = {{ env = "WEATHER_KEY" }}
TOKEN = {{ file = "/run/weather/token" }}
"""


def test_everything_an_operator_can_say_is_understood() -> None:
    policy = parse_policy(WHOLE.encode())

    assert policy.limits == replace(Limits(), wall_seconds=20, memory_bytes=128 * MIB, stderr_bytes=MIB // 2)
    assert policy.most == replace(MOST, wall_seconds=600, processes=512)
    assert (policy.pool, policy.concurrent, policy.queue, policy.queue_seconds) == (2, 3, 4, 5.5)
    assert (policy.bubblewrap, policy.uid) == (Path("/opt/bwrap"), 1234)
    assert policy.cgroup == Path("/sys/fs/cgroup/scripts")
    assert policy.interpreters == {
        ".py": Interpreter(Path("/opt/python/bin/python3"), ("-I",), (Path("/opt/python"),), 2048 * MIB),
        ".rb": Interpreter(Path("/usr/bin/ruby")),
    }


@pytest.mark.requirement("EXEC-11")
def test_a_grant_is_for_one_script_of_one_skill_of_one_origin() -> None:
    policy = parse_policy(WHOLE.encode())
    asked = {"skill": "skill://weather/SKILL.md", "script": "scripts/tell.py", "digest": DIGEST}

    ours, theirs = policy.rule_for(origin="", **asked), policy.rule_for(origin="acme", **asked)

    assert ours is not None
    assert theirs is not None
    assert (ours.network, dict(ours.secrets)) == (("api.example.com", "example.org:8443"), {})
    assert dict(theirs.secrets) == {
        "API_KEY": EnvironmentSecret("API_KEY", "WEATHER_KEY"),
        "TOKEN": FileSecret("TOKEN", Path("/run/weather/token")),
    }
    assert policy.rule_for(origin="acme", **{**asked, "digest": "sha256:" + "1" * 64}) is None
    assert policy.rule_for(origin="other", **asked) is None
    assert policy.rule_for(origin="", **{**asked, "script": "scripts/other.py"}) is None


@pytest.mark.requirement("EXEC-11")
def test_a_grant_for_exact_bytes_comes_before_one_for_any() -> None:
    text = GRANT + 'network = ["a.example"]\n' + GRANT + f'digest = "{DIGEST}"\nnetwork = ["b.example"]\n'
    policy = parse_policy(text.encode())

    rule = policy.rule_for(
        origin="", skill="skill://weather/SKILL.md", script="scripts/tell.py", digest=DIGEST
    )

    assert rule is not None
    assert rule.network == ("b.example",)


@pytest.mark.requirement("EXEC-11")
def test_an_empty_policy_grants_nothing() -> None:
    assert parse_policy(b"") == Policy()
    assert Policy().rules == ()


def test_what_a_policy_does_not_say_is_as_before() -> None:
    base = parse_policy(WHOLE.encode())

    policy = parse_policy(b"pool = 0\n[limits]\nwall_seconds = 10\n", base=base)

    assert policy == replace(base, pool=0, limits=replace(base.limits, wall_seconds=10))


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("colour = 1", "colour"),
        ("[limit]\nwall_seconds = 1", "limit"),
        ("[limits]\nwall = 1", "limits.wall"),
        ("[limits]\nmemory_bytes = 1048576", "limits.memory_bytes"),
        ("[limits]\nwall_seconds = 0", "limits.wall_seconds"),
        ("[limits]\nwall_seconds = true", "limits.wall_seconds"),
        ("[limits]\nwall_seconds = nan", "limits.wall_seconds"),
        ("[limits]\nwall_seconds = inf", "limits.wall_seconds"),
        ('[limits]\nwall_seconds = "10"', "limits.wall_seconds"),
        ("[limits]\nwall_seconds = 301", "limits.wall_seconds"),
        ("[most]\nmemory_mib = 100", "limits.memory_mib"),
        ("[most]\nstdout_mib = 100", "most.stdout_mib"),
        ("limits = 5", "limits"),
        ("pool = -1", "pool"),
        ("pool = 1.0", "pool"),
        ("pool = true", "pool"),
        ("concurrent = 0", "concurrent"),
        ("queue_seconds = 0", "queue_seconds"),
        ("uid = 0", "uid"),
        ('bubblewrap = "bwrap"', "bubblewrap"),
        ("bubblewrap = 5", "bubblewrap"),
        ('cgroup = "scripts"', "cgroup"),
        ('[interpreters.py]\npath = "/usr/bin/python3"', "interpreters.py"),
        ('[interpreters.".py"]\narguments = ["-I"]', "interpreters.'.py'.path"),
        ('[interpreters.".py"]\npath = "python3"', "interpreters.'.py'.path"),
        ('[interpreters.".py"]\npath = "/usr/bin/python3"\narguments = "-I"', "interpreters.'.py'.arguments"),
        (
            '[interpreters.".py"]\npath = "/usr/bin/python3"\narguments = ["\\u0000"]',
            "interpreters.'.py'.arguments",
        ),
        ('[interpreters.".py"]\npath = "/usr/bin/python3"\ntrees = ["opt"]', "interpreters.'.py'.trees"),
        ('[interpreters.".py"]\npath = "/usr/bin/python3"\nenv = ["A"]', "interpreters.'.py'.env"),
        ("[grant]\n", "grant"),
        ("grant = [1]", "grant"),
        ('[[grant]]\nscript = "scripts/tell.py"', "grant[1].skill"),
        ('[[grant]]\nskill = "weather"\nscript = "scripts/tell.py"', "grant[1].skill"),
        ('[[grant]]\nskill = "skill://weather/SKILL.md"', "grant[1].script"),
        ('[[grant]]\nskill = "skill://weather/SKILL.md"\nscript = "tell.py"', "grant[1].script"),
        ('[[grant]]\nskill = "skill://weather/SKILL.md"\nscript = "scripts/a/b.py"', "grant[1].script"),
        ('[[grant]]\nskill = "skill://weather/SKILL.md"\nscript = "*"', "grant[1].script"),
        (GRANT + GRANT, "grant[2]"),
        (GRANT + "skills = []", "grant[1].skills"),
        (GRANT + 'digest = "sha256:0"', "grant[1].digest"),
        (GRANT + "origin = 5", "grant[1].origin"),
        (GRANT + "network = true", "grant[1].network"),
        (GRANT + 'network = ["*"]', "grant[1].network"),
        (GRANT + 'network = ["10.0.0.1"]', "grant[1].network"),
        (GRANT + "[grant.secrets]\nKEY = 'value'", "grant[1].secrets.KEY"),
        (GRANT + "[grant.secrets]\nKEY = {}", "grant[1].secrets.KEY"),
        (GRANT + '[grant.secrets]\nKEY = { env = "A", file = "/a" }', "grant[1].secrets.KEY"),
        (GRANT + '[grant.secrets]\nKEY = { env = "A=B" }', "grant[1].secrets.KEY.env"),
        (GRANT + '[grant.secrets]\nKEY = { file = "a" }', "grant[1].secrets.KEY.file"),
        (GRANT + '[grant.secrets]\nKEY = { value = "a" }', "grant[1].secrets.KEY.value"),
        (GRANT + '[grant.secrets]\n"../KEY" = { env = "A" }', "grant[1].secrets.'../KEY'"),
    ],
)
def test_whatever_is_not_understood_is_refused_and_its_key_named(text: str, key: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text.encode())

    assert f"in the policy, {key} " in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"pool = ", b"\xff", b"pool = 1\npool = 1", b"a = " + b"[" * 50_000, b"#" * (MAX_POLICY_SIZE + 1)],
)
def test_what_is_no_toml_is_refused(content: bytes) -> None:
    with pytest.raises(PolicyError):
        parse_policy(content)


def test_where_toml_breaks_the_line_is_named() -> None:
    with pytest.raises(PolicyError, match="line 2"):
        parse_policy(b"pool = 1\npool: 2\n")


@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_no_bytes_make_anything_but_a_policy_or_a_refusal(content: bytes) -> None:
    try:
        policy = parse_policy(content)
    except PolicyError:
        return
    assert policy.rules == ()


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(WHOLE, "utf-8")
    path.chmod(0o644)

    assert load_policy(path) == parse_policy(WHOLE.encode())


@pytest.mark.requirement("EXEC-11")
@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o620])
def test_a_policy_that_others_can_write_is_none(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(WHOLE, "utf-8")
    path.chmod(mode)

    with pytest.raises(PolicyError) as caught:
        load_policy(path)

    assert caught.value.fix
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="named pipes are those of POSIX")
def test_what_is_no_plain_file_is_no_policy_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)

    for name in ("gone", "pipe", "."):
        with pytest.raises(PolicyError):
            load_policy(tmp_path / name)


@pytest.mark.requirement("EXEC-11")
def test_a_secret_is_read_at_the_moment_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    from_file, from_environment = FileSecret("TOKEN", path), EnvironmentSecret("KEY", "WEATHER_KEY")

    path.write_bytes(b"first\r\n")
    monkeypatch.setenv("WEATHER_KEY", "one\n")
    assert (from_file(), from_environment()) == (b"first", b"one\n")

    path.write_bytes(b"second\n\n")
    monkeypatch.setenv("WEATHER_KEY", "zwölf")
    assert (from_file(), from_environment()) == (b"second\n", "zwölf".encode())


@pytest.mark.requirement("EXEC-11")
@pytest.mark.parametrize("content", [None, b"", b"\n", b"x" * (MAX_SECRET_SIZE + 1)])
def test_a_secret_that_is_not_to_be_had_is_named_and_neither_its_value_nor_its_place(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(RunnerError) as caught:
        FileSecret("TOKEN", path)()

    assert "TOKEN" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert "xxx" not in str(caught.value)


def test_a_secret_may_be_as_large_as_that_and_a_variable_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_bytes(b"x" * MAX_SECRET_SIZE + b"\r\n")
    monkeypatch.delenv("WEATHER_KEY", raising=False)

    assert len(FileSecret("TOKEN", tmp_path / "token")()) == MAX_SECRET_SIZE
    with pytest.raises(RunnerError, match="KEY"):
        EnvironmentSecret("KEY", "WEATHER_KEY")()


def test_scripts_of_a_suffix_can_be_switched_off() -> None:
    policy = parse_policy(b'[interpreters]\n".sh" = false\n')

    assert policy.interpreters == {".sh": None}


def test_an_interpreter_cannot_be_switched_on_without_a_path() -> None:
    with pytest.raises(PolicyError, match="sh"):
        parse_policy(b'[interpreters]\n".sh" = true\n')
