"""What a hostile model or user writes, in every place where the page shows a text."""

from __future__ import annotations

from typing import Any

from fanout.orchestrator.jobs.result import JobError
from fanout.orchestrator.jobs.state import JobState
from fanout.orchestrator.jobs.store.journal import EventType
from tests.integration.page.served_page import Hands, bundle

TEXTS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<svg/onload=alert(3)>",
    '"><iframe srcdoc="<script>parent.alert(4)</script>">',
    "</title></textarea></style><script>alert(5)</script>",
    "javascript:alert(6)",
    "<a href='javascript:alert(7)' id=victim>press</a>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(8)>",
    "{{constructor.constructor('alert(9)')()}} ${alert(9)}",
    "<form action=https://evil.example><button>Log in again</button></form>",
    "<link rel=stylesheet href=https://evil.example/x.css><style>@import'//evil.example'</style>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example/>",
    "' onmouseover='alert(10)' autofocus onfocus='alert(11)",
    "\u202egnp.exe\u202c \u2066hidden\u2069 \u200b\u200f \U000e0041\U000e0042",
    "\x1b[2J\x1b]0;owned\x07\x1b[31mred \x00 \x08\x7f \x9b31m",
    "\ud7ff\ufffe __proto__ constructor toString hasOwnProperty",
    "a" * 5_000,
    "שלום \u05d0 العربية " * 20,
    "\n\r\n\t\u2028\u2029 --> ]]> */ //",
)
EVERYTHING = "\n".join(TEXTS)
LINKS = (
    "[press](javascript:alert(30))",
    "[press](  JaVaScRiPt:alert(31))",
    "[press](java\tscript:alert(32))",
    "[press](data:text/html,<script>alert(33)</script>)",
    "[press](vbscript:alert(34)) [press](//evil.example/35) [press](/\\evil.example/36)",
    "[press](file:///etc/passwd) [press](?job=x) [press](#x) [press](/logout)",
    "[https://bank.example](https://evil.example/37)",
    "[press](https://bank.example@evil.example/38) https://bank.example:pass@evil.example/39",
    '[press](https://evil.example/40 "onmouseover=alert(40)")',
    '[press](https://evil.example/"onmouseover="alert(41))',
    "[press][1]\n\n[1]: javascript:alert(42)",
    "<javascript:alert(43)> <https://evil.example/44>",
    "![shown](https://evil.example/pixel.png) ![x](javascript:alert(45))",
    "[![x](https://evil.example/46)](javascript:alert(46))",
    "[a](https://evil.example/47\u202egnp.exe) https://evil.example/\u202e48",
    "[**a [b](https://evil.example/49) c**](https://evil.example/50)",
    "| a | b |\n|---|---|\n| <script>alert(51)</script> | [x](javascript:alert(51)) |",
    "```html\n<script>alert(52)</script>\n```",
    "````<script>alert(53)</script>\nnever closed",
)
"""Links and the like in Markdown that must not lead anywhere but to http and https."""
GROWING = (
    "[", "](", "[](", "[a](", "![", "*", "**a", "*a*", "_a_ ", "*a_b", "***a", "~~a", "`", "` `` ",
    "```\n", "> ", ">", "- ", "  - ", "- - a\n", "* a\n", "1. ", "1) a\n   - ", "|", "|-", "a|b\n-|-\n",
    "# a\n", "#", "\\", "a  \n", "<", "https://a/(", "[a](http://b) ", "[[[]]]", " ", "\t", "-", "=",
)  # fmt: skip
"""Pieces whose repetition makes a careless reader of Markdown need time that grows faster than the
text."""


async def hostile_jobs(hands: Hands) -> tuple[str, str, str]:
    """A live job, an ended one with changes, and one that waits for a person."""
    running = await hands.submit(
        EVERYTHING,
        context=EVERYTHING,
        labels={text[:90].replace("\0", ""): text.replace("\0", "") for text in TEXTS[:6]},
        model=None,
        verify="echo '<img src=x onerror=alert(20)>'",
    )
    ended = await hands.submit(TEXTS[1], labels={"__proto__": TEXTS[0], "constructor": TEXTS[2]})
    waiting = await hands.submit(TEXTS[2])
    [claim, ending, asking] = await hands.claim(running, ended, waiting)
    todos: list[Any] = [{"content": text, "status": text[:20]} for text in TEXTS]
    await hands.note(running, EventType.TODOS, TEXTS[0], todos=todos)
    for number, kind in enumerate(EventType):
        if kind in (EventType.JOB_STATE, EventType.TODOS):
            continue
        text = TEXTS[number % len(TEXTS)]
        await hands.note(running, kind, text[:200], **_data(text))
    for link in LINKS:
        await hands.note(running, EventType.MODEL_REPLY, author=TEXTS[0], text=link)
    conflicts = [{"path": text[:200], "reason": text[:500]} for text in TEXTS]
    child = await hands.start(claim, description=TEXTS[3])
    outcome = {"id": child.spec.id, "outcome": "out", "reason": TEXTS[5], "conflicts": conflicts}
    await hands.note(running, EventType.CHILD_LANDED, **outcome)
    await hands.finish(
        ending,
        hostile_bundle(),
        state=JobState.FAILED,
        summary=EVERYTHING[:3_900],
        output={text[:50]: text for text in TEXTS},
        verified={"command": TEXTS[1], "exit_code": 1, "output_tail": EVERYTHING[:3_900]},
        error=JobError(type=TEXTS[0], message=TEXTS[1]),
        unread_messages=TEXTS[:5],
        sandbox=TEXTS[1],
    )
    await hands.ask(asking, TEXTS[1], **{text[:60]: text for text in TEXTS})
    return running, ended, waiting


def _data(text: str) -> dict[str, Any]:
    names = ("id", "tool", "text", "stream", "model", "agent", "reason", "outcome", "command")
    more = ("sandbox", "host", "decision", "person", "message", "output_tail")
    data: dict[str, Any] = dict.fromkeys((*names, *more), text)
    return data | {
        "arguments": {text[:60]: text},
        "results": [{"tool": text, "response": {text[:60]: [text]}}],
        "calls": [{"tool": text}],
        "exit_code": text,
        "tokens": text,
        "__proto__": {"polluted": text},
    }


def hostile_bundle() -> bytes:
    paths = [f"src/{number}{text[:150]}".replace("\0", "") for number, text in enumerate(TEXTS)]
    paths = [path.replace("\n", "").replace("\r", "") for path in paths]
    paths = [path.replace("//", "/").rstrip("/") for path in paths]  # no folder without a name
    content = "".join(f"{text}\n" for text in TEXTS).replace("\0", "")  # else it is binary
    count = content.count("\n")
    return bundle(
        *(
            {"path": path, "change": "added", "lines_added": count, "from_path": path}
            | {"after": content.encode("utf-8", "replace")}
            for path in paths
        )
    )
