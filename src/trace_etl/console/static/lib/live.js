// One event stream for all tabs: the tab that holds the lock reads it and passes events on.
import { signal, useEffect, useRef, useState } from "../vendor/preact.js";
import { session } from "./api.js";
import { toast } from "./ui.js";

/** "live", "connecting" or "offline". */
export const connection = signal("connecting");
const KINDS = ["task", "dataset", "deploy", "rollout", "pause"];
const channel = new BroadcastChannel("trace-changes");
/** @type {Set<(change: any) => void>} */
const listeners = new Set();

/** @param {any} message */
function deliver(message) {
  if (message.kind === "state") connection.value = message.state;
  if (message.state === "live") wasLive = true;
  if (message.kind !== "state") for (const listener of listeners) listener(message);
}

/** @param {any} message */
function share(message) {
  deliver(message);
  channel.postMessage(message);
}

channel.onmessage = ({ data }) => {
  if (data.kind === "ask") {
    if (source) channel.postMessage({ kind: "state", state: connection.value });
  } else deliver(data);
};

/** @type {EventSource | null} */
let source = null;
/** Whether this tab, or the tab that read the stream before, has seen changes. */
let wasLive = false;

/** Read the stream until the session ends. */
function follow() {
  return new Promise((done) => {
    source = new EventSource("/api/v1/changes");
    source.addEventListener("ready", () => {
      if (wasLive) share({ kind: "reset" }); // a new stream begins at the end: what happened meanwhile is unknown
      share({ kind: "state", state: "live" });
    });
    source.addEventListener("reset", () => share({ kind: "reset" }));
    for (const kind of KINDS) {
      source.addEventListener(kind, (event) => share({ kind, ...JSON.parse(event.data) }));
    }
    source.onerror = () => {
      share({ kind: "state", state: "offline" });
      if (source?.readyState === EventSource.CLOSED) {
        source = null;
        setTimeout(done, 3000);
      }
    };
  });
}

/** Begin: become the reader of the stream, or wait for its end in another tab. */
export async function start() {
  channel.postMessage({ kind: "ask" });
  while (session.value) {
    await navigator.locks.request("trace-changes", () => (session.value ? follow() : undefined));
  }
}

/**
 * Load something, and load it again when a change arrives: at most once per second, and only while the tab is
 * visible. The previous value stays until the next one is there, so nothing jumps.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {any[]} deps Load again if one of these changes.
 * @param {{matches?: (change: any) => boolean, every?: number}} [live]
 * @returns {{data: T | undefined, error: Error | undefined, reload: () => void}}
 */
export function useLive(load, deps, live = {}) {
  const [state, setState] = useState(/** @type {any} */ ({}));
  const current = useRef(/** @type {any} */ (null));
  useEffect(() => {
    let timer = 0;
    let last = 0;
    let dirty = false;
    let running = false;
    const abort = new AbortController();
    const run = async () => {
      running = true;
      dirty = false;
      last = performance.now();
      try {
        const data = await load(abort.signal);
        if (!abort.signal.aborted) setState({ data });
      } catch (error) {
        if (!abort.signal.aborted) setState((before) => ({ data: before.data, error }));
      }
      running = false;
      if (dirty) later();
    };
    const later = () => {
      dirty = true;
      if (running || timer || document.hidden) return;
      timer = window.setTimeout(() => {
        timer = 0;
        if (!abort.signal.aborted) run();
      }, Math.max(0, 1000 - (performance.now() - last)));
    };
    current.current = run;
    const listener = (change) => {
      if (change.kind === "reset" || !live.matches || live.matches(change)) later();
    };
    const shown = () => dirty && later();
    const every = live.every ? window.setInterval(() => !document.hidden && later(), live.every) : 0;
    listeners.add(listener);
    document.addEventListener("visibilitychange", shown);
    run();
    return () => {
      abort.abort();
      clearTimeout(timer);
      clearInterval(every);
      listeners.delete(listener);
      document.removeEventListener("visibilitychange", shown);
    };
  }, deps);
  return { ...state, reload: () => current.current?.() };
}

/**
 * The further pages of a list. `load` of the result reads the next one; after a failure it can be called again.
 * @param {string} key What the list shows: another key begins again.
 * @param {string | null | undefined} next Where the first page ends.
 * @param {(after: string) => Promise<{items: any[], next: string | null}>} read
 */
export function useMore(key, next, read) {
  const none = { key, items: /** @type {any[]} */ ([]), next, busy: false };
  const [state, setState] = useState(none);
  const current = state.key === key && (state.items.length || state.busy) ? state : none;
  const load = async () => {
    if (current.busy || !current.next) return;
    setState({ ...current, busy: true });
    const add = (items, after) => setState((before) => (before.key === key ? { key, items: [...before.items, ...items], next: after, busy: false } : before));
    try {
      const page = await read(current.next);
      add(page.items, page.next);
    } catch (error) {
      add([], current.next);
      toast(error.message, "failed");
    }
  };
  return { items: current.items, next: current.next, load };
}
