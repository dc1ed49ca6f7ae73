// Addresses of pages. Links are ordinary links; this only keeps the page from loading again.
import { signal } from "../vendor/preact.js";

export const address = signal(read());

function read() {
  return { path: location.pathname, params: new URLSearchParams(location.search), hash: location.hash.slice(1) };
}

/** @param {string} to @param {boolean} [replace] */
export function go(to, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  address.value = read();
  if (!replace) window.scrollTo(0, 0);
}

/** Change parameters of the address, such as filters. An empty value removes one. @param {Record<string, any>} changes */
export function setParams(changes) {
  const params = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") params.delete(name);
    else params.set(name, String(value));
  }
  const text = params.toString();
  go(location.pathname + (text ? `?${text}` : ""), true);
}

addEventListener("popstate", () => (address.value = read()));
addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const link = event.composedPath().find((node) => node instanceof HTMLAnchorElement);
  if (!(link instanceof HTMLAnchorElement) || link.target || link.download || link.origin !== location.origin) return;
  if (link.getAttribute("href")?.startsWith("#")) return;
  event.preventDefault();
  go(link.pathname + link.search + link.hash);
});
