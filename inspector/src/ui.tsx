// The few components that every view is made of.
import { type ComponentChildren, Fragment } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import {
  Virtualizer,
  elementScroll,
  measureElement,
  observeElementOffset,
  observeElementRect,
} from "@tanstack/virtual-core";
import { Problem, keepKey } from "./data";

// Numbers and words

const number = new Intl.NumberFormat("en");
export const count = (value: number | undefined | null) => number.format(Math.round(value ?? 0));
export const short = (value: number | undefined | null) => {
  const n = value ?? 0;
  if (n >= 1e6) return `${(n / 1e6).toFixed(n >= 1e7 ? 0 : 1)} M`;
  return n >= 10_000 ? `${(n / 1000).toFixed(n >= 1e5 ? 0 : 1)} k` : count(n);
};
export const percent = (part: number, whole: number) =>
  whole > 0 ? `${((100 * part) / whole).toFixed(part / whole > 0.995 && part < whole ? 1 : 0)} %` : "–";
export const dollars = (value: number | null | undefined): string => {
  if (value === null || value === undefined) return "";
  if (value === 0) return "$0";
  if (value < 0) return `−${dollars(-value)}`;
  return `$${value >= 100 ? count(value) : value >= 1 ? value.toFixed(2) : value.toFixed(value >= 0.01 ? 3 : 4)}`;
};
export const plural = (n: number, word: string) => `${count(n)} ${n === 1 ? word : `${word}s`.replace(/ys$/, "ies")}`;
export const ago = (ms: number) => {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${(s / 3600).toFixed(s < 36_000 ? 1 : 0)} h` : `${Math.round(s / 86_400)} days`;
};
export const moment = (at: number | null | undefined) =>
  at ? new Date(at).toISOString().slice(0, 19).replace("T", " ") : "";

// Marks that turn the direction of writing, and what is not seen, are shown by their number.
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
export const visible = (text: string) =>
  text.replace(UNSEEN, (each) => `⟨U+${each.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`);

export const shell = (word: string) => (/^[\w./:=@%+,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);

// Small pieces

export function Chip({ kind = "", children }: { kind?: string; children: ComponentChildren }) {
  return <span class={`chip ${kind}`}>{children}</span>;
}

export function Figures({ of }: { of: [string, ComponentChildren, ComponentChildren?][] }) {
  return (
    <dl class="figures">
      {of.map(([name, value, more]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>
            {value} {more ? <small>{more}</small> : null}
          </dd>
        </div>
      ))}
    </dl>
  );
}

export function Card({ title, more, children, kind = "" }: { title?: ComponentChildren; more?: ComponentChildren; children: ComponentChildren; kind?: string }) {
  return (
    <section class={`card ${kind}`}>
      {title || more ? (
        <header>
          {title ? <h2>{title}</h2> : null}
          {more}
        </header>
      ) : null}
      {children}
    </section>
  );
}

export const said = signal("");
export function tell(text: string) {
  said.value = text;
}

export async function copy(text: string, what = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Where a page from a file may not use the clipboard.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  tell(what);
}

export const command = signal("");
/** The command that shows the same as this view. */
export function Command({ words }: { words: string[] }) {
  const text = ["quire", ...words].map(shell).join(" ");
  useEffect(() => {
    command.value = text;
  }, [text]);
  return (
    <span class="command">
      <code>{visible(text)}</code>
      <button class="plain small" onClick={() => copy(text, "Command copied")} title="Copy as command (c)">
        Copy
      </button>
    </span>
  );
}

export function save(name: string, content: Blob | string, type = "text/plain") {
  const blob = typeof content === "string" ? new Blob([content], { type }) : content;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  tell(`Saved ${name}`);
}

const cell = (value: unknown) => {
  const text = value === null || value === undefined ? "" : String(value);
  // A spreadsheet would take these for formulas.
  const safe = /^[=+\-@\t]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};
export function csv(names: string[], rows: unknown[][]) {
  return [names, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

// Loading, errors, nothing there

export function State({ title, children, kind = "" }: { title: string; children?: ComponentChildren; kind?: string }) {
  return (
    <div class={`state ${kind}`} role={kind === "error" ? "alert" : "status"}>
      <strong>{title}</strong>
      {children}
    </div>
  );
}

export function Trouble({ error }: { error: unknown }) {
  const problem = error instanceof Problem ? error : new Problem(String(error));
  return (
    <State title={visible(problem.message).replace(/^./, (first) => first.toUpperCase())} kind="error">
      {problem.status === 401 ? <KeyForm /> : null}
      {problem.hint && problem.status !== 401 ? <span>{problem.hint.split("`").map((part, at) => (at % 2 ? <code key={at}>{visible(part)}</code> : visible(part)))}</span> : null}
    </State>
  );
}

