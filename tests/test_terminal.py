"""Tables and progress: plain in a pipe, drawn on a terminal."""

import io

import pytest

from mindspore_zb.terminal import end_progress, progress_line, show_table


class Terminal(io.StringIO):
    def isatty(self):
        return True


ROWS = [["one", 0.5], ["another", "[bold]"]]


def test_plain_in_a_pipe(capsys):
    show_table("A title", ["name", "rate"], ROWS, "a note")
    assert capsys.readouterr().out == "A title\nname        rate\none          0.5\nanother   [bold]\na note\n"


def test_drawn_on_a_terminal(monkeypatch):
    pytest.importorskip("rich")
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    show_table("A [title]", ["name", "rate"], [["one", 0.5]], "a [note]")
    text = terminal.getvalue()
    assert "A [title]" in text and "a [note]" in text and "─" in text and "0.5" in text


def test_plain_on_a_terminal_without_rich(monkeypatch, without_package):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    without_package("rich")
    show_table("A title", ["name", "rate"], ROWS)
    assert terminal.getvalue().splitlines()[1] == "name        rate"


def test_progress_is_one_line_of_a_terminal_and_nothing_elsewhere(monkeypatch, capsys):
    assert progress_line("searching") is None
    end_progress()
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress_line("searching")(30, 120, 0.0433)
    end_progress()
    assert terminal.getvalue() == "\rsearching:  25% of the work at most, bubble rate 0.0433\r\x1b[K"
