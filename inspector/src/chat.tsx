// A thread as it is talked to: a running turn streams in, can be stopped, resumed, and stepped through entry by entry.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Entry, type Found, Problem, api, keyHeader, silence } from "./data";
import { href, place, refine } from "./route";
import { Card, Chip, Command, State, Trouble, count, moment, tell, useLoaded, visible } from "./ui";

/** Server-sent events of a route, one after the other; ends when the stream does. */
export async function events(path: string, init: RequestInit, on: (name: string, data: unknown, id: string) => void, opened = () => {}) {
  const given: Record<string, string> = init.body ? { "content-type": "application/json" } : {};
  const reply = await fetch(`/api/${path}`, { ...init, headers: { ...given, ...keyHeader(), accept: "text/event-stream" } });
  if (!reply.ok || !reply.body) {
    const said = await reply.json().catch(() => null);
    throw new Problem(said?.detail || said?.title || reply.statusText, said?.hint ?? "", reply.status, said?.state);
  }
  opened();
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.data) on(fields.event ?? "message", JSON.parse(fields.data), fields.id ?? "");
    }
  }
}

interface Piece {
  kind: string;
  text: string;
}

interface Followed {
  entries: Entry[];
  pieces: Piece[];
  error?: unknown;
  ready: boolean;
}

/** A thread's entries and what is being written, kept up with the log. */
export function useThread(name: string): Followed {
  const [state, set] = useState<Followed>({ entries: [], pieces: [], ready: false });
  useEffect(() => {
    const stop = new AbortController();
    let entries: Entry[] = [];
    let pieces: Piece[] = [];
    let last = "0";
    let drawing = 0;
    const draw = () => {
      drawing ||= requestAnimationFrame(() => {
        drawing = 0;
        set({ entries: [...entries], pieces: pieces.filter(Boolean), ready: true });
      });
    };
    const take = (event: string, data: unknown, id: string) => {
      const { kind, text, part, entry } = data as { kind: string; text?: string; part?: number; entry?: Entry };
      if (id) last = id;
      if (event === "entry" && entry) {
        if (!entries.some((each) => each.seq === entry.seq)) entries.push(entry);
        if (["respond", "think", "call"].includes(entry.kind)) pieces.shift();
        else if (entry.kind !== "sent") pieces = [];
      } else if (event === "piece") {
        const known = pieces[part ?? 0];
        pieces[part ?? 0] = { kind, text: (known?.text ?? "") + (text ?? "") };
      }
      draw();
    };
    const refused = (error: unknown) => {
      if (error instanceof Problem && error.status >= 400 && error.status < 500) throw error;
    };
    const after = (seq: number, limit: number) => api<{ entries: Entry[]; thread: { seq: number } }>(`threads/${encodeURIComponent(name)}/entries?after=${seq}&limit=${limit}`, { signal: stop.signal });
    /** Until the thread is another one. */
    const follow = async () => {
      entries = [];
      pieces = [];
      for (;;) {
        const page = await after(entries.at(-1)?.seq ?? 0, 5000);
        entries = [...entries, ...page.entries];
        if (!page.entries.length || (entries.at(-1)?.seq ?? 0) >= page.thread.seq) break;
      }
      last = String(entries.at(-1)?.seq ?? 0);
      draw();
      for (let isSame = true; isSame && !stop.signal.aborted; ) {
        const connection = new AbortController();
        // Once events come: a thread that was deleted and made anew before holds another entry in this place.
        const check = async () => {
          const newest = entries.at(-1);
          const page = newest && (await after(newest.seq - 1, 1).catch(() => undefined));
          if (!page || page.entries[0]?.id === newest.id) return;
          isSame = false;
          connection.abort();
        };
        const signal = AbortSignal.any([stop.signal, connection.signal]);
        await events(`threads/${encodeURIComponent(name)}/events?last=${last}`, { signal }, take, check).catch(refused);
        await new Promise((again) => setTimeout(again, 500));
      }
    };
    const keep = async () => {
      while (!stop.signal.aborted) {
        const error = await follow().catch((error) => error);
        if (error && !stop.signal.aborted) {
          set((before) => ({ ...before, error, ready: true }));
          await new Promise((again) => setTimeout(again, 1000));
        }
      }
    };
    set({ entries: [], pieces: [], ready: false });
    keep();
    return () => stop.abort();
  }, [name]);
  return state;
}

