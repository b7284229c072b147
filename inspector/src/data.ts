// What the views show, and where it comes from: the service's API, or the values that a report holds.

export interface RebaseNote {
  reason: string;
  freed: number;
  actions: Record<string, number>;
  entry: number;
  summary: string;
}

export interface Column {
  n: number;
  turn: number;
  step: number;
  epoch?: number;
  at?: number | null;
  model?: string;
  bands?: number[];
  tokens?: number;
  limit?: number;
  read?: number;
  written?: number;
  fresh?: number;
  output?: number;
  reported?: boolean;
  cold?: boolean;
  usd?: number | null;
  units?: number;
  left_out?: number;
  rebase?: RebaseNote | null;
  refused?: string;
  ahead?: boolean;
  asked?: string;
}

export interface Picture {
  thread: string;
  entries: number;
  columns: Column[];
  bands: string[];
  policy: Policy;
}

export interface Policy {
  budget: number;
  reply: number;
  promote: string;
  floor: number;
  handles: number;
  summary: number;
  opening: number;
  read: number;
  write: number;
  ttl_s: number | null;
  model: string;
}

export interface Segment {
  layer: string;
  role: string;
  title: string;
  tokens: number;
  sha256: string;
  text: string;
  characters: number;
  entries?: number[];
  since?: number;
  since_at?: number | null;
  made?: string;
  new?: boolean;
  /** Which of the pieces that caches compare it belongs to. */
  place?: number;
}

export interface LeftOut {
  reason: string;
  entries: [number, number][];
}

export interface RequestDetail {
  column: Column;
  /** The number of the thread's newest request. */
  last: number;
  policy: Policy;
  layers: { id: string; tokens: number; sha256: string }[];
  segments: Segment[];
  left_out: LeftOut[];
  summary: string;
}

export interface Finding {
  row: string;
  path: string;
  message: string;
  fix: string;
  severity: "error" | "warning";
}

export interface RequestBody {
  target: string;
  body: unknown;
  headers: Record<string, string>;
  findings: Finding[];
  left_out: LeftOut[];
}

export interface Comparison {
  first: number;
  second: number;
  same: number;
  extends: boolean;
  byte?: number | null;
  added?: number;
  layer?: string;
  segment?: string;
  entries?: number[];
  cause?: string;
  again?: number;
  usd?: number | null;
  units?: number;
}

export type Standing = "verbatim" | "library" | "summary" | "handle" | "nothing";

export interface Whereabouts {
  text: string;
  entered: { seq: number; kind: string; turn: number; at: number | null; around: string }[];
  count: number;
  stretches: { standing: Standing; first: number; last: number; by?: string }[];
  recalled: number[] | null;
}

export interface Outcome {
  policy: string;
  requests: number;
  tokens: number;
  read: number;
  cost: number;
  usd: number | null;
  kept: number;
  actions: number;
  grounded: number;
  cuts: number[];
  over: number;
}

export interface WhatIf {
  outcomes: Outcome[];
  optimum: { cost: number | null; cuts: number[] } | null;
}

export interface ThreadRow {
  name: string;
  entries: number;
  parent?: string;
  model?: string;
  turns?: number;
  requests?: number;
  tokens?: number;
  usd?: number | null;
  read?: number;
  spark?: number[];
  at?: number | null;
}

export interface Entry {
  seq: number;
  kind: string;
  id: string;
  text?: string;
  content?: string;
  name?: string;
  args?: unknown;
  call_id?: string;
  outcome?: string;
  at?: number;
  [more: string]: unknown;
}

export interface Found {
  by: string;
  /** Whether any hit has to do with what was asked at all. */
  relevant: boolean;
  /** Entries that only words find so far. */
  unread: number;
  hits: { thread: string; seq: number; score: number; by: string; kind: string; text: string; words: string[]; parts: Record<string, number> }[];
}

export interface Spent {
  requests: number;
  input?: number;
  read?: number;
  written?: number;
  lost: number;
  lost_usd: number;
  usd?: number;
}

export interface Loss {
  cause: string;
  confidence: string;
  lost: number;
  usd: number | null;
  source: string;
  path?: string;
  offset?: number;
  note?: string;
}

export interface AuditReport {
  total: Spent;
  causes: (Spent & { cause: string; what: string; fix: string })[];
  conversations: (Spent & { name: string; kind: string; bodies: boolean; losses: Loss[] })[];
  what_if?: Outcome[];
}

export class Problem extends Error {
  constructor(
    message: string,
    readonly hint = "",
    readonly status = 0,
    readonly state: unknown = null,
  ) {
    super(message);
  }
}

