// One request: its layers and segments, the exact body for any provider, what was left out. And two of them side by side.
import { useMemo, useState } from "preact/hooks";
import type { Column, Comparison, Finding, LeftOut, RequestBody, RequestDetail, Segment, Source } from "./data";
import { BAND_NAMES, edits, parts, REASONS } from "./picture";
import { go, href, place, refine } from "./route";
import { Await, Card, Chip, Command, Figures, Loading, LongText, Rows, State, ago, count, dollars, moment, percent, plural, short, useLoaded, visible } from "./ui";

const LAYERS: Record<string, string> = {
  L1: "system prompt and tools",
  L2: "library",
  L3: "this turn's context",
  L4: "history",
  L5: "the user's words",
};
const STATE_NAMES = { read: "read from the cache", written: "written to the cache", fresh: "new, not cached" };

export function RequestView({ source, thread, n, changed }: { source: Source; thread: string; n: number; changed: number }) {
  const loaded = useLoaded(() => source.request(thread, n), [thread, n, changed]);
  return (
    <Await of={loaded} what={`Request ${n}…`}>
      {(detail) => <Detail source={source} thread={thread} detail={detail} />}
    </Await>
  );
}

function Detail({ source, thread, detail }: { source: Source; thread: string; detail: RequestDetail }) {
  const { column } = detail;
  const n = column.n;
  const whole = (column.read ?? 0) + (column.written ?? 0) + (column.fresh ?? 0);
  const tab = place.value.query.show ?? "segments";
  const left = detail.left_out.reduce((sum, group) => sum + group.entries.reduce((all, [a, b]) => all + b - a + 1, 0), 0);
  return (
    <>
      <div class="head">
        <h2>
          Request {n} <span class="soft">turn {column.turn}.{column.step}{column.epoch ? `, epoch ${column.epoch}` : ""}</span>
        </h2>
        {column.ahead ? <Chip>not sent yet</Chip> : null}
        {column.cold ? <Chip kind="fresh">the cache had expired</Chip> : null}
        <span class="soft small">{moment(column.at)} {column.model ? visible(column.model) : ""}</span>
        <span class="row push">
          <button disabled={n <= 1} onClick={() => go(href(thread, "request", n - 1))} title="Previous request ([)">← {n - 1 || ""}</button>
          <button disabled={n >= detail.last} onClick={() => go(href(thread, "request", n + 1))} title="Next request (])">{n < detail.last ? n + 1 : ""} →</button>
          {n > 1 ? <a class="button" href={href(thread, "compare", n - 1, n)}>Compare with {n - 1}</a> : null}
        </span>
      </div>
      {column.refused ? (
        <State title="This request was refused" kind="error"><span>{visible(column.refused)}</span></State>
      ) : (
        <Figures
          of={[
            ["Tokens", count(column.tokens), `of ${count(column.limit)}`],
            ["Read from the cache", percent(column.read ?? 0, whole), column.reported ? `${count(column.read)} of ${count(whole)} by the provider's count` : "as foreseen"],
            ["Written, new", count((column.written ?? 0) + (column.fresh ?? 0)), column.fresh ? `${count(column.fresh)} not cached` : ""],
            ["Cost of input", column.usd !== null && column.usd !== undefined ? dollars(column.usd) : short(column.units), column.usd !== null && column.usd !== undefined ? "" : "plain input tokens"],
            ["Left out", plural(left, "entry")],
          ]}
        />
      )}
      {column.rebase ? (
        <p class="verdict">
          <Chip kind="written">rebase ({visible(column.rebase.reason)})</Chip> A new epoch begins here: {REASONS[column.rebase.reason] ?? "it was recorded"};{" "}
          {count(column.rebase.freed)} tokens were freed ({edits(column.rebase.actions)}).
        </p>
      ) : null}
      {detail.segments.length ? (
        <>
          <Stack detail={detail} />
          <div class="tabs" role="navigation" aria-label="Parts of the request">
            {([["segments", `Segments ${detail.segments.length}`], ["body", "Body"], ["left-out", `Left out ${left ? count(left) : ""}`]] as const).map(([name, label]) => (
              <a key={name} href={`${href(thread, "request", n)}?show=${name}`} aria-current={tab === name ? "page" : undefined}>{label}</a>
            ))}
          </div>
          {tab === "body" ? <Body source={source} thread={thread} column={column} />
            : tab === "left-out" ? <Left source={source} thread={thread} groups={detail.left_out} />
            : <Segments source={source} thread={thread} detail={detail} />}
        </>
      ) : null}
      {tab === "body" ? null : <Command words={["assemble", thread, "--turn", String(column.turn), ...(tab === "left-out" ? ["--json"] : [])]} />}
    </>
  );
}

