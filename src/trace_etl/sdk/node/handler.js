"use strict";
// Find the handler of a bundle: `module.function`, as on AWS Lambda.

const fs = require("node:fs");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const ENDINGS = [".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"];

/** Import the module and return its function, which returns a promise. */
async function loadHandler(handler, bundle) {
  const point = handler.lastIndexOf(".");
  const [stem, name] = [handler.slice(0, point), handler.slice(point + 1)];
  const file = ENDINGS.map((ending) => path.join(bundle, stem + ending)).find((f) => fs.existsSync(f));
  if (point < 1 || file === undefined) {
    throw new Error(`handler ${handler}: the bundle has no file ${stem} with one of ${ENDINGS.join(" ")}`);
  }
  const loaded = await import(pathToFileURL(file));
  const found = loaded[name] ?? loaded.default?.[name];
  if (typeof found !== "function") {
    throw new Error(`handler ${handler}: ${path.basename(file)} exports no function ${name}`);
  }
  return found.length < 3 ? async (event, context) => found(event, context) : promisify(found);
}

/** Call a handler of the old style, which passes its result to a callback. */
function promisify(found) {
  return (event, context) =>
    new Promise((resolve, reject) => {
      found(event, context, (error, result) => (error ? reject(error) : resolve(result)));
    });
}

module.exports = { loadHandler };
