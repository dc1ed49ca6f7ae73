"""Plan and deploy DAG files. Runs in the Dispatcher, or in a process of its own (`deploy_process`)."""

from uuid import UUID

from trace_etl.api.user.dags.dags import DeployedJob, DeployReply, DeployRequest, PlanRequest
from trace_etl.api.user.dags.rollouts import DagPlan, PlanReply
from trace_etl.dispatcher.user_api.webhook_signatures import WebhookSecrets
from trace_etl.model.dag import Dag
from trace_etl.policy.deploy.deploy_plan import DeployPlan
from trace_etl.secret_store import SecretStore
from trace_etl.state.catalog import dags
from trace_etl.state.db.pool import Pool, transact
from trace_etl.state.db.snapshots import snapshot
from trace_etl.state.rollout import backfill_consumers
from trace_etl.state.rollout import deploy as rollout_deploy


async def answer(
    pool: Pool,
    secrets: WebhookSecrets,
    org_id: UUID,
    dag: Dag,
    body: PlanRequest | DeployRequest,
) -> bytes:
    """Deploy or plan a DAG file. Returns the reply as JSON.

    Raises Invalid, NotFound, NameTaken, NameInUse, RowsLost, DeployConflict.
    """
    if isinstance(body, DeployRequest):
        reply = await _deploy(pool, org_id, dag, body)
    else:
        reply = await _plan(pool, secrets, org_id, dag, body)
    return reply.model_dump_json(by_alias=True).encode()


async def _plan(
    pool: Pool, secrets: WebhookSecrets, org_id: UUID, dag: Dag, body: PlanRequest
) -> PlanReply:
    async with snapshot(pool) as conn:
        if body.from_version is not None:
            await dags.get_version(conn, org_id, dag.name, body.from_version)
        planned = await rollout_deploy.plan_text(
            conn, org_id, dag, body.text, from_version=body.from_version
        )
    return PlanReply(
        dag=dag.name,
        base_version=planned.dag_version,
        is_deployed=planned.is_deployed,
        warnings=_find_missing_secrets(dag, org_id, secrets.store),
        plan=_describe_plan(planned.plan),
    )


async def _deploy(pool: Pool, org_id: UUID, dag: Dag, body: DeployRequest) -> DeployReply:
    base = body.base_version
    if "base_version" not in body.model_fields_set:
        async with pool.connection() as conn:
            base = await dags.get_deployed_version(conn, org_id, dag.name)
    columns = {
        (output.job, output.output): [column.model_dump() for column in output.columns]
        for output in body.columns
    }
    deployment = await transact(
        pool,
        lambda conn: rollout_deploy.deploy(
            conn,
            org_id,
            dag,
            body.text,
            base=base,
            allow_breaking=body.allow_breaking,
            columns=columns,
        ),
    )
    await transact(
        pool,
        lambda conn: backfill_consumers.backfill(conn, deployment.backfilled, only_recent=True),
    )
    async with pool.connection() as conn:
        datasets = await dags.list_dag_datasets(conn, deployment.dag_id)
    return DeployReply(
        dag=dag.name,
        dag_version=deployment.dag_version,
        changed=deployment.changed,
        is_building=any(d.building_version for d in datasets) or deployment.plan.builds,
        jobs=[
            DeployedJob(
                name=job.name, operator=job.operator, runtime=job.runtime, activation=job.activation
            )
            for job in dag.jobs
        ],
        datasets=datasets,
        plan=_describe_plan(deployment.plan),
    )


def _find_missing_secrets(dag: Dag, org_id: UUID, secrets: SecretStore) -> list[str]:
    """Name the jobs, webhooks and notifications whose secrets are missing, and what fails then."""
    signed = [(f"notify {rule.name}", rule.secret) for rule in dag.notify]
    signed += [
        (job.name, str(job.source.options["secret"]))
        for job in dag.jobs
        if job.source is not None and job.source.kind == "webhook"
    ]
    used = [(user, name, "every delivery is refused") for user, name in signed]
    used += [(job.name, name, "its tasks fail") for job in dag.jobs for name in job.secrets]
    missing = set(secrets.find_missing(org_id, {name for _, name, _ in used}))
    return [
        f"{user}: the secret {name!r} is missing or empty, so {consequence}; write it to "
        f"the file `secrets/{name}` of the stack's home"
        for user, name, consequence in used
        if name in missing
    ]


def _describe_plan(plan: DeployPlan) -> DagPlan:
    return DagPlan(
        **vars(plan),
        builds=plan.builds,
        partitions=plan.rebuilt_partitions,
        tasks=plan.rebuilding_tasks,
        breaking=plan.breaking,
    )
