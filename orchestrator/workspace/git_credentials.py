"""Removes credentials from Git's own files.

A job receives a copy of `.git`, and its agent may follow any instruction in a repository. So a
token in a remote's URL or in an extra header, as CI systems write them, must not be in the copy.
"""

from __future__ import annotations

import re

_FILES = frozenset({"config", "config.worktree", "FETCH_HEAD"})

_WEB_USER = re.compile(rb"(https?://)[^/\s]*@", re.IGNORECASE)
"""Everything before the host: a token may be the user name or the password."""

_PASSWORD = re.compile(rb"([a-z][a-z0-9+.-]*://[^/\s:@]*):[^/\s]*@", re.IGNORECASE)

_SECRET_VARIABLE = re.compile(
    rb"^([ \t]*(?:\[[^\n]*\][ \t]*)?)(?:extraheader|password|token|oauthtoken|smtppass|sslcertpassword)"
    rb"[ \t]*=(?:[^\n]*\\\r?\n)*[^\n]*",
    re.IGNORECASE | re.MULTILINE,
)
"""A line of a configuration, with the lines that continue it after a backslash."""


def may_hold_credentials(path: str) -> bool:
    """Return whether a path is that of a Git file with URLs: a configuration, a log, FETCH_HEAD."""
    *folders, name = path.split("/")
    at = next((index for index, folder in enumerate(folders) if folder.endswith(".git")), None)
    return at is not None and (name in _FILES or "logs" in folders[at + 1 :])


def without_credentials(content: bytes) -> bytes:
    """Remove user names and passwords from URLs, and variables with secrets, from a file."""
    content = _SECRET_VARIABLE.sub(rb"\1", content)
    content = _WEB_USER.sub(rb"\1", content)
    return _PASSWORD.sub(rb"\1@", content)
