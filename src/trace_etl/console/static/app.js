// The page: login, navigation, search, keyboard, and the page of the current address.
import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";
import { enter, get, getAll, hasEnded, loadSession, logIn, logOut, session, takeCode } from "./lib/api.js";
import { connection, start, useLive } from "./lib/live.js";
import { address, go } from "./lib/router.js";
import { Command, Empty, Failure, Overlays, Page, toast } from "./lib/ui.js";
import { compact, short } from "./lib/format.js";
import { OverviewPage } from "./pages/overview.js";
import { TaskPage, TasksPage } from "./pages/tasks.js";
import { DagsPage } from "./pages/dags.js";
import { DatasetsPage } from "./pages/datasets.js";

const ICONS = {
  "/": "M2.5 9.5 8 3l5.5 6.5M4 8v5h8V8",
  "/dags": "M4 4.5a1.5 1.5 0 1 0 0-.01M12 4.5a1.5 1.5 0 1 0 0-.01M8 12.5a1.5 1.5 0 1 0 0-.01M4 6v2.5h8V6M8 8.5V11",
  "/datasets": "M3 4.2C3 3 5.2 2.2 8 2.2s5 .8 5 2-2.2 2-5 2-5-.8-5-2zM3 4.2v7.6c0 1.2 2.2 2 5 2s5-.8 5-2V4.2M3 8c0 1.2 2.2 2 5 2s5-.8 5-2",
  "/tasks": "M2.5 4.5l1.2 1.2L6 3.4M8 4.5h5.5M2.5 11l1.2 1.2L6 9.9M8 11h5.5",
  "/query": "M2.5 4.5 6 8l-3.5 3.5M8 12h5.5",
  "/operations": "M8 5.5A2.5 2.5 0 1 0 8 10.5 2.5 2.5 0 0 0 8 5.5zM8 1.8v2M8 12.2v2M1.8 8h2M12.2 8h2M3.6 3.6l1.4 1.4M11 11l1.4 1.4M12.4 3.6 11 5M5 11l-1.4 1.4",
};
const NAV = [["/", "Overview", "o"], ["/dags", "DAGs", "d"], ["/datasets", "Datasets", "s"], ["/tasks", "Tasks", "t"],
  ["/query", "Query", "q"], ["/operations", "Operations", "p"]];

/** Load a page when it is needed. @param {() => Promise<any>} load @param {string} name */
function lazy(load, name) {
  let found;
  return (props) => {
    const [loaded, setLoaded] = useState(() => found); // a component is a function, which useState would call
    useEffect(() => {
      if (!found) load().then((module) => setLoaded(() => (found = module[name])));
    }, []);
    return loaded ? html`<${loaded} ...${props} />` : html`<main />`;
  };
}
const DagPage = lazy(() => import("./pages/dag.js"), "DagPage");
const DatasetPage = lazy(() => import("./pages/dataset.js"), "DatasetPage");
const QueryPage = lazy(() => import("./pages/query.js"), "QueryPage");
const OperationsPage = lazy(() => import("./pages/operations.js"), "OperationsPage");

function CurrentPage() {
  const [, section, ...rest] = address.value.path.split("/");
  const name = rest.filter(Boolean).map(decodeURIComponent).join("/");
  switch (section) {
    case "": return html`<${OverviewPage} />`;
    case "dags": return name ? html`<${DagPage} key=${name} name=${name} />` : html`<${DagsPage} />`;
    case "datasets": return name ? html`<${DatasetPage} key=${name} name=${name} />` : html`<${DatasetsPage} />`;
    case "tasks": return name ? html`<${TaskPage} key=${name} id=${name} />` : html`<${TasksPage} />`;
    case "query": return html`<${QueryPage} />`;
    case "operations": return html`<${OperationsPage} section=${name || "backfills"} />`;
    case "login": return html`<main />`; // logged in already: `App` goes on to the overview
    default: return html`<${Page} title="No such page"><${Empty} title="There is no page at this address."><a href="/">Go to the overview</a></${Empty}></${Page}>`;
  }
}