function Stack({ detail }: { detail: RequestDetail }) {
  const { column, layers } = detail;
  const names = Object.keys(BAND_NAMES);
  const total = column.tokens || 1;
  return (
    <Card title="Layers" more={<span class="soft small">In the order of the wire; what is read from the cache comes first</span>}>
      <div class="pad" style={{ display: "grid", gap: "12px" }}>
        <div class="stack" role="img" aria-label={layers.map((layer) => `${layer.id} ${layer.tokens} tokens`).join(", ")}>
          {parts(column).map(([band, state, from, to]) => (
            <i
              key={`${band} ${state}`}
              title={`${BAND_NAMES[names[band]!]}: ${count(to - from)} tokens, ${STATE_NAMES[state]}`}
              style={{ width: `${(100 * (to - from)) / total}%`, background: `color-mix(in srgb, var(--${state}) ${[98, 76, 90, 62, 82, 100, 72][band]}%, var(--card))` }}
            />
          ))}
        </div>
        <div class="scroll" tabIndex={0} role="region" aria-label="Layers">
          <table>
            <thead><tr><th>Layer</th><th>What it is</th><th class="num">Tokens</th><th class="wide">sha256</th></tr></thead>
            <tbody>
              {layers.map((layer) => (
                <tr key={layer.id}>
                  <td><b>{layer.id}</b></td>
                  <td>{LAYERS[layer.id]}</td>
                  <td class="num">{count(layer.tokens)}</td>
                  <td class="mono soft wide">{layer.tokens && layer.sha256 ? `${layer.sha256.slice(0, 24)}…` : "–"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </div>
    </Card>
  );
}

const first = (text: string) => visible(text.slice(0, 300).replace(/\s+/g, " ").trim());

function Segments({ source, thread, detail }: { source: Source; thread: string; detail: RequestDetail }) {
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  const [wanted, setWanted] = useState("");
  const { segments, column } = detail;
  const states = useMemo(() => statesOf(detail), [detail]);
  const shown = useMemo(
    () => segments.map((segment, at) => ({ segment, at })).filter(({ segment }) =>
      !wanted || `${segment.layer} ${segment.role} ${segment.title} ${segment.text}`.toLowerCase().includes(wanted.toLowerCase())),
    [segments, wanted],
  );
  const turn = (at: number) => {
    const next = new Set(open);
    if (!next.delete(at)) next.add(at);
    setOpen(next);
  };
  return (
    <Card
      title={plural(shown.length, "segment")}
      more={<input class="push" type="search" placeholder="Filter" aria-label="Filter segments" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />}
    >
      {shown.length ? (
        <Rows
          label="Segments"
          count={shown.length}
          size={38}
          height={640}
          start={wanted ? undefined : shown.findIndex(({ segment }) => segment.new)}
          row={(index) => {
            const { segment, at } = shown[index]!;
            return (
              <SegmentRow
                segment={segment} thread={thread} open={open.has(at)} turn={() => turn(at)} now={column.at ?? null} state={states[at]!}
                text={segment.text.length < segment.characters && source.live ? () => source.text(thread, column.n, at) : undefined}
              />
            );
          }}
        />
      ) : (
        <State title="No segment holds that" />
      )}
    </Card>
  );
}

/** What the cache did with each segment: read, where it stood before and the reading went so far. */
function statesOf({ column, segments }: RequestDetail) {
  const read = parts(column).filter(([, state]) => state === "read").reduce((end, [, , , to]) => Math.max(end, to), 0);
  let from = 0;
  return segments.map((segment) => {
    const middle = from + segment.tokens / 2;
    from += segment.tokens;
    return !segment.new && middle <= read ? "read" : column.written ? "written" : "fresh";
  });
}

function SegmentRow({ segment, thread, open, turn, text, now, state }: { segment: Segment; thread: string; open: boolean; turn: () => void; text?: () => Promise<string>; now: number | null; state: "read" | "written" | "fresh" }) {
  const seqs = segment.entries ?? [];
  const life = !segment.new && now && segment.since_at ? ` · ${ago(now - segment.since_at)}` : "";
  return (
    <div class="segment">
      <button aria-expanded={open} onClick={turn}>
        <i class={`dot ${state}`} title={STATE_NAMES[state]} />
        <span class="layer">{segment.layer}</span>
        <span class="who">{visible(segment.role)}{segment.title && segment.title !== segment.role ? <span class="soft"> {visible(segment.title)}</span> : null}</span>
        <span class="first">{segment.made ? <Chip kind="written">{segment.made}</Chip> : null} {first(segment.text)}</span>
        <span class="side">{count(segment.tokens)} tokens</span>
      </button>
      {open ? (
        <div class="body">
          <div class="row small">
            <Chip kind={state}>{segment.new ? STATE_NAMES[state] : state === "read" ? `in the cache since request ${segment.since}${life}` : `unchanged since request ${segment.since}, yet ${STATE_NAMES[state]}`}</Chip>
            {seqs.map((seq) => <Chip key={seq}>entry {seq}</Chip>)}
            <span class="mono soft">{segment.sha256.slice(0, 16)}…</span>
            <span class="soft">{count(segment.characters)} characters</span>
            {segment.text.trim() ? <a href={`${href(thread, "where")}?text=${encodeURIComponent(segment.text.trim().slice(0, 120))}`}>Where did it go?</a> : null}
          </div>
          <LongText text={segment.text} more={text} />
        </div>
      ) : null}
    </div>
  );
}

// The body as lines, each with its path, so that findings stand at their place.

interface Line {
  text: string;
  path: string;
  indent: number;
}

export function jsonLines(value: unknown, path = "$", indent = 0, name = "", last = true): Line[] {
  const head = name ? `${JSON.stringify(name)}: ` : "";
  const tail = last ? "" : ",";
  if (value === null || typeof value !== "object") {
    return [{ text: `${head}${JSON.stringify(value)}${tail}`, path, indent }];
  }
  const list = Array.isArray(value);
  const inner = Object.entries(value as Record<string, unknown>);
  if (!inner.length) return [{ text: `${head}${list ? "[]" : "{}"}${tail}`, path, indent }];
  const lines: Line[] = [{ text: `${head}${list ? "[" : "{"}`, path, indent }];
  inner.forEach(([key, each], at) => {
    const below = list ? `${path}[${key}]` : `${path}.${key}`;
    for (const line of jsonLines(each, below, indent + 1, list ? "" : key, at === inner.length - 1)) lines.push(line);
  });
  lines.push({ text: `${list ? "]" : "}"}${tail}`, path, indent });
  return lines;
}

const MARKS = /^"(cache_control|cachePoint|cached_content|cachedContent|prompt_cache_key|prompt_cache_options|prompt_cache_retention)"/;
const TARGETS = ["anthropic:claude-opus-5-5", "openai:gpt-5.5", "openai-chat:gpt-5", "gemini:gemini-3-pro", "bedrock:anthropic.claude-opus-5-5", "deepseek:deepseek-chat", "cohere:command-a", "llamacpp:smollm2"];

function Body({ source, thread, column }: { source: Source; thread: string; column: Column }) {
  const { n, model: usual = "" } = column;
  const target = place.value.query.for ?? "";
  const loaded = useLoaded(() => source.body(thread, n, target), [thread, n, target]);
  const [typed, setTyped] = useState(target || usual);
  const choose = (to: string) => refine({ ...place.value.query, for: to });
  return (
    <>
      <form class="row" onSubmit={(event) => { event.preventDefault(); choose(typed); }}>
        <label class="row">
          For
          <input list="targets" aria-label="Provider and model" placeholder="provider:model" value={typed} size={34} onInput={(event) => setTyped(event.currentTarget.value)} onChange={(event) => choose(event.currentTarget.value)} />
        </label>
        <datalist id="targets">{TARGETS.map((each) => <option key={each} value={each} />)}</datalist>
        <button type="submit">Render</button>
        <span class="soft small">Cache marks are shown as marks; what the provider's rules say stands at its place.</span>
      </form>
      <Await of={loaded} what="Rendering…">{(body) => <Written body={body} />}</Await>
      <Command words={["render", thread, "--turn", String(column.turn), "--step", String(column.step), "--model", target || usual || "openai-chat:"]} />
    </>
  );
}

function Written({ body }: { body: RequestBody }) {
  const lines = useMemo(() => jsonLines(body.body), [body]);
  const found = useMemo(() => {
    const by = new Map<string, Finding[]>();
    for (const finding of body.findings) by.set(finding.path, [...(by.get(finding.path) ?? []), finding]);
    return by;
  }, [body]);
  const marks = lines.filter((line) => MARKS.test(line.text)).length;
  const begins = new Set<string>();
  const at = lines.map((line) => {
    const here = found.get(line.path);
    if (!here || begins.has(line.path)) return undefined;
    begins.add(line.path);
    return here;
  });
  return (
    <Card
      title={visible(body.target)}
      more={<><Chip>{plural(lines.length, "line")}</Chip><Chip kind={marks ? "written" : ""}>{plural(marks, "cache mark")}</Chip><Chip kind={body.findings.length ? "error" : "read"}>{body.findings.length ? plural(body.findings.length, "finding") : "the provider's rules find nothing"}</Chip></>}
    >
      {body.findings.length ? (
        <div class="pad" style={{ display: "grid", gap: "12px" }}>
          {body.findings.map((finding, n) => <Found key={n} finding={finding} />)}
        </div>
      ) : null}
      <Rows
        label="Body"
        count={lines.length}
        size={20}
        height={640}
        row={(index) => {
          const line = lines[index]!;
          const here = at[index];
          const shown = line.text.length > 4000 ? `${line.text.slice(0, 4000)} … ${count(line.text.length - 4000)} more characters` : line.text;
          return (
            <div class={`line ${MARKS.test(line.text) ? "cache-mark" : ""} ${here ? "found" : ""}`}>
              <span>{index + 1}</span>
              <code style={{ paddingLeft: `${line.indent * 14}px` }}>{visible(shown)}{MARKS.test(line.text) ? <> <Chip kind="written">cache mark</Chip></> : null}{here?.map((finding, n) => <Found key={n} finding={finding} />)}</code>
            </div>
          );
        }}
      />
    </Card>
  );
}

function Found({ finding }: { finding: Finding }) {
  return (
    <div class={`finding ${finding.severity}`}>
      <div><b>{finding.row}</b> <code>{visible(finding.path)}</code> {finding.severity === "warning" ? <Chip kind="written">advice</Chip> : <Chip kind="error">would be refused</Chip>}</div>
      <div>{visible(finding.message)}</div>
      <div class="soft">{visible(finding.fix)}</div>
    </div>
  );
}

function Left({ source, thread, groups }: { source: Source; thread: string; groups: LeftOut[] }) {
  const [seq, setSeq] = useState<number | null>(null);
  if (!groups.length) return <State title="Nothing was left out"><span>Everything that was said stands in this request.</span></State>;
  return (
    <Card title="Left out" more={<span class="soft small">What this request does not show, and why; each stays in the log and can be recalled</span>}>
      <div class="scroll" tabIndex={0} role="region" aria-label="Left out" style={{ maxHeight: "420px" }}>
        <table>
          <thead><tr><th>Why</th><th>Entries</th></tr></thead>
          <tbody>
            {groups.map((group) => (
              <tr key={group.reason}>
                <td>{visible(group.reason)}</td>
                <td><Entries ranges={group.entries} chosen={seq} choose={setSeq} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {seq !== null ? <Original key={seq} source={source} thread={thread} seq={seq} /> : null}
    </Card>
  );
}

function Entries({ ranges, chosen, choose }: { ranges: [number, number][]; chosen: number | null; choose: (seq: number) => void }) {
  return (
    <span class="row">
      {ranges.map(([from, to]) => (
        <span key={from} class="row" style={{ gap: "4px" }}>
          <button class="plain small" onClick={() => choose(from)}>{from === to ? `entry ${from}` : `entries ${from}–${to}`}</button>
          {from !== to && chosen !== null && chosen >= from && chosen <= to ? (
            <>
              <button class="plain small" aria-label="Previous entry" disabled={chosen <= from} onClick={() => choose(chosen - 1)}>←</button>
              <button class="plain small" aria-label="Next entry" disabled={chosen >= to} onClick={() => choose(chosen + 1)}>→</button>
            </>
          ) : null}
        </span>
      ))}
    </span>
  );
}

export function Original({ source, thread, seq }: { source: Source; thread: string; seq: number }) {
  const loaded = useLoaded(() => source.entry(thread, seq), [thread, seq]);
  return (
    <div class="pad" style={{ borderTop: "1px solid var(--line)", display: "grid", gap: "8px", padding: "16px" }}>
      <h3>Entry {seq}</h3>
      <Await of={loaded} what={`Entry ${seq}…`}>{(text) => <div class="segment" style={{ border: 0 }}><LongText text={text} /></div>}</Await>
      <Command words={["show", String(seq), "--in", thread]} />
    </div>
  );
}

// Two requests side by side

export function CompareView({ source, thread, one, other }: { source: Source; thread: string; one: number; other: number }) {
  const [a, b] = [Math.min(one, other), Math.max(one, other)];
  const found = useLoaded(() => source.compare(thread, a, b), [thread, a, b]);
  const left = useLoaded(() => source.request(thread, a), [thread, a]);
  const right = useLoaded(() => source.request(thread, b), [thread, b]);
  const choose = (event: Event) => {
    event.preventDefault();
    const fields = new FormData(event.currentTarget as HTMLFormElement);
    go(href(thread, "compare", Number(fields.get("one")), Number(fields.get("other"))));
  };
  return (
    <>
      <form class="row" onSubmit={choose} key={`${a} ${b}`}>
        <h2>Two requests</h2>
        <input name="one" type="number" min={1} value={a} aria-label="First request" style={{ width: "90px" }} />
        <span class="soft">and</span>
        <input name="other" type="number" min={1} value={b} aria-label="Second request" style={{ width: "90px" }} />
        <button type="submit">Compare</button>
      </form>
      <Await of={found} what="Comparing…">
        {(verdict) => (
          <>
            <Verdict verdict={verdict} />
            {left.error || right.error ? null : left.value && right.value ? <Beside thread={thread} verdict={verdict} left={left.value} right={right.value} /> : <Loading what="Reading both…" />}
            {left.value && right.value ? <Command words={["diff", thread, ...[left.value, right.value].map(({ column }) => `${column.turn}.${column.step}`)]} /> : null}
          </>
        )}
      </Await>
    </>
  );
}

function Verdict({ verdict }: { verdict: Comparison }) {
  const money = verdict.usd !== null && verdict.usd !== undefined ? dollars(verdict.usd) : `${count(verdict.units)} plain input tokens`;
  return (
    <p class="verdict" role="status">
      {verdict.extends ? (
        <>
          <Chip kind="read">no byte moved</Chip> Request {verdict.second} begins with all of request {verdict.first}
          {verdict.added ? <> and adds {count(verdict.added)} bytes</> : null}.
        </>
      ) : (
        <>
          <Chip kind="fresh">{verdict.byte === null || verdict.byte === undefined ? "moved" : `byte ${count(verdict.byte)} moved`}</Chip> The first difference is in {verdict.layer} ({visible(verdict.segment ?? "")}).
        </>
      )}{" "}
      {verdict.cause ? <>Cause: <b>{visible(verdict.cause)}</b>. </> : null}
      {verdict.again ? <>{count(verdict.again)} tokens that had been cached were paid for again: {money} more than reading them.</> : null}
    </p>
  );
}

function Beside({ thread, verdict, left, right }: { thread: string; verdict: Comparison; left: RequestDetail; right: RequestDetail }) {
  const [rows, same] = useMemo(() => {
    const differs = (segment: Segment) => (segment.place ?? 0) >= verdict.same;
    const [a, b] = [left.segments.filter(differs), right.segments.filter(differs)];
    return [aligned(a, b), left.segments.filter((segment) => !differs(segment))];
  }, [left, right, verdict]);
  const tokens = same.reduce((sum, segment) => sum + segment.tokens, 0);
  return (
    <Card title="Side by side" more={<span class="soft small">{plural(same.length, "segment")} stand as they stood ({count(tokens)} tokens)</span>}>
      <div class="pair">
        <div class="together">Request <a href={href(thread, "request", left.column.n)}>{left.column.n}</a>, {count(left.column.tokens)} tokens</div>
        <div class="together">Request <a href={href(thread, "request", right.column.n)}>{right.column.n}</a>, {count(right.column.tokens)} tokens</div>
      </div>
      {rows.length ? (
        <Rows
          label="Segments side by side"
          count={rows.length}
          size={120}
          height={680}
          row={(index) => {
            const [a, b] = rows[index]!;
            const cut = index === 0 && !verdict.extends && a && b ? firstDifference(a.text, b.text) : -1;
            const moved = a && b && a.sha256 === b.sha256;
            return (
              <div class={`pair ${moved ? "soft" : ""}`}>
                <Piece segment={a} cut={cut} />
                {moved ? <div class="piece small">the same words, written again</div> : <Piece segment={b} cut={cut} />}
              </div>
            );
          }}
        />
      ) : (
        <State title="They are the same" />
      )}
    </Card>
  );
}

type Pair = [Segment | undefined, Segment | undefined];

/** Segments beside each other: those that stand in both requests on one line. */
function aligned(a: Segment[], b: Segment[]): Pair[] {
  const later = new Map(b.map((segment, at) => [segment.sha256, at]));
  const earlier = new Set(a.map((segment) => segment.sha256));
  const out: Pair[] = [];
  let at = 0;
  for (const segment of a) {
    const to = later.get(segment.sha256);
    if (to !== undefined && to >= at) {
      while (at < to) out.push([undefined, b[at++]]);
      out.push([segment, b[at++]]);
    } else {
      out.push([segment, b[at] && !earlier.has(b[at]!.sha256) ? b[at++] : undefined]);
    }
  }
  while (at < b.length) out.push([undefined, b[at++]]);
  return out;
}

function firstDifference(one: string, other: string) {
  let at = 0;
  while (at < one.length && at < other.length && one[at] === other[at]) at++;
  return at;
}

const AROUND = 600;
function Piece({ segment, cut }: { segment: Segment | undefined; cut: number }) {
  if (!segment) return <div class="piece soft small">–</div>;
  const from = cut > AROUND ? cut - AROUND : 0;
  const text = segment.text;
  return (
    <div class="piece">
      <div class="row small">
        <span class="layer">{segment.layer}</span>
        <b>{visible(segment.role)}</b>
        <span class="soft">{visible(segment.title)}</span>
        {segment.made ? <Chip kind="written">{segment.made}</Chip> : null}
        <span class="soft push">{count(segment.tokens)} tokens</span>
      </div>
      <pre tabIndex={0}>
        {cut >= 0 ? (
          <>
            {from ? "…" : ""}{visible(text.slice(from, cut))}
            <mark class="moved">{visible(text.slice(cut, cut + 1)) || "∎"}</mark>
            {visible(text.slice(cut + 1, cut + AROUND))}
          </>
        ) : (
          visible(text.slice(0, AROUND))
        )}
      </pre>
    </div>
  );
}
