"""Whole journeys in a real pseudo-terminal, held to what a person sees on the screen."""

import re
import shutil
from pathlib import Path

import pytest

from folders import write_files
from integration import hosting_dynamic
from programs import script_command
from terminals import PROMPT, Desk, Window

DESCRIPTION = "Handles refunds. Use when a customer wants money back."
SKILL = f"---\nname: refunds\ndescription: {DESCRIPTION}\n---\n\n# Refunds\n\nBe kind.\n"
POLICY = "references/policy.md"
SCRIPT = "scripts/check.sh"
FIRST = """
A skill would be loaded for the first time.
From: MCP server acme, a name you gave it
Skill: acme/refunds
Its address there:
  | skill://refunds/SKILL.md
Description by its author:
  | Handles refunds. Use when a customer wants money back.
Files (2 in all, 134 bytes):
  | 111 bytes  SKILL.md
  |  23 bytes  references/policy.md

Load acme/refunds from MCP server acme?
[n]o, [o]nce, [a]lways, [v]iew a file; Enter means no:"""
CHANGED = """
! A skill you approved has CHANGED.
From: MCP server acme, a name you gave it
Skill: acme/refunds
Its address there:
  | skill://refunds/SKILL.md
Description by its author:
  | Handles refunds. Use when a customer wants money back.
! What changed since you approved it:
  | added the script scripts/check.sh
  | changed SKILL.md
  | removed references/policy.md
! Scripts (1; loading does not run them):
  |  23 bytes  scripts/check.sh
Other files (2 in all, 134 bytes):
  | 111 bytes  SKILL.md

Load acme/refunds from MCP server acme?
[n]o, [o]nce, [a]lways, [d]ifference, [v]iew a file; Enter means no:"""
NARROW = """
A skill would be loaded for the first
  time.
From: MCP server acme, a name you gave
  it
Skill: acme/refunds
Its address there:
  | skill://refunds/SKILL.md
Description by its author:
  | Handles refunds. Use when a
  | customer wants money back.
Files (2 in all, 134 bytes):
  | 111 bytes  SKILL.md
  |  23 bytes  references/policy.md

Load acme/refunds from MCP server acme?
[n]o, [o]nce, [a]lways, [v]iew a file;
Enter means no:"""

# Everything a command may send to a terminal besides text: colours, and what a spinner needs.
ALLOWED = re.compile(rb"\x1b\[(?:[0-9;]*m|\?7[lh]|\?25[lh]|2K|1A)")
FAKE_ORIGIN = "From: MCP server bank, a name you gave it"
FAKE_PROMPT = "[n]o, [y]es; Enter means yes: y"
TERMINAL = (
    "\x1b[2J\x1b[1;1H\x1b[31m\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x07\x1b]8;;http://127.0.0.1:9/\x1b\\x\x9b31m"
)
HIDDEN = "\u202eEVIL\u202c\u2066\u200b\U000e0041\u2028"
BOX = "\u2502 \u2514\u2500\u2500 Approved \u2713 \U0001f512"
HOSTILE = (
    f"Helps.\r\n{FAKE_ORIGIN}\n\n{FAKE_PROMPT}\rApprove bank/refunds?\t{TERMINAL}{HIDDEN} {BOX} "
    + "\n" * 50
    + "approved  acme/refunds from MCP server bank (load)"
)


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "skills"
    write_files(folder / "refunds", {"SKILL.md": SKILL, POLICY: "Refund within 30 days.\n"})
    return folder


@pytest.fixture
def desk(tmp_path: Path, empty_home: Path) -> Desk:
    return Desk(tmp_path / "project", empty_home)


def change(skills: Path) -> None:
    """Publish other content under the same name: another body, a script more, a reference less."""
    (skills / "refunds" / POLICY).unlink()
    write_files(
        skills / "refunds", {"SKILL.md": SKILL.replace("kind", "firm"), SCRIPT: "#!/bin/sh\necho checked\n"}
    )


def assert_inert(shown: Window) -> None:
    """Check that nothing but our own colours reached the terminal, and that it is as it was."""
    rest = ALLOWED.sub(b"", shown.raw)
    assert b"\x1b" not in rest and b"\x07" not in rest and b"\xc2\x9b" not in rest
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\u2028\U000e0000-\U000e007f]", rest.decode())
    assert shown.title == ""
    assert shown.wraps


