"""Git's own files without the credentials that people leave in them.

A job gets a copy of `.git`, and its agent may do whatever a repository tells it to: a token in a
remote's URL or in an extra header, as CI systems write them, must not come along.
"""

from __future__ import annotations

import re

_FILES = frozenset({"config", "config.worktree", "FETCH_HEAD"})

_WEB_USER = re.compile(rb"(https?://)[^/\s]*@", re.IGNORECASE)
"""Whatever stands before the host: a token may take the place of the name as well as of the
password."""

_PASSWORD = re.compile(rb"([a-z][a-z0-9+.-]*://[^/\s:@]*):[^/\s]*@", re.IGNORECASE)

_SECRET_VARIABLE = re.compile(
    rb"^([ \t]*(?:\[[^\n]*\][ \t]*)?)(?:extraheader|password|token|oauthtoken|smtppass|sslcertpassword)"
    rb"[ \t]*=(?:[^\n]*\\\r?\n)*[^\n]*",
    re.IGNORECASE | re.MULTILINE,
)
"""A line of a configuration, with the lines that a backslash at the end makes part of it."""


def may_hold_credentials(path: str) -> bool:
    """Whether a file of a workspace is one of Git's that names URLs.

    A configuration, a log, FETCH_HEAD.
    """
    *folders, name = path.split("/")
    at = next((index for index, folder in enumerate(folders) if folder.endswith(".git")), None)
    return at is not None and (name in _FILES or "logs" in folders[at + 1 :])


def without_credentials(content: bytes) -> bytes:
    """The file without user names and passwords in URLs, and without variables that hold a secret."""
    content = _SECRET_VARIABLE.sub(rb"\1", content)
    content = _WEB_USER.sub(rb"\1", content)
    return _PASSWORD.sub(rb"\1@", content)
