"use strict";
// What a user-defined function in Node imports. No dependencies. The same calls as `trace_etl.sdk`.
//
//   exports.handler = async (event, context) => {
//     const rows = await context.task.query("SELECT transaction_hash FROM transfers WHERE amount > ?", [1000]);
//     await context.task.publish(rows.map((row) => ({ alert_id: row.transaction_hash })));
//   };

const { randomBytes } = require("node:crypto");
const { send } = require("./connection.js");
const { CallFailed } = require("./errors.js");
const json = require("./exact_json.js");

const MAX_BATCH_BYTES = 8 * 1024 * 1024;
const MAX_BATCH_ROWS = 100_000;

/** One attempt of a task. All calls go through one socket, which serves only this attempt. */
class Task {
  #outputs;
  #socket;
  #batchPrefix = `batch-${randomBytes(8).toString("hex")}`; // several tasks of one attempt share its prefix
  #batches = 0;

  constructor(event, socketPath = process.env.TRACE_SOCKET) {
    this.event = event;
    this.config = event.config;
    this.scope = event.scope ?? {};
    this.parameters = event.parameters ?? {};
    this.inputs = event.inputs.map((input) => input.name);
    this.#outputs = new Map(event.outputs.map((output) => [output.name, output]));
    this.#socket = socketPath;
  }

  /** Run one SELECT over the inputs, as they were when the task started. */
  async query(sql, params = null) {
    const reply = await this.#call("/v1/task/query", { sql, params, format: "json" });
    if (reply.rows === null) {
      const fix = "select fewer columns or rows, or process it in steps";
      throw new CallFailed("result_too_large", `the result is too large; ${fix}`);
    }
    const names = reply.columns.map((column) => column.name);
    return reply.rows.map((row) => Object.fromEntries(row.map((value, n) => [names[n], value])));
  }

  /** Return all rows of an input; of the only one by default. */
  async rows(name = only(this.inputs, "input")) {
    return this.query(`SELECT * FROM "${name.replaceAll('"', '""')}"`);
  }

  /** Send rows to a buffered output; to the only one by default. Returns their number. */
  async publish(rows, output = only([...this.#outputs.keys()], "output")) {
    const target = this.#findOutput(output);
    let total = 0;
    for await (const lines of pack(rows)) {
      await this.#publishBatch(target, lines);
      total += lines.length;
    }
    return total;
  }

  async #publishBatch(target, lines) {
    const content = Buffer.concat(lines);
    const { bucket, prefix } = target.storage_ref;
    const number = String(this.#batches++).padStart(5, "0");
    const url = `s3://${bucket}/${prefix}${this.#batchPrefix}-${number}.jsonl`;
    await this.#put(url, content, { "If-None-Match": "*" });
    await this.#call("/v1/task/buffer-publish", {
      dataset_uuid: target.dataset_uuid,
      dataset_version: target.dataset_version,
      batch_uri: url,
      record_count: lines.length,
      batch_size_bytes: content.length,
    });
  }

  /**
   * Emit events of an output; of the only one by default. An event has `start` and `end` (blocks, both
   * inclusive), a `cursor` or a `partition_key`.
   */
  async emit(events, output) {
    const completed = [...events].map((event) => this.#completeEvent(event, output));
    await this.#call("/v1/task/events", { events: completed });
  }

  /** Add the dataset and the key of a block range, unless the event has them. */
  #completeEvent(event, output) {
    const completed = { ...event };
    if (!("dataset" in event || "dataset_uuid" in event)) {
      const name = output ?? only([...this.#outputs.keys()], "output");
      completed.dataset_uuid = this.#findOutput(name).dataset_uuid;
    }
    if ("start" in event) completed.partition_key ??= `${event.start}-${event.end}`;
    return completed;
  }

  #findOutput(name) {
    const target = this.#outputs.get(name);
    if (target === undefined) throw new CallFailed("unknown_output", `the task has no output ${name}; its outputs are ${[...this.#outputs.keys()].join(", ")}`);
    return target;
  }

  /** Read an object (`s3://bucket/key`) of an input or of the scratch prefix. Returns a Buffer. */
  async getObject(url) {
    return send(this.#socket, "GET", objectPath(url));
  }

  /** Write an object below the scratch or export prefix, or an output. */
  async putObject(url, content) {
    await this.#put(url, Buffer.from(content), {});
  }

  async #put(url, content, conditions) {
    const headers = { "Content-Type": "application/octet-stream", ...conditions };
    await send(this.#socket, "PUT", objectPath(url), content, headers);
  }

  /** The prefix for temporary objects. They are deleted after some days. */
  get scratchUrl() {
    return prefixUrl(this.event.scratch_ref);
  }

  /** The prefix for results that people fetch. */
  get exportUrl() {
    return prefixUrl(this.event.export_ref);
  }

  /** Extend the lease, and return the answer of the platform. Fails when the lease is lost. */
  async heartbeat() {
    return this.#call("/v1/task/heartbeat", {});
  }

  /** Return whether the task is to be canceled. Fails when the lease is lost. */
  async isCanceled() {
    return Boolean((await this.heartbeat()).cancel_requested);
  }

  async #call(path, body) {
    const content = Buffer.from(json.stringify(body));
    const headers = { "Content-Type": "application/json" };
    return json.parse(await send(this.#socket, "POST", path, content, headers));
  }
}

function only(names, kind) {
  if (names.length !== 1) {
    throw new Error(`the task has ${names.length} ${kind}s; name one of ${names.join(", ")}`);
  }
  return names[0];
}

/** Encode rows as lines of JSON, grouped into batches that the platform accepts. */
async function* pack(rows) {
  let lines = [];
  let size = 0;
  for await (const row of rows) {
    const line = Buffer.from(json.stringify(row) + "\n");
    if (lines.length && (size + line.length > MAX_BATCH_BYTES || lines.length >= MAX_BATCH_ROWS)) {
      yield lines;
      [lines, size] = [[], 0];
    }
    lines.push(line);
    size += line.length;
  }
  if (lines.length) yield lines;
}

function objectPath(url) {
  const key = url.replace(/^s3:\/\//, "");
  return "/v1/task/objects/" + key.split("/").map(encodeURIComponent).join("/");
}

function prefixUrl(storage) {
  return `s3://${storage.bucket}/${storage.prefix}`;
}

module.exports = { Task, CallFailed };