@pytest.mark.requirement("APPR-02", "SEC-12", "TOOL-04")
def test_a_skill_is_approved_changes_is_approved_again_and_revoked(desk: Desk, skills: Path) -> None:
    desk.serve("acme", skills)

    first = desk.answer("load", "acme/refunds", typed="a")
    again = desk.run("load", "acme/refunds")
    change(skills)
    refused = desk.run("load", "acme/refunds", "--json")
    with desk.window("load", "acme/refunds", lines=60) as shown:
        changed = shown.wait_for(PROMPT)
        shown.type("d")
        shown.wait_for(PROMPT, times=2)
        difference = shown.screen.removeprefix(changed)
        shown.type("a")
        approved_again = shown.wait_for_end()
    revoked = desk.run("revoke", "acme/refunds")
    new = desk.answer("load", "acme/refunds", typed="n")

    assert first == (FIRST, 0)
    assert (again.code, again.err) == (0, "")
    assert "Be kind." in again.out
    assert (refused.code, refused.json["error"]["code"]) == (1, "approval-required")
    assert (changed, approved_again) == (CHANGED, 0)
    assert "added, a script: scripts/check.sh (23 bytes, +2/-0)\n" in difference
    assert "     1 +| #!/bin/sh\n     2 +| echo checked\n" in difference
    assert re.search(r"\n +\d+ -\| Be kind\.\n +\d+ \+\| Be firm\.\n", difference)
    assert difference.endswith(CHANGED.rpartition("\n\n")[2])
    assert revoked.out.startswith(
        "revoked  load for skill://refunds/SKILL.md from MCP server acme, approved on"
    )
    assert new[0].startswith("\nA skill would be loaded for the first time.\nFrom: MCP server acme")
    assert "CHANGED" not in new[0]
    assert new[1] == 1


@pytest.mark.requirement("SEC-12", "APPR-07")
def test_approving_shows_what_one_agrees_to_and_nothing_is_read_unless_one_looks(
    desk: Desk, skills: Path
) -> None:
    peer = desk.invite("acme", "asks_for_tools")

    with desk.window("approve", "acme/refunds", "--grant", "load", "--grant", "scripts") as shown:
        screen = shown.wait_for(PROMPT)
        before = peer.reads()
        shown.type("v")
        listed = shown.wait_for("Enter goes back:")
        shown.type("2")
        shown.wait_for(PROMPT, times=2)
        viewed = shown.screen.removeprefix(listed)
        shown.type("yes")
        code = shown.wait_for_end()
        end = shown.screen

    assert before == []
    assert peer.reads() == ["skill://acme/refunds/scripts/setup.sh"]
    assert code == 0
    assert screen.startswith(
        "\nYou are about to approve a skill.\nFrom: MCP server acme, a name you gave it\n"
    )
    assert "! Scripts (1; loading does not run them):\n  |  23 bytes  scripts/setup.sh\n" in screen
    assert "! It asks for these tools (loading does not grant them):\n  | Bash(*) Write\n" in screen
    assert (
        "You would agree to:\n"
        "  load: its text may enter a model's context\n"
        "  scripts: its own scripts, byte for byte, may be run\n"
    ) in screen
    assert screen.endswith(
        "\n\nApprove acme/refunds from MCP server acme?\n[n]o, [y]es, [v]iew a file; Enter means no:"
    )
    assert "Files:\n  |   1  SKILL.md\n  |   2  scripts/setup.sh\n" in listed
    assert "From: MCP server acme, a name you gave it\nSkill: acme/refunds\nA script of it:\n" in viewed
    assert "Size: 23 bytes\nDigest: sha256:" in viewed
    assert "  | #!/bin/sh\n  | echo checked\n" in viewed
    assert end.endswith("approved  acme/refunds from MCP server acme (load, scripts)")


def test_a_review_opens_every_file_before_it_asks_and_a_later_difference_has_all_lines(
    desk: Desk, skills: Path
) -> None:
    files = {SCRIPT: f"#!/bin/sh\necho {HIDDEN}{TERMINAL}\n", "logo.png": b"\x89PNG\x00\xff"}
    write_files(skills / "refunds", files)
    desk.serve("acme", skills)

    with desk.window("approve", "acme/refunds", "--review", lines=60) as shown:
        for number in range(1, 5):
            shown.wait_for(f"File {number} of 4. Enter ")
            shown.type("")
        question = shown.wait_for(PROMPT)
        shown.type("y")
        approved = shown.wait_for_end()
    everything = shown.everything
    change(skills)
    write_files(skills / "refunds", {"logo.png": b"\x89PNG\x00\xfe"})
    difference = desk.run("diff", "acme/refunds")

    assert approved == 0
    opened = [f"  | {path}" for path in ("SKILL.md", SCRIPT, "logo.png", POLICY)]
    assert [line for line in everything.splitlines() if line in opened][:4] == opened
    assert "  | Be kind.\n" in everything
    assert "<U+202E>EVIL<U+202C>" in everything
    assert "! Not shown: it is binary\n" in everything
    assert "Files you opened (4): all of them, which are kept" in question
    assert_inert(shown)
    assert difference.code == 1
    assert "-| Be kind.\n" in difference.out and "+| Be firm.\n" in difference.out
    assert "-| Refund within 30 days.\n" in difference.out
    assert "removed" in difference.out and "never read here" not in difference.out


