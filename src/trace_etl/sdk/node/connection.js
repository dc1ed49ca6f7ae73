"use strict";
// Calls over the one socket of a sandbox. The broker adds the token and the lease of this attempt.

const http = require("node:http");
const { CallFailed } = require("./errors.js");

/** Send a request and return the content of the answer. */
function send(socketPath, method, path, content, extraHeaders) {
  const headers = content ? { "Content-Length": content.length, ...extraHeaders } : {};
  return new Promise((resolve, reject) => {
    const fail = (error) => reject(new CallFailed("unreachable", error.message, { cause: error }));
    const request = http.request({ socketPath, method, path, headers, agent: false }, (reply) => {
      const parts = [];
      reply.on("data", (part) => parts.push(part));
      reply.on("error", fail);
      reply.on("end", () => {
        const answer = Buffer.concat(parts);
        if (reply.statusCode < 300) resolve(answer);
        else reject(explain(reply.statusCode, answer));
      });
    });
    request.on("error", fail);
    request.end(content);
  });
}

function explain(status, answer) {
  try {
    const { code, detail } = JSON.parse(answer);
    if (code && detail) return new CallFailed(code, detail);
  } catch {
    // Not a problem document: show the answer itself.
  }
  return new CallFailed(`http_${status}`, answer.subarray(0, 200).toString());
}

module.exports = { send };
