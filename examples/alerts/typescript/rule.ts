// Raise an alert for every transfer of at least `at_least` units.
import type { FunctionContext, Row } from "trace-etl";

const SQL = `
SELECT block_number, transaction_hash, log_index, token, value_string
  FROM transfers WHERE value_f64 >= CAST(? AS DOUBLE)
`;

export const handler = async (event: unknown, { task }: FunctionContext) => {
  const large = await task.query(SQL, [String(task.config.at_least)]);
  await task.publish(large.map((row) => makeAlert(task.config.rule, row)));
};

const makeAlert = (rule: string, row: Row) => ({
  // The same transfer has the same key, however often its block is processed.
  dedupe_key: `${rule}:${row.transaction_hash}:${row.log_index}`,
  severity: "warning",
  payload: { block: row.block_number, token: row.token, value: row.value_string },
  created_at: new Date().toISOString(),
});