/** Where the data of the views comes from. `live` says whether turns can be run and policies tried. */
export interface Source {
  live: boolean;
  threads(): Promise<ThreadRow[]>;
  picture(thread: string): Promise<Picture>;
  request(thread: string, n: number): Promise<RequestDetail>;
  text(thread: string, n: number, place: number): Promise<string>;
  body(thread: string, n: number, target: string): Promise<RequestBody>;
  compare(thread: string, first: number, second: number): Promise<Comparison>;
  where(thread: string, text: string): Promise<Whereabouts>;
  whatIf(thread: string, changes: Record<string, string>): Promise<WhatIf>;
  entry(thread: string, seq: number): Promise<string>;
}

/** What is said where nobody answers, or an answer breaks off. */
export const silence = () => new Problem("the service does not answer", "Is `quire serve` still running?");

export async function api<T>(path: string, init: RequestInit = {}): Promise<T> {
  const given: Record<string, string> = init.body === undefined ? {} : { "content-type": "application/json" };
  let reply: Response;
  try {
    reply = await fetch(`/api/${path}`, { ...init, headers: { ...given, ...keyHeader(), ...(init.headers as Record<string, string>) } });
  } catch {
    throw silence();
  }
  if (reply.status === 204) return undefined as T;
  const value = await reply.json().catch(() => null);
  if (!reply.ok) {
    throw new Problem(value?.detail || value?.title || reply.statusText, value?.hint ?? "", reply.status, value?.state);
  }
  return value as T;
}

/** The key of a service that asks for one, kept for this tab alone. */
// A header with other signs would never leave: what is no key is refused by the service, and asked for again.
export const keepKey = (key: string) => sessionStorage.setItem("quire-key", key.replace(/[^ -~]/g, "?"));
export function keyHeader(): Record<string, string> {
  const key = sessionStorage.getItem("quire-key");
  return key ? { authorization: `Bearer ${key}` } : {};
}

const query = (fields: Record<string, string | number>) =>
  new URLSearchParams(Object.entries(fields).map(([name, value]) => [name, String(value)])).toString();

export const served: Source = {
  live: true,
  threads: async () => (await api<{ threads: ThreadRow[] }>("inspect/threads")).threads,
  picture: (thread) => api(`inspect/threads/${encodeURIComponent(thread)}`),
  request: (thread, n) => api(`inspect/threads/${encodeURIComponent(thread)}/request?${query({ n })}`),
  text: async (thread, n, place) =>
    (await api<{ text: string }>(`inspect/threads/${encodeURIComponent(thread)}/text?${query({ n, place })}`)).text,
  body: (thread, n, target) =>
    api(`inspect/threads/${encodeURIComponent(thread)}/body?${query({ n, target })}`),
  compare: (thread, first, second) =>
    api(`inspect/threads/${encodeURIComponent(thread)}/compare?${query({ first, second })}`),
  where: (thread, text) => api(`inspect/threads/${encodeURIComponent(thread)}/where?${query({ text })}`),
  whatIf: (thread, changes) =>
    api(`inspect/threads/${encodeURIComponent(thread)}/what-if?${query(changes)}`),
  entry: async (thread, seq) => {
    const found = await api<{ text: string }>(
      `inspect/threads/${encodeURIComponent(thread)}/entry?${query({ seq })}`,
    );
    return found.text;
  },
};

// A report: every text once, every request as what it adds to the one before it.

interface SharedRequest {
  same: number;
  more: (number | number[])[];
  user?: [number, number[]];
  layers?: Record<string, string>;
  left_out?: LeftOut[];
}

export interface Report {
  picture: Picture;
  rows: Omit<Segment, "text">[];
  texts: Record<string, string>;
  requests: (SharedRequest | null)[];
  bodies: Record<string, RequestBody>;
  compared: Record<string, Comparison>;
  what_if: WhatIf | null;
  made: { version: string; command: string };
}

const only = (what: string, command: string) =>
  Promise.reject(new Problem(`this report does not hold ${what}`, `Open the thread itself: ${command}`));

const LAYER_BANDS: Record<string, number[]> = { L1: [0, 1], L2: [2], L3: [4], L4: [3, 6], L5: [5] };