interface Standing {
  next: string;
  running: boolean;
  model: string;
  calls: Entry[];
}

interface Item {
  id: string;
  type: string;
  content: string;
  metadata: Record<string, string>;
}

export function ChatView({ thread }: { thread: string }) {
  const followed = useThread(thread);
  const [standing, setStanding] = useState<Standing | null>(null);
  const [error, setError] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const upTo = Number(place.value.query.entry) || 0;
  const path = `threads/${encodeURIComponent(thread)}`;
  const looked = useRef(0);
  const look = () => {
    const now = ++looked.current;
    const take = (found: Standing | null) => {
      if (now !== looked.current) return;
      setStanding(found);
      // It answers again.
      if (found) setError((before: unknown) => (before instanceof Problem && !before.status ? undefined : before));
    };
    return api<Standing>(`${path}/turn`).then(take, () => take(null));
  };
  useEffect(() => {
    look();
  }, [thread, followed.entries.length, busy]);
  useEffect(() => {
    // A turn's last entry comes a moment before its end; a service that went away may come back.
    const timer = standing === null || standing.running ? setInterval(look, 1000) : 0;
    return () => clearInterval(timer);
  }, [thread, standing === null, standing?.running]);
  /** Whether the service took it: what it did not take can be said again. */
  const carry = async (route: string, body: Record<string, unknown>, tries = 5): Promise<boolean> => {
    setBusy(true);
    setError(undefined);
    let taken = false;
    try {
      await events(`${path}/${route}`, { method: "POST", body: JSON.stringify(body) }, (event, data) => {
        taken = true;
        if (event !== "outcome") return;
        const { problem } = data as { problem?: { detail?: string; title: string; hint?: string; status: number } };
        if (problem) setError(new Problem(problem.detail || problem.title, problem.hint ?? "", problem.status));
      });
      return true;
    } catch (problem) {
      // Where neither the thread nor the service names a model, the one that is here answers.
      if (problem instanceof Problem && problem.message.includes("no model is named") && !body.model) return carry(route, { ...body, model: "local:" });
      // Whoever looks how a turn stands holds it for a moment.
      if (problem instanceof Problem && problem.status === 409 && problem.message.includes("being carried out") && tries > 1) {
        await new Promise((again) => setTimeout(again, 300));
        return carry(route, body, tries - 1);
      }
      setError(problem instanceof Problem ? problem : silence());
      return taken;
    } finally {
      setBusy(false);
    }
  };
  const shown = upTo ? followed.entries.filter((entry) => entry.seq <= upTo) : followed.entries;
  const running = standing?.running ?? false;
  const end = useRef<HTMLDivElement>(null);
  const written = followed.pieces.reduce((sum, piece) => sum + piece.text.length, 0);
  useEffect(() => {
    end.current?.scrollIntoView({ block: "end" });
  }, [upTo, upTo ? 0 : followed.entries.length, upTo ? 0 : Math.floor(written / 200), standing?.next, running, busy, error]);
  if (followed.error) return <Trouble error={followed.error} />;
  const sent = followed.entries.findLast((entry) => entry.kind === "sent");
  const stopped = Boolean((sent?.meta as { stopped?: boolean } | undefined)?.stopped) && followed.entries.at(-1)?.kind !== "user";
  return (
    <>
      <Card
        kind="talking"
        title={running ? <><i class="dot live" style={{ display: "inline-block", marginRight: "8px" }} />A turn is under way</> : "Talk"}
        more={<Steps entries={followed.entries} upTo={upTo} />}
      >
        <div class="talk" role="log" aria-label="The thread">
          {followed.ready && !followed.entries.length ? <State title="Nothing was said yet"><span>Say something below; the local model answers where no other is named.</span></State> : null}
          {shown.length > 400 ? <p class="soft small">The newest 400 of {count(shown.length)} entries</p> : null}
          {shown.slice(-400).map((entry) => <Said key={entry.seq} thread={thread} entry={entry} />)}
          {upTo ? null : followed.pieces.map((piece, n) => (
            <div class={`said ${piece.kind}`} key={`piece ${n}`} aria-busy="true">
              <small>{piece.kind}, being written</small>
              <div>{visible(piece.text)}<span class="soft">▍</span></div>
            </div>
          ))}
          {upTo && upTo < (followed.entries.at(-1)?.seq ?? 0) ? <p class="soft small">The thread as it stood after entry {count(upTo)}; → goes on.</p> : null}
        </div>
        {error ? <Trouble error={error} /> : null}
        {standing && !running && !busy && standing.next === "run" && standing.calls.length ? <InDoubt calls={standing.calls} resume={(results) => carry("resume", { results })} /> : null}
        {standing && !running && !busy && (standing.next === "ask" || (standing.next === "done" && stopped)) && followed.entries.length ? (
          <div class="pad row" style={{ padding: "12px 16px" }}><span>{stopped ? "The answer was stopped." : "The turn was interrupted."}</span><button class="primary" onClick={() => carry("resume", {})}>Resume</button></div>
        ) : null}
        <div ref={end} style={{ scrollMarginBottom: "230px" }} />
        <Composer
          thread={thread} running={running || busy} model={standing?.model ?? ""}
          send={(text, model, attach) => carry("turns", { text, ...(model ? { model } : {}), attach })}
          stop={() => api(`${path}/stop`, { method: "POST" }).then(look, setError)}
        />
      </Card>
      <Command words={["chat", thread]} />
    </>
  );
}

