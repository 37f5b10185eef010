"""What a job named, wrote or said is printed on a person's terminal, and controls nothing there."""

from __future__ import annotations

import json
import unicodedata

import pytest

from fanout.orchestrator.cli.terminal import answers, output
from fanout.orchestrator.valid_text import clean_text

HOSTILE = {
    "clears the screen": "a\033[2Jb",
    "fills the clipboard (OSC 52)": "a\033]52;c;cm0gLXJmIC8=\007b",
    "sets the title": "a\033]0;owned\007b",
    "makes a link (OSC 8)": "a\033]8;;https://evil.example\033\\\\b",
    "asks the terminal to answer": "a\033[6nb\033[cb",
    "uses one byte for the escape (C1)": "a\u009b2Jb\u009d52;c;eA==\u009cb",
    "returns to the line's start": "harmless\rb",
    "rubs out": "abc\b\b\bb\x7f",
    "rings": "a\ab",
    "changes the direction": "a\u202etxt.exe\u2066b\u061c",
    "ends the text": "a\0b",
    "is no text": "a\udcff\udc9bb",
}


def controls(text: str) -> list[str]:
    """The control, direction and surrogate characters, except line ends."""
    return [
        hex(ord(letter)) for letter in text
        if letter != "\n" and unicodedata.category(letter) in {"Cc", "Cf", "Cs"}
    ]  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_name_that(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = HOSTILE[what]

    output.payload_now(text)
    output.notice(text)
    output.pairs([("path", text)])
    output.table(["path", "note"], [[output.one_line(text), "x"]])
    output.payload(output.one_line(text))
    printed = capsys.readouterr()

    assert controls(printed.out) == []
    assert controls(printed.err) == []


@pytest.mark.parametrize("what", HOSTILE)
def test_an_answer_that_is_rendered_and(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "stdout_is_terminal", lambda: True)
    text = HOSTILE[what]
    entities = "".join(f"&#{ord(letter)};" for letter in text)

    answers.print_answer(f"# {text}\n\n- **{text}** [{text}](https://evil.example)\n- {entities}")
    printed = capsys.readouterr().out

    assert controls(printed) == []
    assert "\t" not in printed
    assert "**" not in printed  # it is rendered
    assert "https://evil.example" in printed


@pytest.mark.parametrize("what", HOSTILE)
def test_a_name_in_json_that(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = {"path": HOSTILE[what], "plain": "\N{LATIN SMALL LETTER U WITH DIAERESIS}"}

    output.document(value)
    printed = capsys.readouterr().out
    output.json_line(value)
    line = capsys.readouterr().out

    assert controls(printed) == controls(line) == []
    expected = {
        **value,
        "path": clean_text(value["path"]),
    }  # readers of JSON refuse half a character
    assert json.loads(printed) == json.loads(line) == expected
    assert value["plain"] in printed
