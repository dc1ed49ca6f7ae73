"""A database of an early release migrates, and its deployed DAGs keep working."""

from collections.abc import Generator
from importlib import resources
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from support.dags.rollouts import RolloutDag
from support.lifecycle.lifecycle import bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied, drop_database, sql
from trace_etl.lite.postgres import databases
from trace_etl.state.db import migrations

BEFORE = ("0001_skeleton.sql", "0002_retention_by_generation.sql")
# Two DAGs as the first release stored them: `first.copy` reads the source of its own DAG,
# `second.copy` reads the dataset that the first DAG publishes.
DEPLOYED = """
DO $$
DECLARE
    org uuid := '00000000-0000-0000-0000-000000000001';
    g uuid; v uuid; j uuid; r uuid; d uuid; w uuid; origin uuid; shared uuid; dag text;
BEGIN
    FOREACH dag IN ARRAY ARRAY['first', 'second'] LOOP
        INSERT INTO dags (org_id, name) VALUES (org, dag) RETURNING dag_id INTO g;
        INSERT INTO dag_versions (dag_id, text_sha256, text) VALUES (g, sha256(dag::bytea), dag)
        RETURNING dag_version INTO v;
        UPDATE dags SET dag_version = v, deployed_at = now() WHERE dag_id = g;
        FOR i IN 1..2 LOOP
            INSERT INTO jobs (org_id, dag_id, name)
            VALUES (org, g, CASE i WHEN 1 THEN 'request' ELSE 'copy' END) RETURNING job_id INTO j;
            INSERT INTO job_revisions (job_id, definition_hash, generation_hash, activation,
                runtime, operator, config, execution_strategy, update_strategy, max_attempts,
                timeout_seconds, heartbeat_timeout_seconds, priority)
            VALUES (j, 'd', 'g', CASE i WHEN 1 THEN 'source' ELSE 'reactive' END, 'ecs_python',
                    'sql', '{}', 'PerPartition', 'replace', 3, 60, 60, 'normal')
            RETURNING revision_id INTO r;
            UPDATE jobs SET revision_id = r WHERE job_id = j;
            INSERT INTO datasets (org_id, job_id, output_name) VALUES (org, j, 'rows')
            RETURNING dataset_uuid INTO d;
            INSERT INTO dataset_versions (dataset_uuid, generation_hash) VALUES (d, 'g')
            RETURNING dataset_version INTO w;
            UPDATE datasets SET dataset_version = w WHERE dataset_uuid = d;
            INSERT INTO job_outputs VALUES (r, 0, 'rows', d, w);
            IF i = 1 THEN origin := d; ELSE
                INSERT INTO job_inputs (revision_id, input_index, name, dataset_uuid)
                VALUES (r, 0, 'rows', CASE dag WHEN 'first' THEN origin ELSE shared END);
                INSERT INTO publications (org_id, name, dataset_uuid)
                VALUES (org, dag || '_rows', d);
            END IF;
        END LOOP;
        shared := d;
    END LOOP;
END $$
"""


@pytest.fixture
def old(templates: Templates) -> Generator[databases.Dsns]:
    """Databases where the first release deployed two DAGs, without later migrations."""
    with copied(templates) as dsns:
        name = f"old_{uuid4().hex[:12]}"
        server = templates.server
        databases.create_database(
            server, name, owner=databases.STATE, connect=[databases.READER], template="template0"
        )
        data = psycopg.conninfo.conninfo_to_dict(dsns.queue)["dbname"]
        try:
            made = databases.dsns(server, state=name, data=str(data))
            folder = resources.files(migrations)
            for file in BEFORE:
                sql(made.state, folder.joinpath(file).read_text())
            sql(
                made.state,
                "CREATE TABLE schema_migrations (name text PRIMARY KEY, "
                "applied_at timestamptz NOT NULL DEFAULT now())",
            )
            for file in BEFORE:
                sql(made.state, "INSERT INTO schema_migrations (name) VALUES (%s)", (file,))
            sql(made.state, DEPLOYED)
            yield made
        finally:
            drop_database(server, name)


def test_inputs_within_a_dag_are_pinned_and_inputs_across_dags_are_not(old: databases.Dsns) -> None:
    applied = migrations.apply(old.state)
    assert applied[0] == "0003_generations.sql"
    found = sql(
        old.state,
        """SELECT g.name, i.dataset_version = d.dataset_version
             FROM job_inputs i JOIN datasets d USING (dataset_uuid)
             JOIN jobs j ON j.revision_id = i.revision_id JOIN dags g USING (dag_id)
            ORDER BY g.name""",
    )
    assert found == [("first", True), ("second", None)]
    assert migrations.apply(old.state) == []


def test_a_dag_deployed_by_an_early_release_can_be_redeployed_and_rolled_back(
    old: databases.Dsns, secrets: Secrets, tmp_path: Path
) -> None:
    migrations.apply(old.state)
    with live(secrets, old, tmp_path / "objects") as running, bench(running) as made:
        story = RolloutDag(made, "first")
        before = made.user.get("/v1/datasets/first_rows").json()["dataset_version"]
        assert story.post(story.text(), allow_breaking=True).status_code == 200
        assert made.user.get("/v1/datasets/first_rows").status_code == 404
        assert story.roll_back().status_code == 200
        assert made.user.get("/v1/datasets/first_rows").json()["dataset_version"] == before
