"""What a job named, wrote or said is printed on a person's terminal, and controls nothing there."""

from __future__ import annotations

import json
import logging
import unicodedata

import pytest
from pydantic import JsonValue

from fanout.orchestrator.cli.terminal import output, questions
from fanout.orchestrator.configuration.log_setup import set_up_logging
from fanout.orchestrator.extras.mcp_server import elicitation
from fanout.orchestrator.jobs.approvals import Approval
from fanout.orchestrator.valid_text import clean, clean_text, printable

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
    "speaks to the terminal (DCS, APC)": "a\033P$q\033\\b\033_x\033\\\u0090q\u009c\u009fx\u009c",
    "begins a line (Unicode)": "a\u2028b\u2029c\u0085d",
    "has characters without a width": "a\u200b\u200d\u200c\u2060\ufeff\u00ad\u034fb",
    "carries a text in tags": "a" + "".join(chr(0xE0000 + ord(one)) for one in "rm -rf") + "b",
    "carries bytes in variation selectors": "a\ufe00\ufe0f\ufe0f\U000e0100\U000e01efb",
    "has fillers": "a\u115f\u1160\u3164\uffa0\u17b4\u180eb",
}

FILLERS = set("\u034f\u115f\u1160\u3164\uffa0\u17b4\u180e\ufe00\ufe0f\U000e0100\U000e01ef")
"""Characters without a form whose category does not say so."""


def controls(text: str) -> list[str]:
    """The characters that are obeyed or hidden, except line ends."""
    return [
        hex(ord(letter)) for letter in text
        if letter != "\n"
        and (unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Zl", "Zp"} or letter in FILLERS)
    ]  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_name_that(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = HOSTILE[what]

    output.payload(text)
    output.print_line(text)
    output.notice(text)
    output.pairs([("path", text)])
    output.table(["path", "note"], [[text, "x"]])
    printed = capsys.readouterr()

    assert controls(printed.out) == []
    assert controls(printed.err) == []


@pytest.mark.parametrize("what", HOSTILE)
def test_an_answer_that_is_rendered_and(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "stdout_is_terminal", lambda: True)
    text = HOSTILE[what]
    entities = "".join(f"&#{ord(letter)};" for letter in text)

    output.print_answer(f"# {text}\n\n- **{text}** [{text}](https://evil.example)\n- {entities}")
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


@pytest.mark.parametrize("what", HOSTILE)
def test_a_call_that_a_person_is_asked_about_and_that(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = approval({"command": f"ls {HOSTILE[what]}"}, tool=HOSTILE[what], hint=HOSTILE[what])

    output.notice(questions.format_call(asked))
    shown = [capsys.readouterr().err, elicitation.question_text(asked)]

    assert [controls(text) for text in shown] == [[], []]


def test_no_part_of_a_command_is_moved_off_the_screen() -> None:
    blanks, middle = " " * 100_000, "x" * 100_000

    padded = questions.format_call(approval({"command": f"ls{blanks}; rm -rf ~"}))
    long = questions.format_call(approval({"command": f"ls {middle}; rm -rf ~"}))

    assert "ls\u27e8100,000 spaces\u27e9; rm -rf ~" in padded
    assert "; rm -rf ~" in long
    assert "more characters; `fanout approvals --json` prints all" in long
    assert max(map(len, (padded, long))) < 5_000


def approval(arguments: dict[str, JsonValue], tool: str = "execute", hint: str = "") -> Approval:
    return Approval(
        id="ap_1", job_id="root", agent="builder", call_id="1", tool=clean_text(tool),
        arguments=clean(arguments), decisions=("approve", "reject"), sha256="0" * 64, hint=clean_text(hint),
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}",
        "\N{HEAVY BLACK HEART}\ufe0f\u200d\N{FIRE} 1\ufe0f\u20e3 \N{WHITE SMILING FACE}\ufe0f ",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u0915\u094d\u200d\u0937 \u05e9\u05dc\u05d5\u05dd 10\u00a0\u20ac",
    ],
)
def test_scripts_and_emoji_are_shown_as_they_are(text: str) -> None:
    assert printable(text) == text


def test_a_log_line_is_plain_and_has_the_value(capsys: pytest.CaptureFixture[str]) -> None:
    lines = {what: clean_text(text) for what, text in HOSTILE.items()}
    formatted = log_line(lines)

    assert controls(formatted) == []
    assert {what: json.loads(formatted)[what] for what in HOSTILE} == lines


def log_line(fields: dict[str, str]) -> str:
    """Return the line of a record with these fields, as our processes write it."""
    handlers, level = logging.getLogger().handlers, logging.getLogger().level
    try:
        set_up_logging("info")
        [handler] = logging.getLogger().handlers
        record = logging.LogRecord("x", logging.INFO, "", 0, {"event": "e", **fields}, (), None)
        record._from_structlog, record._logger, record._name = True, None, "info"
        return handler.format(record)
    finally:
        logging.getLogger().handlers = handlers
        logging.getLogger().setLevel(level)
