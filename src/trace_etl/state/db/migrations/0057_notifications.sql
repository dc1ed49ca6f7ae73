-- Notifications: webhooks that tell people about failures, late data, gaps and deep reorganisations.

-- The rules of a version: objects as `notification_rules` reads them.
ALTER TABLE dag_versions ADD notifications jsonb NOT NULL DEFAULT '[]';

CREATE VIEW notification_rules AS
SELECT g.org_id, g.dag_id, g.name AS dag, g.deployed_at, r.*
  FROM dags g JOIN dag_versions v USING (dag_version)
 CROSS JOIN LATERAL jsonb_to_recordset(v.notifications) AS r (
       name text, event text, url text, secret text, after_seconds integer, deeper_than bigint,
       datasets text[]);

-- Deliveries are retried from here, not from the outbox: a slow receiver must not delay tasks.
CREATE TABLE notifications (
    notification_id  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    org_id           uuid NOT NULL REFERENCES orgs,
    dag_id           uuid NOT NULL REFERENCES dags,
    dag              text NOT NULL,
    rule             text NOT NULL,
    event            text NOT NULL,
    dedupe_key       text NOT NULL,
    body             jsonb NOT NULL,
    url              text NOT NULL,
    secret           text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT now(),
    tries            integer NOT NULL DEFAULT 0,
    next_try_at      timestamptz NOT NULL DEFAULT now(),
    sent_at          timestamptz,
    failed_at        timestamptz,
    last_error       text,
    CONSTRAINT notifications_once UNIQUE (dag_id, rule, dedupe_key),
    CHECK (sent_at IS NULL OR failed_at IS NULL)
);
CREATE INDEX notifications_due ON notifications (next_try_at) WHERE sent_at IS NULL AND failed_at IS NULL;
CREATE INDEX notifications_listing ON notifications (org_id, created_at DESC, notification_id DESC);

-- The current generations that a rule watches.
CREATE VIEW watched_datasets AS
SELECT r.org_id, r.dag_id, r.dag, r.name AS rule, r.event, r.url, r.secret, r.after_seconds,
       r.deeper_than, r.deployed_at, p.name AS dataset, d.dataset_uuid, d.dataset_version
  FROM notification_rules r
  JOIN jobs j ON j.dag_id = r.dag_id AND j.active
  JOIN datasets d ON d.job_id = j.job_id AND d.dataset_version IS NOT NULL
  JOIN publications p ON p.dataset_uuid = d.dataset_uuid
 WHERE r.datasets IS NULL OR p.name = ANY (r.datasets);
