"""A loopback service with quotas, keys that are revoked, and outages; it speaks Gemini's form."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.integration.models.model_server import Handler
from tests.integration.models.wires import Answer, Gemini, text
from tests.loopback import gemini_environment, loopback_server

THINKS_SECONDS = 0.05
HELD_SECONDS = 60.0
KEY = "the-first-key-of-the-test"
_MODEL = re.compile(r"models/([^:]+):")


@dataclass
class QuotaService:
    """What the service gives, and what it was asked; each model has a quota of its own."""

    url: str
    left: dict[str, int] = field(default_factory=dict)
    """Model -> the answers that are left of its quota; other models have no quota."""
    refusal: Answer = field(default_factory=lambda: Answer(status=402))
    """What is answered without quota."""
    keys: set[str] = field(default_factory=lambda: {KEY})
    """The keys that are accepted; the answer to others is 401."""
    down: bool = False
    """Whether the answer is 503."""
    ends_with: dict[str, Answer] = field(default_factory=dict)
    """The answer to a first message with this text; after it the service is down."""
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    answers_now: threading.Event = field(default_factory=threading.Event)
    """Cleared while no request gets a reply; refusals are sent."""

    def __post_init__(self) -> None:
        self.answers_now.set()

    def environment(self, key: str = KEY) -> dict[str, str]:
        """The variables that send jobs here."""
        return {**gemini_environment(self.url), "GOOGLE_API_KEY": key}

    def answer(self, model: str, key: str, request: dict[str, Any]) -> Answer:
        with self.lock:
            for text_, answer in self.ends_with.items():
                if len(request["contents"]) == 1 and text_ in str(request["contents"]):
                    self.down = True
                    return answer
            if key not in self.keys:
                refusal: Answer | None = Answer(status=401)
            elif self.down:
                refusal = Answer(status=503, headers={"Retry-After": "0"})
            elif self.left.get(model, 1) <= 0:
                refusal = self.refusal
            else:
                refusal = None
            if refusal is not None:
                self.refused[model] += 1
                return refusal
            if model in self.left:
                self.left[model] -= 1
            self.answered[model] += 1
            return Answer([text("Done.\n\n## Summary\ndone")])


@contextmanager
def quota_service() -> Iterator[QuotaService]:
    """Serve on a port of 127.0.0.1."""
    with loopback_server(_Handler, QuotaService) as service:
        yield service


class _Handler(Handler):
    def post(self) -> None:
        request, state, wire = self.read_json(), self.state, Gemini()
        time.sleep(THINKS_SECONDS)
        model = _MODEL.search(self.path)
        assert model is not None
        answer = state.answer(model[1], self.headers.get("x-goog-api-key", ""), request)
        if answer.status == 200:
            state.answers_now.wait(HELD_SECONDS)
        with suppress(BrokenPipeError, ConnectionResetError):
            if answer.status == 200 and wire.is_stream(self.path, request):
                self._stream(wire, answer)
            elif answer.status == 200:
                self.send_json(200, wire.whole(answer))
            else:
                body = answer.body or json.dumps(wire.refusal(answer.status))
                self._send(
                    answer.status, body, {"content-type": "application/json", **answer.headers}
                )
