"""How bubblewrap is called: what a sandbox sees of the machine."""

from itertools import pairwise
from pathlib import Path

import pytest

from skillwire.runner import Interpreter
from skillwire.runner.sandbox.command import ENVIRONMENT, bubblewrap_command

pytestmark = pytest.mark.requirement("EXEC-12")

PYTHON = Interpreter(Path("/usr/bin/python3"))
TREES = (Path("/opt/python"), Path("/opt/node"))
MAY_BE_SEEN = {
    "/usr",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/pki/tls/certs",
    "/dev/null",
    "/opt/node",
    "/opt/python",
    *(f"/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32")),
}


@pytest.fixture
def words() -> list[str]:
    return bubblewrap_command(
        Path("/usr/bin/bwrap"), PYTHON, TREES, source="print('init')", control=7, status=9
    )


def options(words: list[str]) -> list[str]:
    return words[1 : words.index("--")]


def sources(words: list[str], option: str) -> list[str]:
    return [follower for word, follower in pairwise(options(words)) if word == option]


def test_every_namespace_is_its_own(words: list[str]) -> None:
    assert {
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    } <= set(options(words))


def test_nothing_is_bound_to_be_written(words: list[str]) -> None:
    assert "--bind" not in words and "--bind-try" not in words
    assert sources(words, "--dev-bind") == [
        "/dev/null",
        "/dev/full",
        "/dev/full",
        "/dev/random",
        "/dev/urandom",
    ]


def test_nothing_of_the_machine_is_seen_but_programs_and_their_needs(words: list[str]) -> None:
    seen = {*sources(words, "--ro-bind"), *sources(words, "--ro-bind-try")}

    assert seen <= MAY_BE_SEEN
    assert {"/usr", "/opt/node", "/opt/python"} <= seen


def test_an_interpreters_tree_lies_where_it_lies_outside(words: list[str]) -> None:
    position = words.index("/opt/node")

    assert words[position - 1 : position + 2] == ["--ro-bind", "/opt/node", "/opt/node"]


def test_the_root_becomes_read_only_after_everything_is_in_place(words: list[str]) -> None:
    position = words.index("--remount-ro")

    assert words[position + 1] == "/"
    assert not {"--dir", "--ro-bind", "--symlink", "--tmpfs"} & set(options(words)[position:])


def test_the_init_is_the_first_process_so_that_all_others_end_with_it(words: list[str]) -> None:
    assert "--as-pid-1" in options(words)


def test_all_rights_but_three_are_dropped_before_the_init_starts(words: list[str]) -> None:
    dropped = words.index("--cap-drop")

    assert words[dropped + 1] == "ALL"
    assert sources(words, "--cap-add") == ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP"]
    assert words.index("--cap-add") > dropped


def test_scripts_have_a_user_of_their_own_who_is_not_root(words: list[str]) -> None:
    assert (sources(words, "--uid"), sources(words, "--gid")) == (["1000"], ["1000"])


def test_the_init_is_given_as_text_to_an_isolated_python(words: list[str]) -> None:
    program = words[words.index("--") + 1 :]

    assert program[:4] == ["/usr/bin/python3", "-I", "-B", "-c"]
    assert program[-2:] == ["7", "print('init')"]
    assert sources(words, "--json-status-fd") == ["9"]


def test_an_interpreters_own_arguments_come_first() -> None:
    python = Interpreter(Path("/opt/python/bin/python"), ("-X", "utf8"))
    words = bubblewrap_command(Path("/usr/bin/bwrap"), python, (), source="", control=3, status=4)

    assert words[words.index("--") + 1 :][:4] == ["/opt/python/bin/python", "-X", "utf8", "-I"]


@pytest.mark.requirement("EXEC-11")
def test_the_environment_of_a_script_holds_nothing_of_ours() -> None:
    assert ENVIRONMENT == {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "SKILL_DIR": "/skill",
        "OUTPUT_DIR": "/out",
    }
