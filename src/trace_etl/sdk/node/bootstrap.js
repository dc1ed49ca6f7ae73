"use strict";
// Run a Node function inside the sandbox: import the handler, call it once, end.
// Arguments: the handler as `module.function`, the directory of the bundle, the file with the event.

const fs = require("node:fs");
const { Task } = require("./index.js");
const json = require("./exact_json.js");
const { loadHandler } = require("./handler.js");

async function main(handler, bundle, eventFile) {
  const event = json.parse(fs.readFileSync(eventFile, "utf8"));
  const call = await loadHandler(handler, bundle);
  await call(event, { task: new Task(event) });
}

main(...process.argv.slice(2)).then(
  () => process.exit(0), // whatever the function left open
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
