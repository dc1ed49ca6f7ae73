"use strict";
// Run a Node function that is invoked many times: a small client of the Lambda Runtime API.
// Argument: the directory of the bundle. The handler is in `_HANDLER`, as on AWS.

const http = require("node:http");
const { Task } = require("./index.js");
const json = require("./exact_json.js");
const { loadHandler } = require("./handler.js");

const [host, port] = process.env.AWS_LAMBDA_RUNTIME_API.split(":");
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function call(method, path, body) {
  const content = body === undefined ? undefined : Buffer.from(json.stringify(body) ?? "null");
  const headers = content ? { "Content-Length": content.length } : {};
  return new Promise((resolve, reject) => {
    const options = { host, port, agent, method, headers, path: `/2018-06-01/runtime/${path}` };
    const request = http.request(options, (reply) => {
      const parts = [];
      reply.on("data", (part) => parts.push(part));
      reply.on("error", reject);
      reply.on("end", () => resolve({ status: reply.statusCode, headers: reply.headers, parts }));
    });
    request.on("error", reject);
    request.end(content);
  });
}

function makeContext(event, headers) {
  const deadline = Number(headers["lambda-runtime-deadline-ms"]);
  let task;
  return {
    awsRequestId: headers["lambda-runtime-aws-request-id"],
    invokedFunctionArn: headers["lambda-runtime-invoked-function-arn"],
    functionName: process.env.AWS_LAMBDA_FUNCTION_NAME,
    functionVersion: process.env.AWS_LAMBDA_FUNCTION_VERSION,
    memoryLimitInMB: process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    getRemainingTimeInMillis: () => Math.max(0, deadline - Date.now()),
    get task() {
      return (task ??= new Task(event));
    },
  };
}

function describe(error) {
  const isError = error instanceof Error;
  return {
    errorMessage: isError ? error.message : String(error),
    errorType: isError ? error.name : "Error",
    stackTrace: isError ? String(error.stack).split("\n") : [],
  };
}

async function serve(handle) {
  const { status, headers, parts } = await call("GET", "invocation/next");
  if (status !== 200) process.exit(0); // the environment ends
  const path = `invocation/${headers["lambda-runtime-aws-request-id"]}`;
  let result;
  try {
    const event = json.parse(Buffer.concat(parts));
    result = await handle(event, makeContext(event, headers));
  } catch (error) {
    console.error(error);
    await call("POST", `${path}/error`, describe(error));
    return;
  }
  await call("POST", `${path}/response`, result ?? null);
}

async function main(bundle) {
  let handle;
  try {
    handle = await loadHandler(process.env._HANDLER, bundle);
  } catch (error) {
    console.error(error);
    await call("POST", "init/error", describe(error));
    process.exit(1);
  }
  for (;;) await serve(handle);
}

main(...process.argv.slice(2));
