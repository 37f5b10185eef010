"""What a small request to a model shows, in sentences for people."""

from __future__ import annotations

from fanout.orchestrator.cli.terminal import formatting, output
from fanout.orchestrator.deep_agent import Trial

REFUSAL_CHARACTERS = 160
"""Of a service's words: two lines of a terminal."""


def trial_sentence(name: str, trial: Trial) -> str:
    """Return what a trial shows: whether the model answers, streams and takes tools.

    Args:
        name: The model's name.
        trial: What became of the request.
    """
    if trial.fault:
        return trial.fault
    said = f" ({output.one_line(trial.refusal, REFUSAL_CHARACTERS)})" if trial.refusal else ""
    streaming = (
        "streaming works" if trial.streams else "it does not stream, so replies come as a whole"
    )
    if not trial.takes_tools:
        tools = f"it refuses tools{said}, without which an agent can only talk"
    elif not trial.calls_tools:
        tools = "it takes tools, but did not call the one that it was asked to call"
    else:
        tools = "tools work"
    return f"{name} answered in {formatting.span(trial.seconds)}: {streaming}, {tools}."


def is_weak(trial: Trial) -> bool:
    """Return whether agents will get little done with the model, although it answers."""
    return not trial.fault and not (trial.takes_tools and trial.calls_tools)