@pytest.mark.requirement("APPR-07")
def test_a_review_can_be_stopped_and_what_was_not_opened_is_named_and_not_fetched(desk: Desk) -> None:
    peer = desk.invite("acme", "asks_for_tools")

    with desk.window("approve", "acme/refunds", "--review", lines=60) as shown:
        shown.wait_for("File 1 of 2. Enter opens the next file, q stops:")
        shown.type("q")
        question = shown.wait_for(PROMPT)
        shown.type("n")
        code = shown.wait_for_end()

    assert peer.reads() == ["skill://acme/refunds/SKILL.md"]
    assert "! Files you did not open (1):\n  | scripts/setup.sh\n" in question
    assert code == 1


def test_a_difference_names_files_never_read_and_the_command_that_opens_them(
    desk: Desk, skills: Path
) -> None:
    desk.serve("acme", skills)
    asked, approved = desk.answer("approve", "acme/refunds", typed="y")
    change(skills)

    shown = desk.run("diff", "acme/refunds")
    reviewing = desk.run("approve", "acme/refunds", "--review", "--json")
    unasked = desk.run("approve", "acme/refunds", "--review", "--yes", "--digest", f"sha256:{'0' * 64}")

    assert "To read every file first: skillwire approve acme/refunds --review\n" in asked
    assert (approved, shown.code) == (0, 1)
    assert shown.out.count("the approved file is not cached, so lines cannot be compared") == 2
    assert shown.out.endswith(
        "\n2 files were never read here under that approval, or cleared from the cache.\n"
        "To read and keep them next time: skillwire approve acme/refunds --review\n"
    )
    assert (reviewing.code, reviewing.json["error"]["code"]) == (1, "approval-required")
    assert unasked.code == 2


def test_away_from_its_server_an_approved_skill_is_used_with_its_date_and_no_other(
    desk: Desk, skills: Path
) -> None:
    write_files(skills / "reports", {"SKILL.md": SKILL.replace("refunds", "reports")})
    desk.serve("acme", skills)
    desk.answer("load", "acme/refunds", typed="always")
    shutil.move(skills, skills.with_name("gone"))

    with desk.window("load", "acme/refunds") as shown:
        approved = shown.wait_for_end()
        text = shown.everything
    with desk.window("show", "acme/refunds") as shown:
        seen = shown.wait_for_end()
        entry = shown.screen
    with desk.window("load", "acme/reports") as shown:
        unapproved = shown.wait_for_end()
        refusal = shown.screen
    revoked = desk.run("revoke", "acme/refunds")
    after = desk.run("load", "acme/refunds", "--json")

    assert approved == 0
    assert re.search(
        r"Offline: server unreachable; this is the cached copy approved on \d{4}-\d\d-\d\d\.", text
    )
    assert seen == 0
    assert re.search(r"\nState: offline, approved \d{4}-\d\d-\d\d\n", entry)
    assert unapproved == 1
    assert PROMPT not in refusal
    assert refusal.startswith("error: no skill is called 'acme/reports'")
    assert (revoked.code, after.code, after.json["error"]["code"]) == (0, 1, "unknown-reference")