/** Asks for the key that a service demands, and looks again with it. */
function KeyForm() {
  const [key, setKey] = useState("");
  const open = (event: Event) => {
    event.preventDefault();
    keepKey(key.trim());
    location.reload();
  };
  return (
    <form class="row" onSubmit={open}>
      <input type="password" value={key} aria-label="Key" placeholder="qk_…" autocomplete="off" required onInput={(event) => setKey(event.currentTarget.value)} />
      <button class="primary" type="submit">Open</button>
      <span class="small">Kept for this tab alone; <code>quire serve keys add NAME</code> makes one.</span>
    </form>
  );
}

type Loaded<T> = { value?: T; error?: unknown; busy: boolean };

/** A value that is asked for; while another is on its way, the one before stays. */
export function useLoaded<T>(load: () => Promise<T>, keys: unknown[]): Loaded<T> {
  const [state, set] = useState<Loaded<T>>({ busy: true });
  useEffect(() => {
    let current = true;
    set((before) => ({ ...before, busy: true }));
    load().then(
      (value) => current && set({ value, busy: false }),
      (error) => current && set({ error, busy: false }),
    );
    return () => {
      current = false;
    };
  }, keys);
  return state;
}

export function Loading({ what }: { what: string }) {
  return <State title={what} kind="loading" />;
}

export function Await<T>({ of, what, children }: { of: Loaded<T>; what: string; children: (value: T) => ComponentChildren }) {
  if (of.error !== undefined) return <Trouble error={of.error} />;
  if (of.value === undefined) return <Loading what={what} />;
  return <Fragment>{children(of.value)}</Fragment>;
}

// A list of which only the part in sight is drawn

export function Rows({
  count: length,
  size,
  label,
  row,
  start,
  height,
}: {
  count: number;
  size: number;
  label: string;
  row: (index: number) => ComponentChildren;
  start?: number;
  height?: number;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [, draw] = useState(0);
  const list = useRef<Virtualizer<HTMLDivElement, Element>>(null as never);
  const options = {
    count: length,
    getScrollElement: () => box.current,
    estimateSize: () => size,
    overscan: 12,
    observeElementRect,
    observeElementOffset,
    scrollToFn: elementScroll,
    measureElement,
    onChange: () => draw((n) => n + 1),
  };
  if (!list.current) list.current = new Virtualizer(options);
  list.current.setOptions(options);
  useLayoutEffect(() => list.current._didMount(), []);
  useLayoutEffect(() => list.current._willUpdate());
  useEffect(() => {
    if (start !== undefined) list.current.scrollToIndex(start, { align: "center" });
  }, [start, length]);
  const tall = height ?? 560;
  return (
    <div
      ref={box}
      class="rows"
      style={{ height: `${Math.min(tall, Math.max(60, list.current.getTotalSize()))}px` }}
      tabIndex={0}
      role="region"
      aria-label={label}
    >
      <div style={{ height: `${list.current.getTotalSize()}px` }}>
        {list.current.getVirtualItems().map((item) => (
          <div
            key={item.key}
            data-index={item.index}
            ref={(node) => list.current.measureElement(node)}
            style={{ transform: `translateY(${item.start}px)` }}
          >
            {row(item.index)}
          </div>
        ))}
      </div>
    </div>
  );
}

const PART = 20_000;
/** A text of any length as text; of a very long one, a part at a time. */
export function LongText({ text, more }: { text: string; more?: () => Promise<string> }) {
  const [whole, setWhole] = useState<string | null>(null);
  const [parts, setParts] = useState(1);
  const [error, setError] = useState<unknown>();
  const all = whole ?? text;
  const shown = all.slice(0, parts * PART);
  const missing = more !== undefined && whole === null;
  const next = () => {
    if (missing) more().then(setWhole, setError);
    else setParts(parts + 4);
  };
  return (
    <Fragment>
      <pre tabIndex={0}>{visible(shown) || <span class="soft">(empty)</span>}</pre>
      {error ? <Trouble error={error} /> : null}
      <div class="row">
        {missing || shown.length < all.length ? <button onClick={next}>Show more</button> : null}
        <button class="plain" onClick={() => (missing ? more() : Promise.resolve(all)).then((found) => copy(found, "Text copied"), setError)}>
          Copy text
        </button>
        {shown.length < all.length ? (
          <span class="soft small">
            {count(shown.length)} of {count(all.length)} characters
          </span>
        ) : null}
      </div>
    </Fragment>
  );
}