function Side({ onSearch }) {
  const state = useLive((signal) => get("overview", {}, signal), [], { every: 15_000, matches: (c) => c.kind !== "dataset" });
  const current = "/" + (address.value.path.split("/")[1] ?? "");
  const failed = state.data?.failed ?? 0;
  const user = session.value;
  return html`<div class="side">
    <a class="brand" href="/"><img src=${new URL("./icon.svg", import.meta.url).href} alt="" /><span class="label">Trace</span></a>
    <button class="search-button" onClick=${onSearch}><span class="label">Search</span><kbd>/</kbd></button>
    <nav aria-label="Main">
      ${NAV.map(([href, label, key]) => html`<a href=${href} aria-current=${current === href ? "page" : undefined} title=${`g ${key}`}>
        <svg viewBox="0 0 16 16" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round"><path d=${ICONS[href]} /></svg>
        <span class="label">${label}</span>${href === "/tasks" && failed > 0 && html`<span class="badge bad" title=${`${failed} failed`}>${compact(failed)}</span>`}</a>`)}
    </nav>
    <div class="side-foot">
      <div class="row"><span title="One stream of changes, shared between the tabs"><span class=${`dot ${connection.value}`} /><span class="label">${connection.value}</span></span>
        <button class="quiet" onClick=${toggleTheme} title="Switch between light and dark">Theme</button></div>
      <div class="row"><span class="label" title=${`Role: ${user.role}`}>${user.name} · ${user.role}</span><button class="quiet" onClick=${() => logOut()}>Log out</button></div>
    </div>
  </div>`;
}

function toggleTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("trace-theme", root.dataset.theme);
  dispatchEvent(new Event("themechange"));
}

// --- search ---------------------------------------------------------------------------------------

function Search({ onClose }) {
  const box = useRef(/** @type {any} */ (null));
  const [text, setText] = useState("");
  const [places, setPlaces] = useState(NAV.map(([href, label]) => ({ href, label, kind: "page" })));
  const [tasks, setTasks] = useState([]);
  const [active, setActive] = useState(0);
  useEffect(() => {
    box.current.showModal();
    Promise.all([getAll("jobs"), getAll("datasets", { published: true })]).then(([jobs, datasets]) => {
      const dags = [...new Set(jobs.map((job) => job.dag))];
      setPlaces((before) => [
        ...before,
        ...dags.map((dag) => ({ href: `/dags/${encodeURIComponent(dag)}`, label: dag, kind: "DAG" })),
        ...datasets.map((d) => ({ href: `/datasets/${encodeURIComponent(d.name)}`, label: d.name, kind: "dataset" })),
        ...jobs.map((j) => ({ href: `/dags/${encodeURIComponent(j.dag)}?job=${encodeURIComponent(j.job)}`, label: `${j.dag} / ${j.job}`, kind: "job" })),
      ]);
    }).catch((error) => toast(error.message, "failed"));
  }, []);
  useEffect(() => {
    setActive(0);
    const prefix = text.trim().toLowerCase();
    if (!/^[0-9a-f-]{4,36}$/.test(prefix)) return setTasks([]);
    get(`ids/task/${prefix}`).then((found) => setTasks(found.ids ?? []), () => setTasks([]));
  }, [text]);
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [
    ...tasks.map((id) => ({ href: `/tasks/${id}`, label: short(id), kind: "task" })),
    ...places.filter((place) => words.every((word) => place.label.toLowerCase().includes(word))),
  ].slice(0, 40);
  const onKey = (event) => {
    if (event.key === "ArrowDown") setActive(Math.min(active + 1, found.length - 1));
    else if (event.key === "ArrowUp") setActive(Math.max(active - 1, 0));
    else if (event.key === "Enter" && found[active]) {
      onClose();
      go(found[active].href);
    } else return;
    event.preventDefault();
  };
  return html`<dialog class="search" ref=${box} onClose=${onClose} aria-label="Search" onClick=${(event) => event.target === box.current && onClose()}>
    <input autofocus aria-label="Search pages, DAGs, jobs, datasets and task ids" placeholder="Search DAGs, jobs, datasets, task ids" value=${text}
      onInput=${(event) => setText(event.target.value)} onKeyDown=${onKey} />
    <ul class="search-list">${found.map((place, i) => html`<li><a class=${i === active ? "active" : ""} href=${place.href} onClick=${onClose}>
      <span>${place.label}</span><span class="muted">${place.kind}</span></a></li>`)}
      ${!found.length && html`<li class="empty">Nothing has this name.</li>`}</ul>
  </dialog>`;
}