@pytest.mark.requirement("SEC-12", "SEC-13", "SEC-17")
@pytest.mark.parametrize("columns", [80, 40, 20])
def test_a_servers_words_stay_behind_the_bar_whatever_they_are(desk: Desk, columns: int) -> None:
    names = {
        "references/%E2%80%AEtxt.exe": "x",
        "scripts/%20%20%20[y]es": "x",
        "references/From:%20MCP%20server%20bank,%20a%20name%20you%20gave%20it" + "%20" * 70 + "z.md": "x",
        "references/%E2%94%82%20approved": "x",
    }
    desk.invite(
        "acme", "says", description=HOSTILE, files=names, fields={"allowed-tools": f"Bash\n{HOSTILE}"}
    )

    with desk.window("load", "acme/refunds", columns=columns, lines=200) as shown:
        shown.wait_for("no:" if columns == 20 else PROMPT)
        lines = shown.screen.split("\n")
        bar = shown.style_of("| Helps.")
        shown.type("")
        code = shown.wait_for_end()
        assert_inert(shown)

    own = [line for line in lines if line and not line.startswith("  |")]
    words = " ".join(" ".join(own).split())
    assert code == 1
    assert own[0].startswith("A skill would be")
    assert "From: MCP server acme, a name you gave it Skill: acme/refunds Its address there:" in words
    assert words.endswith(
        "Load acme/refunds from MCP server acme? [n]o, [o]nce, [a]lways, [v]iew a file; Enter means no:"
    )
    shown_words = re.sub(r"\s", "", "".join(line.removeprefix("  |") for line in lines))
    for stranger in ("bank", "es;", "meansyes", "EVIL", "Helps", "Approved", "<U+202E>txt.exe", "\u2502"):
        assert stranger not in words.replace(" ", "")
        assert stranger in shown_words
    assert (bar.fg, bar.bg) == ("cyan", "default")


@pytest.mark.requirement("SEC-17")
def test_other_commands_keep_a_servers_words_behind_the_bar_too(desk: Desk) -> None:
    desk.invite("acme", "says", description=HOSTILE, body=f"# Hi\n\n{HOSTILE}\n", fields={"license": HOSTILE})

    for args in (["show", "acme/refunds"], ["show", "acme/refunds", "--body"]):
        with desk.window(*args, columns=40, lines=200) as shown:
            code = shown.wait_for_end()
            own = [line for line in shown.screen.split("\n") if line and not line.startswith("  |")]
            assert_inert(shown)

        assert code == 0
        assert own[0] == "From: MCP server acme, a name you gave"
        assert [line for line in own if "bank" in line or "EVIL" in line] == []


@pytest.mark.requirement("SEC-17")
@pytest.mark.parametrize("form", ["not-found", "internal"])
def test_a_servers_error_messages_neither_move_nor_recolour_anything(desk: Desk, form: str) -> None:
    desk.invite("acme", "rude_errors", form=form)

    with desk.window("approve", "acme/refunds", columns=60) as shown:
        shown.wait_for(PROMPT)
        shown.type("v")
        shown.wait_for("Enter goes back:")
        shown.type("SKILL.md")
        asked_again = shown.wait_for(PROMPT, times=2)
        shown.type("no")
        code = shown.wait_for_end()
        assert_inert(shown)
    with desk.window("show", "acme/refunds", "SKILL.md", columns=60) as shown:
        failed = shown.wait_for_end()
        screen = shown.screen
        assert_inert(shown)

    assert code == 1
    assert "! It cannot be shown:" in asked_again
    assert asked_again.endswith(
        "Approve acme/refunds from MCP server acme?\n[n]o, [y]es, [v]iew a file; Enter means no:"
    )
    assert failed == 1
    assert screen.startswith("error: ")
    assert not re.search(r"(?m)^# System", screen)


def test_a_window_of_forty_columns_shows_the_whole_question(desk: Desk, skills: Path) -> None:
    desk.serve("acme", skills)

    assert desk.answer("load", "acme/refunds", typed="once", columns=40) == (NARROW, 0)
    assert desk.answer("load", "acme/refunds", typed="", columns=40) == (NARROW, 1)


@pytest.mark.requirement("APPR-10")
@pytest.mark.parametrize(
    "line", ["echo a | skillwire load acme/refunds", "skillwire load acme/refunds </dev/null"]
)
def test_a_pipe_is_nobody_to_ask_even_inside_a_terminal(desk: Desk, skills: Path, line: str) -> None:
    desk.serve("acme", skills)

    with desk.window(shell=line) as shown:
        code = shown.wait_for_end()
        screen = shown.screen

    assert code == 1
    assert PROMPT not in screen
    assert screen.startswith("error: acme/refunds needs the user's approval\nfix: ")
    assert desk.run("show", "acme/refunds", "--json").json["standing"] == "new"


def test_a_question_is_seen_and_answered_though_output_goes_elsewhere(desk: Desk, skills: Path) -> None:
    desk.serve("acme", skills)

    with desk.window(shell="skillwire load acme/refunds >text 2>words") as shown:
        screen = shown.wait_for(PROMPT)
        shown.type("o")
        code = shown.wait_for_end()

    assert (screen, code) == (FIRST, 0)
    assert (desk.folder / "text").read_text().startswith("Skill: acme/refunds\nOrigin: MCP server acme")
    assert (desk.folder / "words").read_text() == ""


