"""Files that are not sent because their name or their content shows that they are secret.

The names are those under which tools keep credentials. The contents are the forms of credentials
that their issuers document, so that a password without a form of its own is not found. Examples in
such a form are not credentials: they are marked as examples, are fillers, or were published.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from ahocorasick_rs import BytesAhoCorasick

_NAMES = frozenset(
    word
    for line in (
        ".env .envrc .netrc _netrc .npmrc .pypirc .pgpass .my.cnf .mylogin.cnf .git-credentials",
        ".dockercfg .dockerconfigjson .htpasswd .s3cfg .boto .terraformrc terraform.rc .vault-token",
        ".vault_pass .vault-pass .vault_password kubeconfig secrets.json secrets.toml secrets.yaml",
        "secrets.yml credentials.json application_default_credentials.json",
        ".bash_history .zsh_history .psql_history .mysql_history .python_history .node_repl_history",
        ".rediscli_history id_rsa id_dsa id_ecdsa id_ecdsa_sk id_ed25519 id_ed25519_sk",
    )
    for word in line.split()
)

_ENDS = (
    ".env",
    ".key",
    ".p12",
    ".pfx",
    ".jks",
    ".keystore",
    ".kdbx",
    ".ppk",
    ".tfstate",
    ".tfstate.backup",
)
_STARTS = (".env.", "client_secret")

_EXAMPLES = re.compile(r"example|sample|template|default|schema|(?:^|\.)dist(?:\.|$)")
"""The parts of a name that mark an example of a secret file, such as `.env.example`."""

_FOLDERS = frozenset(
    (
        ".aws",
        ".azure",
        ".gnupg",
        ".kube",
        ".oci",
        ".password-store",
        ".ssh",
        ".config/gcloud",
        ".config/gh",
    )
)

_PLACES = tuple(
    f"/{place}"
    for line in (
        ".docker/config.json .cargo/credentials .cargo/credentials.toml .gem/credentials",
        ".m2/settings.xml .m2/settings-security.xml .bundle/config .composer/auth.json",
        ".config/pip/pip.conf .config/git/credentials .terraform.d/credentials.tfrc.json",
    )
    for place in line.split()
)
"""Files that are secret only by their name together with their folder's."""

_FORMS = {
    "private key": (
        (
            rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:\\r|\\n|\r|\n)"
            rb"(?:\\[rn]|[\s\"'+>])*[A-Za-z0-9+/]{4}|PuTTY-User-Key-File-[23]:"
        ),
        "PRIVATE KEY|PuTTY-User-Key",
    ),
    "AWS access key": (
        rb"(?<![A-Za-z0-9])A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?![A-Za-z0-9])",
        "AKIA|ASIA|ABIA|ACCA",
    ),
    "GitHub token": (
        rb"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{22})",
        "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_",
    ),
    "GitLab token": (
        rb"(?<![A-Za-z0-9])gl(?:pat|dt|rt|soat|ptt|agent|cbt)-[A-Za-z0-9_-]{20}",
        "glpat-|gldt-|glrt-|glsoat-|glptt-|glagent-|glcbt-",
    ),
    "Slack token": (
        (
            rb"(?<![A-Za-z0-9])xox[abeoprs]-(?:\d+-)[A-Za-z0-9-]{10}|(?<![A-Za-z0-9])xapp-\d-[A-Z0-9]{6}"
            rb"|hooks\.slack\.com/services/T\w+/B\w+/\w+"
        ),
        "xoxa-|xoxb-|xoxe-|xoxo-|xoxp-|xoxr-|xoxs-|xapp-|hooks.slack.com",
    ),
    "Stripe key": (rb"(?<![A-Za-z0-9])[rs]k_live_[0-9A-Za-z]{16}", "sk_live_|rk_live_"),
    "Google API key": (rb"(?<![A-Za-z0-9])AIza[0-9A-Za-z_-]{35}", "AIza"),
    "npm token": (
        rb"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{36}|:_authToken\s*=\s*[^\s$<{%]",
        "npm_|:_authToken",
    ),
    "PyPI token": (rb"pypi-AgE[A-Za-z0-9_-]{20}", "pypi-AgE"),
    "Anthropic key": (rb"(?<![A-Za-z0-9])sk-ant-[A-Za-z0-9_-]{20}", "sk-ant-"),
    "OpenAI key": (
        (
            rb"(?<![A-Za-z0-9])sk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{20}"
            rb"|sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}"
        ),
        "sk-proj-|sk-svcacct-|sk-admin-|T3BlbkFJ",
    ),
    "Hugging Face token": (rb"(?<![A-Za-z0-9])hf_[A-Za-z]{34}", "hf_"),
}
"""Name -> the form, and texts of which each match contains one."""

