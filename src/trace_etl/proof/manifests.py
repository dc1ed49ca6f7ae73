"""Read signed manifests and check their signature against pinned keys."""

from collections.abc import Mapping
from typing import Any

import jwt
from jwt.api_jws import PyJWS
from pydantic import ValidationError

from trace_etl.api.proof.manifest import MANIFEST_TYPE, Manifest


class BadManifest(Exception):
    """The manifest is not signed by a known key, or was changed."""


def open_manifest(text: str, keys: Mapping[str, Any]) -> Manifest:
    """Return the manifest if one of the keys, a JWKS, signed it. Raises BadManifest."""
    try:
        header = jwt.get_unverified_header(text.strip())
        if header.get("typ") != MANIFEST_TYPE:
            raise BadManifest(
                f"the document is not a manifest: its type is {header.get('typ')!r}; "
                "give one that `trace certify` wrote"
            )
        known = {str(key.get("kid")): key for key in keys["keys"]}
        if header.get("kid") not in known:
            raise BadManifest(
                f"the manifest is signed with key {header.get('kid')!r}, which is not among the given "
                f"keys ({', '.join(sorted(known)) or 'none'}); get the keys of the stack that signed it"
            )
        key = jwt.PyJWK(known[str(header["kid"])], algorithm="ES256")
        payload = PyJWS(algorithms=["ES256"]).decode(text.strip(), key, algorithms=["ES256"])
        return Manifest.model_validate_json(payload)
    except jwt.InvalidSignatureError as error:
        raise BadManifest(
            "the signature does not match: the manifest was changed; get the original"
        ) from error
    except (jwt.PyJWTError, ValidationError, KeyError, TypeError, AttributeError) as error:
        raise BadManifest(
            f"the document cannot be read as a signed manifest: {error}; get the original"
        ) from error
