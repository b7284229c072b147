// Where we are: the address behind `#`, so that every view has a link, in a file as on a server.
import { signal } from "@preact/signals";

export interface Place {
  path: string[];
  query: Record<string, string>;
}

function read(): Place {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = (path ?? "").split("/").filter(Boolean);
  const decode = (part: string) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return { path: parts.map(decode), query: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

export const place = signal<Place>(read());
addEventListener("hashchange", () => {
  place.value = read();
  scrollTo(0, 0);
});

export const href = (thread: string, ...rest: (string | number)[]) =>
  `#/thread/${[thread, ...rest].map((part) => encodeURIComponent(String(part))).join("/")}`;

export function go(to: string) {
  location.hash = to;
}

/** Change what stands behind `?`, without a new step in the history. */
export function refine(query: Record<string, string>) {
  const now = location.hash.split("?")[0] || "#/";
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "")).toString();
  history.replaceState(null, "", text ? `${now}?${text}` : now);
  place.value = read();
}

// Dark or light

const kept = (() => {
  try {
    return localStorage.getItem("quire-theme");
  } catch {
    return null;
  }
})();
export const theme = signal(kept ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
export function setTheme(to: string) {
  theme.value = to;
  document.documentElement.dataset.theme = to;
}
setTheme(theme.value);
export function turnTheme() {
  setTheme(theme.value === "dark" ? "light" : "dark");
  try {
    localStorage.setItem("quire-theme", theme.value);
  } catch {
    // A page from a file may have no storage; the choice lasts as long as the page.
  }
}
