"""Check at the start that an object store can be used."""

import secrets
from uuid import UUID

from trace_etl.objects.errors import StorageError
from trace_etl.objects.store import ObjectStore


def check_access(store: ObjectStore, org_id: UUID) -> None:
    """Write, read, list and delete an object of an organisation. Raises StorageError."""
    prefix = f"{store.org_root(org_id)}/.probe-{secrets.token_hex(8)}/"
    key = f"{prefix}object"
    store.put(key, b"probe")
    try:
        if store.get(key) != b"probe" or [info.key for info in store.list(prefix)] != [key]:
            raise StorageError(
                f"{store.url} does not return what was written to it; check TRACE_OBJECTS_URL"
            )
    finally:
        store.delete(key)
