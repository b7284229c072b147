// All threads: what each used, what happens in it, and search over all of them.
import { useEffect, useState } from "preact/hooks";
import { type Found, type Source, type ThreadRow, api } from "./data";
import { go, href, place, refine } from "./route";
import { Await, Card, Chip, Command, State, Trouble, ago, count, csv, dollars, percent, plural, save, short, useLoaded, visible } from "./ui";

export function Spark({ values }: { values: number[] }) {
  if (values.length < 2) return <span class="soft">–</span>;
  const [width, height] = [110, 24];
  const at = (value: number, n: number) => `${((n * width) / (values.length - 1)).toFixed(1)},${(height - 2 - value * (height - 4)).toFixed(1)}`;
  const line = values.map(at).join(" ");
  return (
    <svg class="spark" width={width} height={height} role="img" aria-label={`Reuse of the newest requests, last ${Math.round(100 * values.at(-1)!)} %`}>
      <polygon points={`0,${height} ${line} ${width},${height}`} fill="currentColor" opacity="0.16" />
      <polyline points={line} fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round" />
    </svg>
  );
}

/** How often a page that is looked at asks what is new. */
export const LOOK_MS = 2000;

export function ThreadsView({ source }: { source: Source }) {
  const [looked, look] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && look((n) => n + 1), LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  const loaded = useLoaded(() => source.threads(), [looked]);
  const text = place.value.query.text ?? "";
  const [typed, setTyped] = useState(text);
  return (
    <>
      <div class="head">
        <h1>Threads</h1>
        <form class="row push" role="search" onSubmit={(event) => { event.preventDefault(); refine({ text: typed }); }}>
          <input type="search" value={typed} size={44} aria-label="Search all threads" placeholder="Search all threads by words and meaning" onInput={(event) => setTyped(event.currentTarget.value)} />
          <button type="submit">Search</button>
        </form>
      </div>
      {text ? <Search text={text} /> : <p class="soft">What each thread sent to a model, what of it came from the provider's cache, and what it cost. Open one to see every request.</p>}
      <Await of={loaded} what="Reading the threads…">{(rows) => <Table rows={rows} />}</Await>
    </>
  );
}

function Table({ rows }: { rows: ThreadRow[] }) {
  const [name, setName] = useState("");
  const [error, setError] = useState<unknown>();
  const sorted = [...rows].sort((a, b) => (b.at ?? 0) - (a.at ?? 0));
  const begin = (event: Event) => {
    event.preventDefault();
    const known = rows.some((row) => row.name === name);
    (known ? Promise.resolve() : api("threads", { method: "POST", body: JSON.stringify({ name }) })).then(() => go(href(name, "chat")), setError);
  };
  const export_ = () => save("threads.csv", csv(["name", "entries", "model", "turns", "requests", "tokens", "read", "usd"], rows.map((row) => [row.name, row.entries, row.model, row.turns, row.requests, row.tokens, row.read, row.usd])), "text/csv");
  return (
    <>
      <Card title={plural(rows.length, "thread")} more={<button class="plain push" onClick={export_}>CSV</button>}>
        {rows.length ? (
          <div class="scroll" tabIndex={0} role="region" aria-label="Threads">
            <table>
              <thead><tr><th>Thread</th><th>Model</th><th class="num">Turns</th><th class="num">Requests</th><th class="num">Input</th><th>Reuse</th><th class="num">Read</th><th class="num">Cost</th><th class="num">Last</th></tr></thead>
              <tbody>{sorted.map((row) => <Row key={row.name} row={row} />)}</tbody>
            </table>
          </div>
        ) : (
          <State title="No thread yet"><span>Begin one below, import a conversation with <code>quire import</code>, or let a program append to one.</span></State>
        )}
      </Card>
      <form class="row" onSubmit={begin}>
        <label for="new">Talk in a new thread</label>
        <input id="new" value={name} placeholder="its name" onInput={(event) => setName(event.currentTarget.value)} required />
        <button class="primary" type="submit">Talk</button>
      </form>
      {error ? <Trouble error={error} /> : null}
      <Command words={["log", "list"]} />
    </>
  );
}

function Row({ row }: { row: ThreadRow }) {
  const since = row.at ? Date.now() - row.at : null;
  return (
    <tr>
      <td class="name">
        <a href={href(row.name)}>{visible(row.name)}</a> {since !== null && since < 8000 ? <i class="dot live" style={{ display: "inline-block" }} title="Something happens here" /> : null}
        <div class="soft small">{plural(row.entries, "entry")}{row.parent ? `, fork of ${visible(row.parent)}` : ""}</div>
      </td>
      <td class="small model">{row.model ? visible(row.model) : <span class="soft">never sent</span>}</td>
      <td class="num">{count(row.turns)}</td>
      <td class="num">{count(row.requests)}</td>
      <td class="num">{row.tokens ? short(row.tokens) : ""}</td>
      <td><Spark values={row.spark ?? []} /></td>
      <td class="num">{row.tokens ? percent(row.read ?? 0, row.tokens) : ""}</td>
      <td class="num">{dollars(row.usd)}</td>
      <td class="num soft small">{since === null ? "" : ago(since)}</td>
    </tr>
  );
}

function Search({ text }: { text: string }) {
  const loaded = useLoaded(() => api<Found>(`inspect/search?${new URLSearchParams({ text })}`), [text]);
  return (
    <Await of={loaded} what="Searching…">
      {(found) => (
        <Card title={!found.hits.length ? "Nothing was found" : found.relevant ? plural(found.hits.length, "hit") : "Nothing relevant was found; the nearest"} more={<><Chip>by {found.by}</Chip>{found.unread ? <Chip>{plural(found.unread, "entry")} not read for meaning yet</Chip> : null}<button class="plain push" onClick={() => refine({})}>Close</button></>}>
          {found.hits.length ? (
            <ol class="hits" aria-label="Hits">
              {found.hits.map((hit) => (
                <li key={`${hit.thread} ${hit.seq}`}>
                  <div class="row"><a href={`${href(hit.thread, "chat")}?entry=${hit.seq}`}>{visible(hit.thread)}</a><span class="soft small">entry {hit.seq}, {visible(hit.kind)}</span><Reasons parts={hit.parts} words={hit.words} /></div>
                  <p>{marked(hit.text, hit.words)}</p>
                </li>
              ))}
            </ol>
          ) : null}
          <div class="pad"><Command words={["recall", text, "--explain"]} /></div>
        </Card>
      )}
    </Await>
  );
}

const WHY: Record<string, [string, string]> = {
  words: ["words", "The rarer a word of the question, the more it counts"],
  meaning: ["meaning", "It says something alike, in whatever words"],
  speaker: ["who spoke", "The question names who said it"],
  speech: ["how it is said", "Statements answer questions better than questions do"],
  time: ["when", "The question asks for a time, and it tells one"],
  name: ["a name", "The question asks for somebody, and it names one"],
};

/** Why an entry was found: what raised its place, with the words it shares, and what lowered it. */
function Reasons({ parts, words }: { parts: Record<string, number>; words: string[] }) {
  return (
    <span class="row" style={{ gap: "4px 6px" }}>
      {Object.entries(parts).filter(([, part]) => Math.abs(part) >= 0.005).sort(([, a], [, b]) => b - a).map(([name, part]) => (
        <span key={name} class={`chip ${part > 0 ? "read" : ""}`} title={WHY[name]?.[1]}>
          {name === "words" && !words.length ? "words around it" : (WHY[name]?.[0] ?? visible(name))}{name === "words" && words.length ? `: ${visible(words.join(", "))}` : ""} {part > 0 ? "+" : "−"}{Math.abs(part).toFixed(1)}
        </span>
      ))}
    </span>
  );
}

/** A text with the words marked that the question shares with it, whatever their endings. */
function marked(text: string, words: string[]) {
  if (!words.length) return visible(text);
  const stem = (word: string) => word.slice(0, Math.max(4, word.length - 3)).replace(/[^\p{L}\p{N}]/gu, "\\$&");
  const found = new RegExp(`(?<![\\p{L}\\p{N}])((?:${words.map(stem).join("|")})[\\p{L}\\p{N}]*)`, "giu");
  return text.split(found).map((part, at) => (at % 2 ? <mark key={at}>{visible(part)}</mark> : visible(part)));
}
