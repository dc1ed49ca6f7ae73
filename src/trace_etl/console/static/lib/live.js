// One event stream for all tabs: the tab that holds the lock reads it and passes events on.
import { signal, useEffect, useRef, useState } from "../vendor/preact.js";
import { session } from "./api.js";

/** "live", "connecting" or "offline". */
export const connection = signal("connecting");
const KINDS = ["task", "dataset", "deploy", "rollout", "pause"];
const channel = new BroadcastChannel("trace-changes");
/** @type {Set<(change: any) => void>} */
const listeners = new Set();

/** @param {any} message */
function deliver(message) {
  if (message.kind === "state") connection.value = message.state;
  else for (const listener of listeners) listener(message);
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

/** Read the stream until the session ends. */
function follow() {
  return new Promise((done) => {
    source = new EventSource("/api/v1/changes");
    source.addEventListener("ready", () => share({ kind: "state", state: "live" }));
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
