// Calls of the user API through the console, and the session of this page.
import { signal } from "../vendor/preact.js";

/** @type {import("../vendor/preact.js").Signal<{name: string, role: string, org_id: string, csrf: string} | null | undefined>} */
export const session = signal(undefined);
/** Whether a session of this page has ended. */
export const hasEnded = signal(false);
const RANKS = ["reader", "writer", "admin"];

/** An error of the API, with its problem document. */
class ApiError extends Error {
  /** @param {number} status @param {any} problem */
  constructor(status, problem) {
    super(problem?.detail || `HTTP ${status}`);
    this.status = status;
    this.problem = problem || {};
  }
}

/** Whether the user's role includes another role. The API decides; this only hides buttons. @param {string} role */
export const can = (role) => RANKS.indexOf(session.value?.role ?? "") >= RANKS.indexOf(role);

/** Parameters of an address, without the empty ones. @param {Record<string, any>} [params] */
export function query(params = {}) {
  const pairs = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return String(new URLSearchParams(pairs.map(([k, v]) => [k, String(v)])));
}

/** Join path segments, each quoted. @param {...string} parts */
export const path = (...parts) => parts.map((part) => encodeURIComponent(part)).join("/");

/** @param {string} url @param {RequestInit} [options] @returns {Promise<Response>} */
async function send(url, options = {}) {
  let reply;
  try {
    reply = await fetch(url, options);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "The console does not answer. Is the stack running? See `trace status`." });
  }
  if (reply.ok) return reply;
  const problem = await reply.json().catch(() => null);
  if (reply.status === 401 && url !== "/session") {
    hasEnded.value = Boolean(session.value) || hasEnded.value;
    session.value = null;
  }
  throw new ApiError(reply.status, problem);
}

/** @param {string} to @param {Record<string, any>} [params] @param {AbortSignal} [signal] @returns {Promise<any>} */
export const get = async (to, params, signal) => (await send(`/api/v1/${to}?${query(params)}`, { signal })).json();

/** Send a call that changes something. @param {string} url @param {RequestInit} options @returns {Promise<Response>} */
async function sendWithToken(url, options) {
  const user = session.value?.name;
  const call = () => send(url, { ...options, headers: { ...options.headers, "x-trace-csrf": session.value?.csrf ?? "" } });
  try {
    return await call();
  } catch (error) {
    if (error.problem?.code !== "csrf_mismatch") throw error;
    await loadSession(); // another tab opened a new session
    if (session.value?.name === user) return call();
    location.reload(); // the session is of another user: the call must not run in its name
    throw error;
  }
}

/** @param {string} to @param {any} [body] @param {AbortSignal} [signal] @returns {Promise<Response>} */
export const postRaw = (to, body, signal) =>
  sendWithToken(`/api/v1/${to}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });

/** @param {string} to @param {any} [body] @param {AbortSignal} [signal] @returns {Promise<any>} */
export const post = async (to, body, signal) => (await postRaw(to, body, signal)).json();

/** Read every page of a list, up to a number of items. @param {string} to @param {Record<string, any>} [params] @param {number} [limit] */
export async function getAll(to, params = {}, limit = 10_000) {
  const items = [];
  let after;
  do {
    const page = await get(to, { limit: 1000, ...params, after });
    items.push(...page.items);
    after = page.next;
  } while (after && items.length < limit);
  return items;
}

/** Take the code of a one-time link out of the address, so that it does not stay in the history. */
export function takeCode() {
  const code = location.pathname === "/login" ? location.hash.slice(1) : "";
  if (code) history.replaceState(null, "", "/login");
  return code;
}

/** Open the session of a one-time link; without one, use the session of the cookie. */
export async function enter() {
  const code = takeCode();
  if (!code) return loadSession();
  try {
    await logIn({ code });
  } catch (error) {
    await loadSession();
    throw error;
  }
}

/** Read the session of the cookie. */
export async function loadSession() {
  try {
    const reply = await send("/session");
    session.value = reply.status === 204 ? null : await reply.json();
  } catch (error) {
    session.value = null;
    if (!(error instanceof ApiError) || error.status !== 401) throw error; // 401: the token has expired
  }
}

/** @param {{code?: string, token?: string}} body */
export async function logIn(body) {
  const reply = await send("/session", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  session.value = await reply.json();
}

export async function logOut() {
  await sendWithToken("/session", { method: "DELETE" });
  location.assign("/login"); // a new page: nothing of the old session stays in memory
}