/** Step back through what was said, entry by entry. */
function Steps({ entries, upTo }: { entries: Entry[]; upTo: number }) {
  const last = entries.at(-1)?.seq ?? 0;
  if (!last) return null;
  const now = upTo || last;
  const to = (seq: number) => refine({ ...place.value.query, entry: seq >= last ? "" : String(Math.max(1, seq)) });
  return (
    <div class="row push">
      <button class="plain" aria-label="One entry back" title="One entry back ([)" disabled={now <= 1} onClick={() => to(now - 1)}>←</button>
      <input type="range" min={1} max={last} value={now} aria-label="Step through the entries" aria-valuetext={`entry ${now} of ${last}`} onInput={(event) => to(Number(event.currentTarget.value))} />
      <button class="plain" aria-label="One entry on" title="One entry on (])" disabled={now >= last} onClick={() => to(now + 1)}>→</button>
      <span class="soft small nowrap">entry {count(now)} of {count(last)}</span>
    </div>
  );
}

const body = (entry: Entry): string => {
  if (entry.kind === "call") return `${entry.name ?? ""} ${JSON.stringify(entry.args)}`;
  if (entry.kind === "result") return String(entry.content ?? entry.outcome ?? "");
  if (entry.kind === "sent") {
    const usage = entry.usage as Record<string, number> | undefined;
    return `${entry.provider}:${entry.model}${usage ? ` · ${count(usage.input_total)} tokens in, ${count(usage.cache_read)} from the cache, ${count(usage.output)} out` : ""}`;
  }
  if (entry.kind === "rebase") return `rebase (${entry.reason}): ${count(entry.freed as number)} tokens freed`;
  if (entry.kind === "tools") return ((entry.tools as { name: string }[]) ?? []).map((tool) => tool.name).join(", ");
  if (entry.kind === "attach") return (entry.item as Item)?.id ?? "";
  return entry.text ?? "";
};

