"""A job's session after its worker was lost."""

from __future__ import annotations

from typing import Any, cast

from google.adk.events import Event

from fanout.workers.agent.session_journal import AttemptJournal, JournaledSessions


class NoJournal:
    """Takes what is written; the session is what is looked at."""

    async def note_session_event(self, event: Event) -> None:
        """Nothing."""


async def test_events_stay_in_order_where_the_next_hosts_clock_is_behind() -> None:
    sessions = JournaledSessions(cast("AttemptJournal", NoJournal()))
    session = await sessions.create_session(app_name="a", user_id="u", session_id="s")
    ahead: dict[str, Any] = {"author": "user", "timestamp": 4_000_000_000.0}
    await sessions.replay(session, [Event(**ahead), Event(**ahead)])
    await sessions.append_event(session, Event(author="agent"))
    times = [event.timestamp for event in session.events]
    assert times == sorted(set(times))
    assert times[0] == ahead["timestamp"]