/** `/` searches, `g` and a letter goes to a page, `?` lists the keys. @param {() => void} search */
function useKeys(search) {
  useEffect(() => {
    let armed = -Infinity; // when `g` was pressed
    const onKey = (event) => {
      const target = event.composedPath()[0];
      const isTyping = target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
      if (isTyping || event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
      const place = performance.now() - armed < 1200 && NAV.find(([, , key]) => key === event.key);
      armed = event.key === "g" ? performance.now() : -Infinity;
      if (event.key === "/") search();
      else if (event.key === "?") toast("Keys: / search · g o overview · g d DAGs · g s datasets · g t tasks · g q query · g p operations");
      else if (place) go(place[0]);
      else if (event.key !== "g") return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

// --- login ----------------------------------------------------------------------------------------

function Login({ failed }) {
  const [error, setError] = useState(failed);
  const [busy, setBusy] = useState(false);
  const field = useRef(/** @type {any} */ (null));
  const submit = async (body) => {
    setBusy(true);
    try {
      await logIn(body);
    } catch (refused) {
      setError(refused);
      setBusy(false);
    }
  };
  useEffect(() => {
    document.title = "Log in · Trace";
    const redeem = () => {
      const code = takeCode();
      if (code) submit({ code });
    };
    const look = () => loadSession().catch(setError); // another tab may have logged in
    addEventListener("hashchange", redeem); // a link that is opened in the tab of this page
    addEventListener("focus", look);
    return () => {
      removeEventListener("hashchange", redeem);
      removeEventListener("focus", look);
    };
  }, []);
  return html`<main class="login"><div class="panel">
    <span class="brand"><img src=${new URL("./icon.svg", import.meta.url).href} alt="" /><h1>Trace</h1></span>
    ${hasEnded.value && !error && html`<p role="alert"><strong>Your session has ended.</strong> After the login, you are on the same page again.</p>`}
    <${Failure} error=${error} />
    <p>Open the link that this command prints. It works once.</p>
    <div class="command"><code>trace console</code></div>
    <form onSubmit=${(event) => { event.preventDefault(); submit({ token: field.current.value }); }}>
      <label>Or paste a token <textarea ref=${field} required autocomplete="off" spellcheck="false" placeholder="From: trace users token NAME"></textarea></label>
      <button class="primary" disabled=${busy}>${busy ? "Logging in …" : "Log in"}</button>
    </form>
  </div></main>`;
}

/** The console runs, and the services behind it do not answer. */
function Unreachable({ error, onReturn }) {
  useEffect(() => {
    document.title = "No connection · Trace";
    const timer = setInterval(() => loadSession().then(onReturn, () => {}), 3000);
    return () => clearInterval(timer);
  }, []);
  return html`<main class="login"><div class="panel">
    <span class="brand"><img src=${new URL("./icon.svg", import.meta.url).href} alt="" /><h1>The stack does not answer</h1></span>
    <${Failure} error=${error} />
    <p>This page tries again every few seconds. See which process is down:</p>
    <${Command} text="trace status" />
  </div></main>`;
}

function App() {
  const [failed, setFailed] = useState(/** @type {any} */ (null));
  const [searching, setSearching] = useState(false);
  useKeys(() => session.value && setSearching(true));
  useEffect(() => { enter().catch(setFailed); }, []);
  useEffect(() => { // a link may be refused although a session is open, which harms nothing
    if (session.value && failed) toast(failed.message, "failed");
  }, [failed]);
  useEffect(() => {
    if (session.value && location.pathname === "/login") go("/", true);
    if (session.value) start();
  }, [session.value?.name]);
  if (session.value === undefined) return null;
  if (!session.value && failed && (failed.status === 0 || failed.status >= 500)) return html`<${Unreachable} error=${failed} onReturn=${() => setFailed(null)} />`;
  if (!session.value) return html`<${Login} key=${failed?.message} failed=${failed} />`;
  return html`<a class="skip" href="#main">Skip to the content</a>
    ${connection.value === "offline" && html`<div class="offline" role="alert">No connection to the stack: what you see may be old. This page tries again.</div>`}
    <div class="shell"><${Side} onSearch=${() => setSearching(true)} /><${CurrentPage} /></div>
    ${searching && html`<${Search} onClose=${() => setSearching(false)} />`}<${Overlays} />`;
}

render(html`<${App} />`, document.getElementById("app"));
