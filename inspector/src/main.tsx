// The inspector: which view, the frame around it, and the keys.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type AuditReport, type Report, type Source, api, reported, served } from "./data";
import { PictureView } from "./picture";
import { CompareView, RequestView } from "./request";
import { go, href, place, theme, turnTheme } from "./route";
import { command, copy, said, visible } from "./ui";
import { WhereView } from "./where";
import { WhatIfView } from "./whatif";
import { ChatView } from "./chat";
import { LOOK_MS, ThreadsView } from "./threads";
import { AuditView, ProxyView } from "./losses";
import "./style.css";

const data = JSON.parse(document.getElementById("data")!.textContent!) as Report | { audit: AuditReport } | null;
const audit = data && "audit" in data ? data.audit : null;
const report = data && "picture" in data ? data : null;
const source = report ? reported(report) : served;

const KEYS: [string, string][] = [
  ["?", "this list"],
  ["g t", "all threads"],
  ["1 … 6", "the views of a thread"],
  ["[ ]", "the previous, the next request; in Talk: entry"],
  ["← →", "in the picture: from request to request; with shift from rebase to rebase"],
  ["+ − 0", "in the picture: closer, further, all"],
  ["Enter", "open what is chosen"],
  ["/", "search"],
  ["w", "where did the selected text go?"],
  ["c", "copy the command that shows the same"],
  ["d", "dark or light"],
  ["Esc", "close, or leave a field"],
];

const TABS: [string, string][] = [
  ["", "Picture"],
  ["request", "Request"],
  ["compare", "Compare"],
  ["where", "Where did it go?"],
  ["what-if", "What if"],
  ...(report ? [] : [["chat", "Talk"] as [string, string]]),
];
const PAGES: [string, string][] = [
  ["", "Threads"],
  ["proxy", "Proxy"],
  ["audit", "Audit"],
];

function Mark() {
  return (
    <svg width="22" height="22" viewBox="0 0 22 22" aria-hidden="true">
      <rect x="2" y="11" width="3.4" height="8" rx="1" fill="currentColor" />
      <rect x="6.6" y="7" width="3.4" height="12" rx="1" fill="currentColor" />
      <rect x="11.2" y="3" width="3.4" height="16" rx="1" fill="currentColor" />
      <rect x="15.8" y="9" width="3.4" height="10" rx="1" fill="currentColor" opacity="0.55" />
    </svg>
  );
}

function App() {
  const { path } = place.value;
  const help = useRef<HTMLDialogElement>(null);
  const thread = report ? report.picture.thread : path[0] === "thread" ? (path[1] ?? "") : "";
  const rest = path[0] === "thread" ? path.slice(2) : [];
  useEffect(() => listen(thread, rest, () => help.current?.showModal()), [thread, rest.join("/")]);
  useEffect(() => {
    document.title = thread ? `${visible(thread)} · Quire` : "Quire";
  }, [thread]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>To the content</a>
      <header class="top">
        <a class="brand" href="#/"><Mark />Quire</a>
        {data ? null : (
          <nav aria-label="Pages">
            {PAGES.map(([name, label]) => <a key={name} href={`#/${name}`} aria-current={(path[0] ?? "") === name || (!name && thread) ? "page" : undefined}>{label}</a>)}
          </nav>
        )}
        <span class="push" />
        <button class="plain" onClick={turnTheme} aria-label={theme.value === "dark" ? "Light colours" : "Dark colours"} title="Dark or light (d)">{theme.value === "dark" ? "☀" : "☾"}</button>
        <button class="plain" onClick={() => help.current?.showModal()} aria-label="Keys" title="Keys (?)">?</button>
      </header>
      <main id="main" tabIndex={-1}>
        {audit ? <AuditView report={audit} />
          : thread ? <ThreadPage thread={thread} rest={rest} />
          : path[0] === "proxy" ? <ProxyView />
          : path[0] === "audit" ? <AuditView />
          : <ThreadsView key={place.value.query.text ?? ""} source={source} />}
      </main>
      <Follow thread={thread} />
      <footer>
        {report ? <>Made by Quire {report.made.version} with <code>{visible(report.made.command)}</code>. This file holds its data and loads nothing.</> : null}
        <span role="status" aria-live="polite" class="said"> {said.value}</span>
      </footer>
      <dialog ref={help} aria-label="Keys">
        <h2>Keys</h2>
        <dl class="keys">
          {KEYS.map(([key, what]) => (
            <>
              <dt>{key.split(" ").map((each) => <kbd key={each}>{each}</kbd>)}</dt>
              <dd>{what}</dd>
            </>
          ))}
        </dl>
        <form method="dialog"><button>Close</button></form>
      </dialog>
    </>
  );
}