function Said({ thread, entry }: { thread: string; entry: Entry }) {
  const text = useMemo(() => body(entry), [entry]);
  const items = (entry.attach as Item[] | undefined) ?? [];
  const pin = () =>
    api(`threads/${encodeURIComponent(thread)}/entries`, { method: "POST", body: JSON.stringify({ entries: [{ kind: "note", text: "", meta: { pins: [entry.seq] } }] }) })
      .then(() => tell(`Entry ${entry.seq} is pinned: it stays verbatim in every request`), (error) => tell(String(error.message)));
  if (entry.kind === "note" && !text) {
    const pins = (entry.meta as { pins?: number[] } | undefined)?.pins;
    return pins ? <small class="soft" data-entry={entry.seq}>Entry {pins.join(", ")} was pinned</small> : null;
  }
  if (entry.kind === "sent") return <small class="soft" data-entry={entry.seq}>{entry.seq} · sent · {visible(text)}</small>;
  return (
    <div class={`said ${entry.kind}`} data-entry={entry.seq}>
      <small>
        {entry.seq} · {entry.kind} {entry.at ? `· ${moment(entry.at)}` : ""}
        {["user", "respond", "result"].includes(entry.kind) ? <button class="plain small" style={{ padding: "0 6px" }} onClick={pin} title="Keep this entry verbatim in every request">Pin</button> : null}
        {" "}
        {text.trim() && !["sent", "rebase", "tools"].includes(entry.kind) ? <a class="small" href={`${href(thread, "where")}?text=${encodeURIComponent(text.trim().slice(0, 120))}`}>Where?</a> : null}
      </small>
      <div tabIndex={0}>{visible(text.slice(0, 8000)) || <span class="soft">(empty)</span>}{text.length > 8000 ? <span class="soft"> … {count(text.length - 8000)} more characters</span> : null}</div>
      {items.length ? <span class="row">{items.map((item) => <Chip key={item.id}>{visible(item.id)}</Chip>)}</span> : null}
    </div>
  );
}

/** Calls of which nobody knows whether they ran: the user decides. */
function InDoubt({ calls, resume }: { calls: Entry[]; resume: (results: unknown[]) => void }) {
  const [given, setGiven] = useState<Record<string, string>>({});
  const id = (call: Entry) => call.call_id ?? "";
  const results = () => calls.map((call) => (given[id(call)] === undefined ? { call_id: id(call), interrupted: true } : { call_id: id(call), content: given[id(call)] }));
  return (
    <div class="pad" style={{ display: "grid", gap: "12px", padding: "16px", borderTop: "1px solid var(--line)" }}>
      <h3>{calls.length === 1 ? "A call waits" : `${calls.length} calls wait`}</h3>
      <p class="soft small">Nobody recorded a result. Give one, or say that it was interrupted; the turn goes on with that.</p>
      {calls.map((call) => (
        <label class="field" key={id(call)}>
          <code>{visible(body(call))}</code>
          <textarea rows={2} placeholder="The result; left empty, the call is told as interrupted" value={given[id(call)] ?? ""} onInput={(event) => setGiven({ ...given, [id(call)]: event.currentTarget.value })} />
        </label>
      ))}
      <div class="row"><button class="primary" onClick={() => resume(results())}>Resume</button></div>
    </div>
  );
}

