"""Uploads of bundles of functions, and DAGs that use them."""

import hashlib
from collections.abc import Callable

import httpx
import pytest

from support.bundles import make_zip, push
from support.lifecycle.lifecycle import Bench
from support.users import new_user
from trace_etl.api.user.dags.udf import PART_BYTES

DAG = """
name: {dag}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - {{name: ingest, operator: cryo_ingest, inputs: [{{from: {{job: request}}}}], outputs: [blocks]}}
  - name: rule
    operator: udf
    runtime: ecs_udf_python
    inputs: [{{from: {{job: ingest}}}}]
    outputs: [alerts]
    update_strategy: append
    unique_key: [id]
    udf: {{bundle: {name}, sha256: {sha256}, handler: rule.handler}}
publish:
  - name: {dag}_alerts
    from: {{job: rule}}
    write_mode: buffered
    schema: [{{name: id, type: string, nullable: false}}]
"""


def test_a_bundle_of_several_parts_is_kept_once(shared: Bench) -> None:
    content = make_zip("#" * (2 * PART_BYTES + 10))
    first = push(shared, "large", content).json()
    assert (first["sha256"], first["file_count"]) == (hashlib.sha256(content).hexdigest(), 1)
    assert push(shared, "large", content).json() == first
    other = push(shared, "large", make_zip("other")).json()
    listed = shared.user.get("/v1/udf/bundles", params={"name": "large"}).json()["items"]
    assert listed == [other, first]


@pytest.mark.parametrize(
    ("make", "sha256", "reason"),
    [
        (lambda: b"not a zip", None, "is not a zip file"),
        (lambda: make_zip("x", "../x"), None, "not a path inside"),
        (lambda: make_zip("x"), "0" * 64, "the parts have"),
    ],
)
def test_a_harmful_or_damaged_bundle_is_refused(
    shared: Bench, make: Callable[[], bytes], sha256: str | None, reason: str
) -> None:
    reply = push(shared, "harmful", make(), sha256=sha256)
    assert reply.status_code == 422 and reason in reply.text
    listed = shared.user.get("/v1/udf/bundles", params={"name": "harmful"}).json()
    assert listed["items"] == []


def test_a_part_of_the_wrong_size_and_a_missing_part_are_refused(shared: Bench) -> None:
    content = make_zip("#" * PART_BYTES)
    digest = hashlib.sha256(content).hexdigest()
    body = {"name": "parts", "sha256": digest, "size_bytes": len(content)}
    path = f"/v1/udf/uploads/{shared.user.post('/v1/udf/uploads', json=body).json()['upload_id']}"
    short = shared.user.put(f"{path}/parts/0", content=content[:10])
    assert short.status_code == 422 and f"must have {PART_BYTES}" in short.text
    assert shared.user.put(f"{path}/parts/9", content=b"x").status_code == 422
    assert shared.user.put(f"{path}/parts/0", content=content[:PART_BYTES]).status_code == 200
    incomplete = shared.user.post(f"{path}/finalize")
    assert incomplete.status_code == 422 and "send the missing parts" in incomplete.text


def test_a_dag_is_refused_until_its_bundle_was_pushed(shared: Bench) -> None:
    content = make_zip("def handler(event, context): ...")
    digest = hashlib.sha256(content).hexdigest()
    text = DAG.format(dag="uses_rule", name="a_rule", sha256=digest)
    for path in ("/v1/plans", "/v1/dags"):
        [fault] = shared.user.post(path, json={"text": text}).json()["errors"]
        assert fault["field"] == "jobs[2].udf.sha256" and "trace udf push" in fault["message"]
    push(shared, "a_rule", make_zip("another version"))
    [fault] = shared.user.post("/v1/plans", json={"text": text}).json()["errors"]
    assert "was not pushed with this hash; the newest one is" in fault["message"]
    push(shared, "a_rule", content)
    assert shared.user.post("/v1/dags", json={"text": text}).status_code == 200


def test_outputs_of_a_function_must_be_buffered(shared: Bench) -> None:
    text = DAG.format(dag="unbuffered", name="x", sha256="a" * 64).split("publish:")[0]
    [fault] = shared.user.post("/v1/plans", json={"text": text}).json()["errors"]
    assert fault["field"] == "jobs[2].outputs[0]"
    assert "`write_mode: buffered`" in fault["message"]


def start(shared: Bench, name: str, content: bytes) -> httpx.Response:
    digest = hashlib.sha256(content).hexdigest()
    body = {"name": name, "sha256": digest, "size_bytes": len(content)}
    return shared.user.post("/v1/udf/uploads", json=body)


def stored(shared: Bench, content: bytes) -> bool:
    digest = hashlib.sha256(content).hexdigest()
    return bool(list(shared.live.objects.rglob(f"*{digest}*")))


def sweep(shared: Bench) -> None:
    shared.live.run(shared.live.service.storage_sweeper.sweep_once)


def test_an_upload_whose_last_step_failed_leaves_no_object(shared: Bench) -> None:
    lost, kept = make_zip("lost"), make_zip("kept")
    shared.rows("UPDATE udf_uploads SET ended_at = now()")
    for name, content in (("lost", lost), ("again", kept)):
        shared.rows(f"ALTER TABLE udf_bundles ADD CONSTRAINT full_disk CHECK (name <> '{name}')")
        assert push(shared, name, content).status_code == 500
        shared.rows("ALTER TABLE udf_bundles DROP CONSTRAINT full_disk")
        assert stored(shared, content), "the object is written before the last transaction"
    assert push(shared, "other", kept).status_code == 200
    sweep(shared)
    assert stored(shared, lost), "the user may still finish the upload"
    old = "UPDATE udf_uploads SET started_at = started_at - interval '25 hours'"
    shared.rows(f"{old} WHERE name IN ('lost', 'again')")
    sweep(shared)  # ends them
    shared.rows("UPDATE udf_uploads SET ended_at = ended_at - interval '2 hours'")
    sweep(shared)
    assert not stored(shared, lost)
    assert stored(shared, kept), "another bundle has the same content"
    left = "SELECT 1 FROM udf_uploads WHERE name IN ('lost', 'again')"
    assert shared.rows(left) == []
    assert push(shared, "lost", lost).status_code == 200 and stored(shared, lost)


def test_a_user_has_a_limited_number_of_unfinished_uploads(shared: Bench) -> None:
    content = make_zip("many")
    shared.rows("UPDATE udf_uploads SET ended_at = now()")
    for number in range(8):
        assert start(shared, f"many_{number}", content).status_code == 200
    refused = start(shared, "many_8", content)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
    assert "you have 8 unfinished uploads" in refused.json()["detail"]
    assert start(shared, "many_0", content).status_code == 200, "it replaces the earlier one"
    with new_user(shared, "writer") as other:
        body = {"name": "many_0", "sha256": "0" * 64, "size_bytes": 1}
        assert other.post("/v1/udf/uploads", json=body).status_code == 200
    shared.rows("UPDATE udf_uploads SET ended_at = now()")
