"""Standard output and error: any text can be written, and any ending is a quiet one."""

import io
import sys

import pytest

from skillwire.cli.app import discard_output, prepare_streams


def test_a_stream_that_knows_few_letters_spells_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))

    prepare_streams()
    sys.stdout.write("größe")
    sys.stdout.flush()

    assert written.getvalue() == b"gr\\xf6\\xdfe"


def test_a_closed_stream_takes_everything_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)

    prepare_streams()
    written = sys.stdout.write("anything")
    sys.stdout.close()

    assert written == len("anything")


def test_a_stream_that_is_no_file_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO("kept"))

    prepare_streams()
    discard_output(OSError(28, "No space left on device"))

    assert sys.stdout.read() == "kept"
    assert capsys.readouterr().err == "error: cannot write to standard output: No space left on device\n"