@pytest.mark.requirement("SEC-12")
def test_what_was_typed_before_the_question_answers_nothing(desk: Desk, skills: Path) -> None:
    desk.serve("acme", skills)

    with desk.window("load", "acme/refunds") as shown:
        shown.type("a")
        shown.type("a")
        shown.wait_for(PROMPT)
        shown.type("perhaps")
        unclear = shown.wait_for(PROMPT, times=2)
        shown.type("")
        code = shown.wait_for_end()

    assert code == 1
    assert "Enter means no: perhaps\nThat is not one of the answers; nothing was decided.\n" in unclear
    assert desk.run("show", "acme/refunds", "--json").json["standing"] == "new"


@pytest.mark.parametrize(("key", "code"), [("c", 130), ("d", 1)])
def test_leaving_a_question_means_no(desk: Desk, skills: Path, key: str, code: int) -> None:
    desk.serve("acme", skills)

    for args in (["load", "acme/refunds"], ["approve", "acme/refunds"]):
        with desk.window(*args) as shown:
            shown.wait_for(PROMPT)
            shown.press(key)

            assert shown.wait_for_end() == code
            assert "Traceback" not in shown.everything
            assert shown.wraps
    assert desk.run("show", "acme/refunds", "--json").json["standing"] == "new"


@pytest.mark.requirement("APPR-01")
def test_a_skill_that_changes_while_one_looks_at_it_is_not_approved(desk: Desk) -> None:
    peer = desk.invite("acme", "honest")

    with desk.window("approve", "acme/refunds", lines=200) as shown:
        shown.wait_for(PROMPT)
        peer.announce(version=2)
        times = 1
        while "changed on its server while you were asked about it" not in shown.everything and times < 50:
            shown.type("v")
            shown.wait_for("Enter goes back:", times=times)
            shown.type("SKILL.md")
            times += 1
            shown.wait_for_any(("while you were asked", PROMPT), times=(1, times))
        code = shown.wait_for_end()

    assert code == 1
    assert desk.run("show", "acme/refunds", "--json").json["standing"] == "new"


@pytest.mark.requirement("SEC-13")
def test_a_long_file_is_shown_a_screenful_at_a_time_with_all_that_hides_in_it(desk: Desk) -> None:
    body = "".join(f"line {number}\n" for number in range(100)) + f"hid{chr(0x200B)}den\n"
    desk.invite("acme", "says", body=body, files={"assets/logo.bin": "\0\1\2"})

    with desk.window("approve", "acme/refunds", lines=30) as shown:
        shown.wait_for(PROMPT)
        shown.type("v")
        shown.wait_for("Enter goes back:")
        shown.type("1")
        first = shown.wait_for("Enter shows more, q goes back:")
        shown.type("")
        second = shown.wait_for("Enter shows more, q goes back:", times=2)
        shown.type("q")
        shown.wait_for(PROMPT, times=2)
        shown.type("v")
        shown.wait_for("Enter goes back:", times=2)
        shown.type("assets/logo.bin")
        binary = shown.wait_for(PROMPT, times=3)
        shown.type("n")
        code = shown.wait_for_end()
    body_shown = desk.run("show", "acme/refunds", "--body")

    assert code == 1
    assert "Characters people cannot see (1; spelled out as <U+…> below): 1 × U+200B" in first
    assert "  | line 0\n" in first and "line 30" not in first
    assert "  | line 30\n" in second and "line 60" not in second
    assert "! Not shown: it is binary\n" in binary
    assert body_shown.out.endswith("line 99\nhid<U+200B>den\n")


@pytest.mark.requirement("APPR-04")
def test_a_skill_without_digests_is_asked_about_at_every_load_and_refused_where_nobody_can_be(
    desk: Desk,
) -> None:
    program, *words = script_command(Path(hosting_dynamic.__file__))
    desk.configure("ops", {"command": program, "args": words, "env": desk.env})

    screens: list[str] = []
    for _ in range(2):
        with desk.window("load", "ops/status", lines=60) as shown:
            screens.append(shown.wait_for("Enter means no:"))
            shown.type("o")
            assert shown.wait_for_end() == 0
            assert "Status " in shown.everything
    alone = desk.run("load", "ops/status", "--json")

    assert all("No digests" in screen and "[a]lways" not in screen for screen in screens)
    assert '"code": "dynamic-declined"' in alone.out
