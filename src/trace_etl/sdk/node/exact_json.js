"use strict";
// JSON without loss: an integer that a JavaScript number cannot hold is a BigInt.

const INTEGER = /^-?\d+$/;

function parse(text) {
  return JSON.parse(text, (key, value, context) => {
    const isInexact = typeof value === "number" && !Number.isSafeInteger(value);
    return isInexact && INTEGER.test(context.source) ? BigInt(context.source) : value;
  });
}

/** Encode BigInt as a number, and bytes as text such as 0x00ff. Fails for NaN and infinite numbers. */
function stringify(value) {
  return JSON.stringify(value, function (key, encoded) {
    const held = this[key]; // before `toJSON` of a Buffer
    if (typeof held === "bigint") return JSON.rawJSON(held.toString());
    if (held instanceof Uint8Array) return "0x" + Buffer.from(held).toString("hex");
    if (typeof held === "number" && !Number.isFinite(held)) {
      throw new TypeError(`${key} is ${held}, which JSON cannot hold; use null`);
    }
    return encoded;
  });
}

module.exports = { parse, stringify };