function Composer({ thread, running, model, send, stop }: { thread: string; running: boolean; model: string; send: (text: string, model: string, attach: Item[]) => Promise<boolean>; stop: () => void }) {
  const [text, setText] = useState("");
  const [target, setTarget] = useState("");
  const [items, setItems] = useState<Item[]>([]);
  const go = () => {
    if (!text.trim() || running) return;
    setText("");
    setItems([]);
    send(text, target, items).then((taken) => {
      if (taken) return;
      setText(text);
      setItems(items);
    });
  };
  const attach = async (files: FileList | null) => {
    const read = await Promise.all([...(files ?? [])].map(async (file) => ({ id: file.name, type: "text", content: await file.text(), metadata: { source: "file", path: file.name } })));
    setItems([...items, ...read]);
  };
  return (
    <div class="composer">
      <textarea
        rows={3} value={text} aria-label="What you say" placeholder="Say something. Enter sends, Shift and Enter is a new line." disabled={running}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); go(); } }}
      />
      {items.length ? <div class="row">{items.map((item, n) => <Chip key={n}>{visible(item.id)} <button class="plain small" style={{ padding: "0 4px" }} aria-label={`Leave ${item.id} out`} onClick={() => setItems(items.filter((_, at) => at !== n))}>×</button></Chip>)}</div> : null}
      <div class="row">
        {running ? <button class="danger" onClick={stop}>Stop</button> : <button class="primary" onClick={go} disabled={!text.trim()}>Send</button>}
        <label class="button">Attach<input type="file" multiple onChange={(event) => { attach(event.currentTarget.files); event.currentTarget.value = ""; }} /></label>
        <input value={target} size={26} aria-label="Model" placeholder={model || "local: the model that is here"} list="models" onInput={(event) => setTarget(event.currentTarget.value)} />
        <datalist id="models"><option value="local:" />{model ? <option value={model} /> : null}</datalist>
        <Kept thread={thread} />
        <Recalled thread={thread} />
      </div>
    </div>
  );
}

/** The items that join every turn until they are taken out. */
function Kept({ thread }: { thread: string }) {
  const [changed, setChanged] = useState(0);
  const path = `threads/${encodeURIComponent(thread)}/window`;
  const kept = useLoaded(() => api<{ items: Item[] }>(path), [thread, changed]);
  const after = (done: Promise<unknown>, what = "") => done.then(() => (setChanged((n) => n + 1), tell(what)), (error) => tell(String(error.message)));
  const keep = async (files: FileList | null) => {
    for (const file of [...(files ?? [])]) {
      const body = JSON.stringify({ content: await file.text(), metadata: { source: "file", path: file.name } });
      await after(api(path, { method: "POST", body }), `${file.name} joins every turn`);
    }
  };
  const name = (item: Item) => String(item.metadata?.path ?? item.id);
  return (
    <>
      <label class="button" title="Put a file into the window: it joins every turn">Window<input type="file" multiple onChange={(event) => { keep(event.currentTarget.files); event.currentTarget.value = ""; }} /></label>
      {kept.value?.items.map((item) => (
        <Chip key={item.id}>{visible(name(item))} <button class="plain small" style={{ padding: "0 4px" }} aria-label={`Take ${name(item)} out of the window`} onClick={() => after(api(`${path}/${encodeURIComponent(item.id)}`, { method: "DELETE" }))}>×</button></Chip>
      ))}
    </>
  );
}

/** What recall finds of older entries. */
function Recalled({ thread }: { thread: string }) {
  const [text, setText] = useState("");
  const [hits, setHits] = useState<Found["hits"] | null>(null);
  const look = (event: Event) => {
    event.preventDefault();
    api<Found>(`inspect/search?${new URLSearchParams({ text, thread })}`).then((found) => setHits(found.hits), (error) => tell(String(error.message)));
  };
  return (
    <>
      <form class="row push" onSubmit={look}>
        <input type="search" value={text} size={18} aria-label="Recall" placeholder="Recall" required onInput={(event) => setText(event.currentTarget.value)} />
        <button type="submit">Recall</button>
      </form>
      {hits ? (
        <ul class="small" style={{ width: "100%", listStyle: "none", display: "grid", gap: "4px" }}>
          {hits.length ? hits.slice(0, 5).map((hit) => <li key={hit.seq}><a href={`${href(thread, "chat")}?entry=${hit.seq}`}>entry {hit.seq}</a> <span class="soft">{visible(hit.kind)}</span> {visible(hit.text.slice(0, 160))}</li>) : <li class="soft">Nothing was found</li>}
        </ul>
      ) : null}
    </>
  );
}
