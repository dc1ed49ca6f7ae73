/** A value of a row. An integer that a number cannot hold is a bigint. */
export type Value = string | number | bigint | boolean | null | Value[] | { [key: string]: Value };
export type Row = Record<string, Value>;
export type PublishedRow = Record<string, unknown>;

/** A change of an output: a block range (both inclusive), a cursor, or a partition key. */
export type EmittedEvent = { start?: number; end?: number; cursor?: number; partition_key?: string; dataset_uuid?: string; dataset?: string };

/** The platform refused a call. `code` is stable; the message says why. */
export class CallFailed extends Error {
  readonly code: string;
}

/** One attempt of a task. All calls go through one socket, which serves only this attempt. */
export class Task {
  constructor(event: any, socketPath?: string);
  /** The whole payload of the task. */
  readonly event: any;
  /** The `config` of the job. */
  readonly config: any;
  /** The part of the inputs to process: `start` and `end`, `partition_key` or `cursor`. */
  readonly scope: { start?: number; end?: number; partition_key?: string; cursor?: number; after?: number };
  /** What started the task: the time of a tick, the payload of a trigger or webhook. */
  readonly parameters: { scheduled_time?: string; payload?: any };
  /** The names of the inputs, which are tables in `query`. */
  readonly inputs: string[];
  /** The prefix for temporary objects. They are deleted after some days. */
  readonly scratchUrl: string;
  /** The prefix for results that people fetch. */
  readonly exportUrl: string;
  /** Run one SELECT over the inputs, as they were when the task started. */
  query(sql: string, params?: unknown[] | Record<string, unknown> | null): Promise<Row[]>;
  /** Return all rows of an input; of the only one by default. */
  rows(name?: string): Promise<Row[]>;
  /** Send rows to a buffered output; to the only one by default. Returns their number. */
  publish(rows: Iterable<PublishedRow> | AsyncIterable<PublishedRow>, output?: string): Promise<number>;
  /** Emit events of an output; of the only one by default. */
  emit(events: Iterable<EmittedEvent>, output?: string): Promise<void>;
  /** Read an object (`s3://bucket/key`) of an input or of the scratch prefix. */
  getObject(url: string): Promise<Buffer>;
  /** Write an object below the scratch or export prefix, or an output. */
  putObject(url: string, content: string | Uint8Array): Promise<void>;
  /** Extend the lease, and return the answer of the platform. Fails when the lease is lost. */
  heartbeat(): Promise<{ cancel_requested: boolean }>;
  /** Return whether the task is to be canceled. Fails when the lease is lost. */
  isCanceled(): Promise<boolean>;
}

/** The second argument of a handler. */
export interface FunctionContext {
  readonly task: Task;
}