/** A report's requests, put together again. */
export function reported(report: Report): Source {
  const { picture, rows, texts, requests } = report;
  const pieces: number[][][] = [];
  const layers: Record<string, string>[] = [];
  const left: LeftOut[][] = [];
  requests.forEach((each, n) => {
    const before = pieces[n - 1] ?? [];
    pieces.push(each ? [...before.slice(0, each.same), ...each.more.map((row) => [row].flat())] : before);
    layers.push({ ...layers[n - 1], ...each?.layers });
    left.push(each?.left_out ?? left[n - 1] ?? []);
  });
  const since = (n: number): number[] => {
    const out: number[] = [];
    let end = pieces[n - 1]!.length;
    for (let place = n; place > 0 && end > 0; place--) {
      const each = requests[place - 1];
      if (!each) continue;
      const same = picture.columns[place - 1]!.cold || place === 1 ? 0 : Math.min(each.same, end);
      for (let at = same; at < end; at++) out[at] = place;
      end = same;
    }
    return out;
  };
  const segments = (n: number): Segment[] => {
    const begun = since(n);
    const user = requests[n - 1]?.user;
    return pieces[n - 1]!.flatMap((made, place) =>
      (user && user[0] === place ? user[1] : made).map((row) => {
        const each = rows[row]!;
        const first = begun[place] ?? n;
        const at = picture.columns[first - 1]?.at;
        return { ...each, text: texts[each.sha256] ?? "", since: first, since_at: at, new: first === n, place };
      }),
    );
  };
  const command = `quire open '${picture.thread}'`;
  return {
    live: false,
    threads: async () => [{ name: picture.thread, entries: picture.entries }],
    picture: async () => picture,
    request: async (_, n) => {
      const column = picture.columns[n - 1];
      if (!column) throw new Problem(`there is no request ${n}`, `Requests 1 to ${picture.columns.length} are here.`);
      const bands = column.bands ?? [];
      return {
        column,
        last: picture.columns.length,
        policy: picture.policy,
        layers: Object.entries(layers[n - 1] ?? {}).map(([id, sha256]) => ({
          id,
          sha256,
          tokens: (LAYER_BANDS[id] ?? []).reduce((sum, band) => sum + (bands[band] ?? 0), 0),
        })),
        segments: requests[n - 1] ? segments(n) : [],
        left_out: left[n - 1] ?? [],
        summary: column.rebase?.summary ?? "",
      };
    },
    text: async (_, n, place) => segments(n)[place]?.text ?? "",
    body: async (_, n, target) => {
      const found = Object.values(report.bodies).find((body) => !target || body.target === target);
      const own = report.bodies[n];
      return own && (!target || own.target === target)
        ? own
        : only(`the body of request ${n}${found && target ? ` for ${target}` : ""}`, command);
    },
    compare: async (_, first, second) => {
      const [a, b] = [Math.min(first, second), Math.max(first, second)];
      const known = report.compared[`${a}-${b}`];
      if (known) return known;
      const [one, other] = [pieces[a - 1] ?? [], pieces[b - 1] ?? []];
      const words = (piece: number[] | undefined) => piece?.map((row) => rows[row]!.sha256).join(" ");
      let same = 0;
      while (same < one.length && words(one[same]) === words(other[same])) same++;
      const there = rows[other[same]?.[0] ?? -1];
      const cut = picture.columns.slice(a, b).find((column) => column.rebase);
      const at = cut ? ` at turn ${cut.turn}.${cut.step}` : "";
      return {
        first: a,
        second: b,
        same,
        extends: same === one.length,
        layer: there?.layer ?? "",
        segment: there?.title || there?.role || "",
        cause: cut?.rebase ? `rebase (${cut.rebase.reason})${at}` : "",
      };
    },
    where: async (_, text) => whereabouts(report, pieces, text),
    whatIf: async () => report.what_if ?? only("other policies", command),
    entry: async (_, seq) => {
      const row = rows.find((each) => each.entries?.includes(seq) && !each.made);
      return row ? (texts[row.sha256] ?? "") : only(`entry ${seq}`, `quire show ${seq} --in ${picture.thread}`);
    },
  };
}

const STANDING: Standing[] = ["verbatim", "library", "handle", "summary"];

/** Where a string went, found among the texts that a report holds. */
function whereabouts(report: Report, pieces: number[][][], text: string): Whereabouts {
  const { rows, texts, picture } = report;
  const as = rows.map((row): Standing => {
    if (!text || !(texts[row.sha256] ?? "").includes(text)) return "nothing";
    if (row.made === "library" || row.made === "summary") return row.made;
    return row.made ? "handle" : "verbatim";
  });
  const entered = new Map<number, Whereabouts["entered"][number]>();
  const stretches: Whereabouts["stretches"] = [];
  picture.columns.forEach((column, n) => {
    const held = (pieces[n] ?? []).flat();
    if (!report.requests[n] || column.ahead) return;
    for (const row of held) {
      const seqs = rows[row]!.entries ?? [];
      const seq = seqs[0];
      if (as[row] !== "verbatim" || seq === undefined || entered.has(seq)) continue;
      const said = texts[rows[row]!.sha256]!;
      const at = said.indexOf(text);
      const around = said.slice(Math.max(0, at - 60), at + text.length + 60);
      entered.set(seq, { seq, kind: rows[row]!.role, turn: column.turn, at: column.at ?? null, around });
    }
    const found = new Set(held.map((row) => as[row]));
    const standing = STANDING.find((kind) => found.has(kind)) ?? "nothing";
    const last = stretches.at(-1);
    if (last?.standing === standing) last.last = column.n;
    else if (last || standing !== "nothing") {
      const by = column.rebase && last ? `rebase (${column.rebase.reason})` : "";
      stretches.push({ standing, first: column.n, last: column.n, by });
    }
  });
  const hits = [...entered.values()].sort((a, b) => a.seq - b.seq);
  return { text, entered: hits.slice(0, 50), count: hits.length, stretches, recalled: null };
}
