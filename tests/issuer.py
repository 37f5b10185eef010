"""An OpenID Connect issuer on the loopback, which signs whatever a test wants."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tests.loopback import LoopbackHandler, loopback_server

AUDIENCE = "fanout"


class Issuer:
    """The issuer, its keys, and how often they were read."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.published: list[dict[str, Any]] = [
            json.loads(RSAAlgorithm.to_jwk(self.rsa.public_key())) | {"kid": "r1", "use": "sig"},
            json.loads(ECAlgorithm.to_jwk(self.ec.public_key())) | {"kid": "e1", "alg": "ES256"},
        ]
        self.reads = 0
        self.answers = True
        self.discovery: dict[str, Any] = {}
        self.url = ""

    def claims(self, **changed: Any) -> dict[str, Any]:
        """The claims of a valid token for ann, changed; None removes one."""
        now = int(time.time())
        given = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ann",
            "iat": now,
            "exp": now + 300,
            "scope": "openid fanout:read fanout:submit",
        }
        return {name: value for name, value in (given | changed).items() if value is not None}

    def token(self, *, headers: dict[str, Any] | None = None, **changed: Any) -> str:
        """A token that the published RSA key has signed."""
        return jwt.encode(
            self.claims(**changed), self.rsa, "RS256", headers={"kid": "r1", **(headers or {})}
        )

    def public_pem(self) -> bytes:
        """The RSA key as everybody can read it."""
        return self.rsa.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def document(self, path: str) -> Any:
        """What the issuer publishes under a path; None: nothing."""
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.discovery}
        if path == "/keys":
            self.reads += 1
            return {"keys": self.published}
        return None


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """An issuer that answers until the end of the context."""
    issuer = Issuer()

    class Handler(LoopbackHandler):
        def get(self) -> None:
            document = issuer.document(self.path) if issuer.answers else None
            self.send_response(200 if document is not None else 503)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

    with loopback_server(Handler, str) as issuer.url:
        yield issuer
