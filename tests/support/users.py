"""Users with a role, in any org."""

import ssl
from datetime import UTC, datetime
from uuid import uuid4

import httpx
import jwt

from support.lifecycle.lifecycle import Bench
from trace_etl.lite.credentials import keys


def token_for(bench: Bench, name: str, org_id: str = keys.LOCAL_ORG) -> str:
    """Return a token like the stack's, for any org."""
    key = keys.ensure_user_key(bench.live.secrets.directory / "user")
    token = keys.sign_user_token(key, name, now=datetime.now(UTC))
    claims = jwt.decode(token, options={"verify_signature": False})
    claims["org_id"] = org_id
    return jwt.encode(claims, key.read_bytes(), algorithm="ES256", headers={"kid": key.stem})


def new_org(bench: Bench) -> str:
    """Create an empty org without users."""
    org = str(uuid4())
    bench.rows("INSERT INTO orgs (org_id, name) VALUES (%s, %s)", org, f"org-{org}")
    return org


def new_user(bench: Bench, role: str, *, org_id: str = keys.LOCAL_ORG) -> httpx.Client:
    """Create a user. Returns a client that sends this user's token."""
    name = f"p{uuid4().hex[:12]}"
    bench.rows("INSERT INTO users (name) VALUES (%s)", name)
    bench.rows(
        "INSERT INTO memberships (org_id, user_name, role) VALUES (%s, %s, %s)", org_id, name, role
    )
    return httpx.Client(
        base_url=bench.user.base_url,
        verify=ssl.create_default_context(cafile=str(bench.live.secrets.ca)),
        headers={"Authorization": f"Bearer {token_for(bench, name, org_id)}"},
        timeout=30,
        trust_env=False,
    )