function ThreadPage({ thread, rest }: { thread: string; rest: string[] }) {
  const [view = "", one = "1", other = ""] = rest;
  const n = Math.max(1, Number(one) || 1);
  const grown = useGrowth(source, thread);
  const to: Record<string, string> = { request: href(thread, "request", n), compare: href(thread, "compare", Math.max(1, n - 1), n) };
  return (
    <>
      <div class="head"><h1>{visible(thread)}</h1></div>
      <nav class="tabs" aria-label="Views of the thread">
        {TABS.map(([name, label], at) => (
          <a key={name} href={name === view ? location.hash : (to[name] ?? (name ? href(thread, name) : href(thread)))} aria-current={name === view ? "page" : undefined} title={`${label} (${at + 1})`}>{label}</a>
        ))}
      </nav>
      {view === "request" ? <RequestView source={source} thread={thread} n={n} changed={grown} />
        : view === "compare" ? <CompareView source={source} thread={thread} one={n} other={Math.max(1, Number(other) || n + 1)} />
        : view === "where" ? <WhereView key={place.value.query.text ?? ""} source={source} thread={thread} />
        : view === "chat" && !report ? <ChatView thread={thread} />
        : view === "what-if" ? <WhatIfView source={source} thread={thread} />
        : <PictureView source={source} thread={thread} changed={grown} />}
    </>
  );
}

/** How often a thread has grown while somebody looks at it. */
function useGrowth(from: Source, thread: string): number {
  const [grown, setGrown] = useState(0);
  useEffect(() => {
    if (!from.live) return;
    let before: number | undefined;
    const look = async () => {
      if (document.hidden) return;
      // A service that does not answer is told of by whatever is asked of it next.
      const { seq } = await api<{ seq: number }>(`threads/${encodeURIComponent(thread)}`).catch(() => ({ seq: before }));
      if (before !== undefined && seq !== before) setGrown((n) => n + 1);
      before = seq;
    };
    look();
    const timer = setInterval(look, LOOK_MS);
    return () => clearInterval(timer);
  }, [thread]);
  return grown;
}

const press = (title: RegExp) =>
  [...document.querySelectorAll<HTMLButtonElement>("main button[title]")].find((button) => title.test(button.title))?.click();

/** What of the page is selected, where it may be looked for. */
function selected() {
  const chosen = getSelection();
  const text = chosen?.toString().trim() ?? "";
  return text.length > 1 && text.length <= 400 && chosen?.anchorNode?.parentElement?.closest("main") ? text : "";
}
const whereTo = (thread: string, text: string) => `${href(thread, "where")}?text=${encodeURIComponent(text)}`;

/** Select any text of a thread: a link that follows it. */
function Follow({ thread }: { thread: string }) {
  const [text, setText] = useState("");
  useEffect(() => {
    const look = () => setText(selected());
    document.addEventListener("selectionchange", look);
    return () => document.removeEventListener("selectionchange", look);
  }, []);
  return thread && text ? <a class="button follow" href={whereTo(thread, text)} onPointerDown={(event) => event.preventDefault()}>Where did “{visible(text.length > 30 ? `${text.slice(0, 30)}…` : text)}” go? <kbd>w</kbd></a> : null;
}

function listen(thread: string, rest: string[], help: () => void) {
  let before = "";
  const pressed = (event: KeyboardEvent) => {
    const target = event.target as HTMLElement;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
    if (event.key === "Escape" && typing) return target.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const n = Number(rest[1]) || 1;
    const two = before + event.key;
    before = event.key === "g" ? "g" : "";
    if (two === "gt") return go("#/");
    const tab = TABS[Number(event.key) - 1];
    if (thread && tab) return go(tab[0] === "compare" ? href(thread, "compare", Math.max(1, n - 1), Math.max(2, n)) : tab[0] ? href(thread, tab[0], ...(tab[0] === "request" ? [n] : [])) : href(thread));
    const does: Record<string, () => void> = {
      "?": help,
      d: turnTheme,
      c: () => command.value && copy(command.value, "Command copied"),
      "/": () => document.querySelector<HTMLElement>("input[type=search]")?.focus(),
      w: () => thread && selected() && go(whereTo(thread, selected())),
      "[": () => press(/^(Previous request|One entry back)/),
      "]": () => press(/^(Next request|One entry on)/),
    };
    if (does[event.key]) {
      event.preventDefault();
      does[event.key]!();
    }
  };
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}

render(<App />, document.getElementById("app")!);
