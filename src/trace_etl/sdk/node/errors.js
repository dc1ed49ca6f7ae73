"use strict";

/** The platform refused a call. `code` is stable; the message says why. */
class CallFailed extends Error {
  constructor(code, detail, options) {
    super(`${code}: ${detail}`, options);
    this.name = "CallFailed";
    this.code = code;
  }
}

module.exports = { CallFailed };