_MAX_TOKEN_BYTES = 200
"""The longest rest of a token after its form; a form may need only the beginning."""

_TOKEN_REST = re.compile(rb"[A-Za-z0-9_\-./+=]{0,%d}" % _MAX_TOKEN_BYTES)

_SAYS_EXAMPLE = re.compile(
    rb"example|sample|placeholder|dummy|redacted|change[-_]?me|replace[-_]?me|not[-_]?(?:a[-_]?)?real"
    rb"|your[-_]?(?:own|real|api|access|auth|secret|token|key|npm|github)|abcdefghijklmnop"
    rb"|(?:^|[-_=\s])(?:fake|test|demo|todo|your)(?:[-_]|$)",
    re.IGNORECASE,
)
_FILLER = re.compile(rb"([A-Za-z0-9*])\1{7}")
"""One character repeated, which practically never occurs in a random token."""

_PUBLISHED = (
    b"16C7e42F292c6912E7710c838347Ae178B4a",  # GitHub's documentation of OAuth
    b"1B4a2e77838347a7E420ce178F2E7c6912E1",
    b"SyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe",  # Google's documentation of API keys
    b"4eC39HqLyjWDarjtT1zdp7dc",  # Stripe's documentation of API keys
    b"17653672481-19874698323-pdFZKVeTuE8sk7oOcBrzbqgy",  # Slack's documentation of oauth.v2.access
)
"""Published examples in issuers' documentation that are not marked as such, without the common
beginning of their form."""

_ELIDED = re.compile(rb"[A-Za-z0-9+/=\s\\\"']{0,400}?(?:\.\.\.|\xe2\x80\xa6|\*\*\*|<)")
"""The rest of a key of which only the beginning is shown; block headers have a colon."""

SLICE_BYTES = 256 * 1024
"""The bytes searched at once: all matches in a text are listed, also those of a hostile file."""
_OVERLAP_BYTES = 32
"""The bytes searched again with the next slice: longer than each text."""


def secret_name(path: str, *, is_folder: bool = False) -> str | None:
    """Return why a file or folder is secret by its name; None if it is not.

    Args:
        path: Its path in the workspace.
        is_folder: Whether it is a folder.
    """
    path = f"/{path.lower()}"
    parent, name = path.rsplit("/", 2)[-2:]
    if is_folder:
        is_secret = name in _FOLDERS or f"{parent}/{name}" in _FOLDERS
    else:
        is_secret = (
            name in _NAMES
            or name.endswith(_ENDS)
            or name.startswith(_STARTS)
            or path.endswith(_PLACES)
        ) and not _EXAMPLES.search(name)
    return "Tools keep credentials under this name." if is_secret else None


def secret_content(content: bytes) -> str | None:
    """Return why a content is secret; None if no known form of a credential is in it."""
    view = memoryview(content)
    looked_for = set[str]()
    for start in range(0, len(content), SLICE_BYTES):
        part = view[start : start + SLICE_BYTES + _OVERLAP_BYTES]
        for text, _, _ in _texts().find_matches_as_indexes(part):
            name = _names_of_texts()[text]
            if name not in looked_for:
                looked_for.add(name)
                if any(not _is_example(found) for found in _forms()[name].finditer(content)):
                    return f"It contains a credential ({name})."
    return None


def _is_example(found: re.Match[bytes]) -> bool:
    """Return whether a text in the form of a credential is only an example."""
    if found[0].startswith((b"-----BEGIN", b"PuTTY")):
        return _ELIDED.match(found.string, found.end()) is not None
    rest = _TOKEN_REST.match(found.string, found.end())
    token = found[0] + (rest[0] if rest else b"")
    says_so = _SAYS_EXAMPLE.search(token) or _FILLER.search(token)
    return says_so is not None or any(known in token for known in _PUBLISHED)


def may_be_secret(contents: Sequence[bytes]) -> bool:
    """Return whether `secret_content` may find something in one of the contents.

    This is a single search without the interpreter's lock, which a thread can do in parallel.
    """
    return bool(_texts().find_matches_as_indexes(b"".join(contents)))


@cache
def _texts() -> BytesAhoCorasick:
    """Finds any of the texts: ten times as quick as a search for a form."""
    return BytesAhoCorasick(
        [text.encode() for _, texts in _FORMS.values() for text in texts.split("|")]
    )


@cache
def _names_of_texts() -> list[str]:
    return [name for name, (_, texts) in _FORMS.items() for _ in texts.split("|")]


@cache
def _forms() -> dict[str, re.Pattern[bytes]]:
    return {name: re.compile(form) for name, (form, _) in _FORMS.items()}
