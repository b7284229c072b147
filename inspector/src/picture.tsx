// A thread as one picture: a column for each request, stacked in the order of the wire, coloured by what the cache did.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Column, Picture, Source } from "./data";
import { go, href, theme } from "./route";
import { Await, Card, Chip, Command, Figures, Rows, State, ago, count, csv, dollars, moment, percent, plural, save, short, useLoaded, visible } from "./ui";

export const BAND_NAMES: Record<string, string> = {
  tools: "tools",
  L1: "system prompt",
  L2: "library",
  L4: "history",
  L3: "this turn's context",
  L5: "the user's words",
  "L4 now": "this turn's calls",
};
const STATES = ["read", "written", "fresh"] as const;
type State3 = (typeof STATES)[number];
// How strongly each band shows its colour: neighbours differ.
const STRENGTH = [0.98, 0.76, 0.9, 0.62, 0.82, 1, 0.72];

const rgb = (colour: string): [number, number, number] => {
  const n = Number.parseInt(colour.trim().slice(1), 16);
  return [n >> 16, (n >> 8) & 255, n & 255];
};
const mix = (one: string, other: string, share: number) => {
  const [a, b] = [rgb(one), rgb(other)];
  return `rgb(${a.map((value, i) => Math.round(value * share + b[i]! * (1 - share))).join(",")})`;
};

export interface Colours {
  bands: Record<State3, string[]>;
  ink: string;
  soft: string;
  line: string;
  epoch: string;
  card: string;
  fresh: string;
}

export function colours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(name).trim();
  const card = of("--card");
  const bands = Object.fromEntries(
    STATES.map((state) => [state, STRENGTH.map((share) => mix(of(`--${state}`), card, share))]),
  ) as Record<State3, string[]>;
  return { bands, ink: of("--ink"), soft: of("--soft"), line: of("--strong-line"), epoch: of("--epoch"), card, fresh: of("--fresh") };
}

/** The bands of a request cut where the cache's reading ends: [band, state, from, to] in tokens. */
export function parts(column: Column): [number, State3, number, number][] {
  const bands = column.bands ?? [];
  const total = bands.reduce((sum, each) => sum + each, 0);
  const whole = (column.read ?? 0) + (column.written ?? 0) + (column.fresh ?? 0);
  const read = whole ? (total * (column.read ?? 0)) / whole : 0;
  const written = whole ? read + (total * (column.written ?? 0)) / whole : total;
  const ends: [State3, number][] = [["read", read], ["written", written], ["fresh", Number.POSITIVE_INFINITY]];
  const out: [number, State3, number, number][] = [];
  let from = 0;
  bands.forEach((size, band) => {
    const end = from + size;
    for (const [state, to] of ends) {
      const stop = Math.min(end, to);
      if (stop - from > 0.5) {
        out.push([band, state, from, stop]);
        from = stop;
      }
    }
    from = end;
  });
  return out;
}

// Drawn with one pen on a canvas, and with another into SVG.
interface Pen {
  rect(x: number, y: number, w: number, h: number, colour: string): void;
  line(x1: number, y1: number, x2: number, y2: number, colour: string, width: number, dash?: number[]): void;
  text(x: number, y: number, text: string, colour: string, size: number): number;
}

const canvasPen = (ctx: CanvasRenderingContext2D): Pen => ({
  rect(x, y, w, h, colour) {
    ctx.fillStyle = colour;
    ctx.fillRect(x, y, w, h);
  },
  line(x1, y1, x2, y2, colour, width, dash = []) {
    ctx.strokeStyle = colour;
    ctx.lineWidth = width;
    ctx.setLineDash(dash);
    ctx.beginPath();
    ctx.moveTo(x1, y1);
    ctx.lineTo(x2, y2);
    ctx.stroke();
    ctx.setLineDash([]);
  },
  text(x, y, text, colour, size) {
    ctx.font = `${size}px system-ui, sans-serif`;
    ctx.fillStyle = colour;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    ctx.fillText(text, x, y);
    return ctx.measureText(text).width;
  },
});

const escaped = (text: string) => text.replace(/[<>&"]/g, (each) => `&#${each.charCodeAt(0)};`);
class SvgPen implements Pen {
  private readonly out: string[] = [];
  rect(x: number, y: number, w: number, h: number, colour: string) {
    this.out.push(`<rect x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${w.toFixed(1)}" height="${h.toFixed(1)}" fill="${colour}"/>`);
  }
  line(x1: number, y1: number, x2: number, y2: number, colour: string, width: number, dash: number[] = []) {
    const points = `x1="${x1.toFixed(1)}" y1="${y1.toFixed(1)}" x2="${x2.toFixed(1)}" y2="${y2.toFixed(1)}"`;
    this.out.push(`<line ${points} stroke="${colour}" stroke-width="${width}" stroke-dasharray="${dash.join(" ")}"/>`);
  }
  text(x: number, y: number, text: string, colour: string, size: number) {
    this.out.push(`<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" fill="${colour}" font-size="${size}" font-family="sans-serif">${escaped(visible(text))}</text>`);
    return text.length * size * 0.55;
  }
  svg(width: number, height: number, title: string) {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><title>${escaped(visible(title))}</title>${this.out.join("")}</svg>`;
  }
}

interface Frame {
  left: number;
  top: number;
  width: number;
  height: number;
  x: (n: number) => number;
  y: (tokens: number) => number;
  scale: number;
}

function drawColumns(pen: Pen, columns: Column[], first: number, last: number, frame: Frame, paint: Colours) {
  const { x, y, scale } = frame;
  const bottom = frame.top + frame.height;
  for (let at = first; at <= last; at++) {
    const column = columns[at - 1];
    if (column && (column.epoch ?? 0) % 2 === 0 && column.epoch) {
      pen.rect(x(at - 0.5), frame.top, x(at + 0.5) - x(at - 0.5) + 0.5, frame.height, paint.epoch);
    }
  }
  const wide = x(first + 1) - x(first);
  const gap = wide > 5 * scale ? Math.min(2 * scale, wide * 0.15) : 0;
  // What was read first, then the rest: where columns are thinner than a pixel, what was paid for stays in sight.
  for (const paid of [false, true]) {
    for (let at = first; at <= last; at++) {
      const column = columns[at - 1];
      if (!column) continue;
      const left = x(at - 0.5);
      const least = paid ? (column.rebase || column.cold ? 2 * scale : Math.min(1, wide * 1.05)) : Math.min(1, wide * 1.05);
      const width = Math.max(x(at + 0.5) - left - gap, least);
      if (column.refused) {
        pen.rect(left, bottom - 10 * scale, Math.max(width, 2), 10 * scale, paint.fresh);
        continue;
      }
      for (const [band, state, from, to] of parts(column)) {
        if ((state !== "read") === paid) pen.rect(left, y(to), width, y(from) - y(to), paint.bands[state][band]!);
      }
      if (paid && column.ahead) pen.line(left, y(column.tokens ?? 0), left + width, y(column.tokens ?? 0), paint.ink, 2 * scale, [3, 3]);
    }
  }
  for (let at = first; at <= last; at++) {
    const level = columns[at - 1]?.limit ?? 0;
    if (level && y(level) >= frame.top) pen.line(x(at - 0.5), y(level), x(at + 0.5), y(level), paint.soft, scale);
  }
  let free = Number.NEGATIVE_INFINITY;
  for (let at = first; at <= last; at++) {
    const column = columns[at - 1];
    if (!column?.rebase && !column?.cold) continue;
    const left = x(at - 0.5) + (gap ? 0 : scale);
    if (!column.rebase) {
      if (gap && left > free) free = left + pen.text(left, y(column.tokens ?? 0) - 5 * scale, "expired", paint.soft, 11 * scale) + 8 * scale;
      continue;
    }
    pen.line(left, frame.top + 16 * scale, left, y(column.tokens ?? 0), paint.ink, scale, [3 * scale, 3 * scale]);
    // A word at the right edge ends there.
    const edge = frame.left + frame.width - column.rebase.reason.length * 6.2 * scale;
    if (left > free) free = left + pen.text(Math.min(left - 2 * scale, edge), frame.top + 11 * scale, column.rebase.reason, paint.ink, 11 * scale) + 8 * scale;
  }
}

const highest = (columns: Column[]) => {
  const most = Math.max(1, ...columns.map((column) => column.tokens ?? 0));
  const limit = Math.max(0, ...columns.map((column) => column.limit ?? 0));
  return limit && limit < 1.6 * most ? limit * 1.12 : most * 1.12;
};

class Chart {
  private readonly plot: uPlot;
  private readonly money: uPlot;
  first: number;
  last: number;
  constructor(
    private readonly box: HTMLElement,
    private readonly columns: Column[],
    private readonly hooks: { hover: (n: number | null) => void; open: (n: number) => void; moved: () => void },
  ) {
    const xs = columns.map((column) => column.n);
    this.first = 0.5;
    this.last = columns.length + 0.5;
    const priced = columns.some((column) => column.usd);
    const costs = columns.map((column) => (priced ? (column.usd ?? 0) : (column.units ?? 0)));
    const sync = { key: "thread" };
    const axis = (more: uPlot.Axis): uPlot.Axis => ({
      stroke: () => colours().soft,
      grid: { stroke: () => colours().line, width: 0.5 },
      ticks: { show: false },
      font: "12px system-ui, sans-serif",
      ...more,
    });
    const common = (height: number): Pick<uPlot.Options, "width" | "height" | "legend" | "cursor" | "padding"> => ({
      width: box.clientWidth - 16,
      height,
      legend: { show: false },
      padding: [8, 16, height < 200 ? 8 : 0, 0],
      cursor: { sync, points: { show: false }, y: false, drag: { x: true, y: false, setScale: false } },
    });
    const select = (u: uPlot) => {
      if (u.select.width > 4) this.show(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    };
    this.plot = new uPlot(
      {
        ...common(Math.max(240, Math.min(420, window.innerHeight * 0.44))),
        scales: { x: { time: false, range: () => [this.first, this.last] }, y: { range: [0, highest(columns)] } },
        axes: [
          axis({ values: (_, all) => all.map((value) => (Number.isInteger(value) ? String(value) : "")), size: 24, gap: 2 }),
          axis({ values: (_, all) => all.map((value) => short(value)), size: 56 }),
        ],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: {
          draw: [(u) => this.draw(u)],
          setSelect: [select],
          setCursor: [(u) => hooks.hover(u.cursor.idx === null || u.cursor.idx === undefined || (u.cursor.left ?? -1) < 0 ? null : u.cursor.idx + 1)],
        },
      },
      [xs, columns.map((column) => column.tokens ?? 0)],
      box,
    );
    this.money = new uPlot(
      {
        ...common(100),
        scales: { x: { time: false, range: () => [this.first, this.last] }, y: { range: (_, __, most) => [0, most || 1] } },
        axes: [axis({ show: false }), axis({ values: (_, all) => all.map((value) => (priced ? dollars(value) : short(value))), size: 56, space: 24 })],
        series: [{}, { fill: () => colours().soft, width: 0, paths: uPlot.paths.bars!({ size: [0.9, 40] }), points: { show: false } }],
        hooks: { setSelect: [select] },
      },
      [xs, costs],
      box,
    );
    for (const plot of [this.plot, this.money]) {
      let pressed = 0;
      plot.over.addEventListener("pointerdown", (event) => (pressed = event.clientX));
      plot.over.addEventListener("click", (event) => {
        const at = plot.cursor.idx;
        if (Math.abs(event.clientX - pressed) < 4 && at !== null && at !== undefined) hooks.open(at + 1);
      });
      plot.over.addEventListener("wheel", (event) => this.wheel(event, plot), { passive: false });
      plot.over.addEventListener("dblclick", () => this.show(0.5, columns.length + 0.5));
    }
  }

  private wheel(event: WheelEvent, plot: uPlot) {
    if (!event.ctrlKey && Math.abs(event.deltaY) > Math.abs(event.deltaX) && !event.shiftKey) return;
    event.preventDefault();
    const delta = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.deltaY;
    if (event.ctrlKey) this.zoom(delta > 0 ? 1.25 : 0.8, plot.posToVal(event.offsetX, "x"));
    else this.pan((delta / plot.over.clientWidth) * (this.last - this.first));
  }

  private draw(u: uPlot) {
    const scale = devicePixelRatio;
    const { left, top, width, height } = u.bbox;
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(left, top, width, height);
    u.ctx.clip();
    const frame = { left, top, width, height, scale, x: (n: number) => u.valToPos(n, "x", true), y: (t: number) => u.valToPos(t, "y", true) };
    drawColumns(canvasPen(u.ctx), this.columns, Math.max(1, Math.floor(this.first)), Math.min(this.columns.length, Math.ceil(this.last)), frame, colours());
    u.ctx.restore();
  }

  show(first: number, last: number) {
    const most = this.columns.length + 0.5;
    const wide = Math.min(Math.max(last - first, 8), most - 0.5);
    this.first = Math.max(0.5, Math.min(first, most - wide));
    this.last = this.first + wide;
    this.redraw();
    this.hooks.moved();
  }
  pan(by: number) {
    this.show(this.first + by, this.last + by);
  }
  zoom(by: number, around = (this.first + this.last) / 2) {
    this.show(around - (around - this.first) * by, around + (this.last - around) * by);
  }
  /** Put the cursor on a request, and move there if it is out of sight. */
  point(n: number) {
    if (n < this.first || n > this.last) this.pan(n - (this.first + this.last) / 2);
    // By the range that was just set: the plot itself takes it over a moment later.
    const left = ((n - this.first) / (this.last - this.first)) * this.plot.over.clientWidth;
    this.plot.setCursor({ left, top: 10 });
  }
  redraw() {
    for (const plot of [this.plot, this.money]) plot.redraw(false, true), plot.setScale("x", { min: this.first, max: this.last });
  }
  resize() {
    const width = this.box.clientWidth - 16;
    for (const plot of [this.plot, this.money]) plot.setSize({ width, height: plot.height });
  }
  canvas() {
    return this.plot.ctx.canvas;
  }
  destroy() {
    this.plot.destroy();
    this.money.destroy();
  }
}

export function svgOf(picture: Picture): string {
  const { columns } = picture;
  const [width, height, paint, pen] = [1600, 480, colours(), new SvgPen()];
  const most = highest(columns);
  const frame: Frame = {
    left: 60, top: 40, width: width - 80, height: height - 70, scale: 1,
    x: (n) => 60 + ((n - 0.5) / columns.length) * (width - 80),
    y: (tokens) => height - 30 - (tokens / most) * (height - 70),
  };
  pen.rect(0, 0, width, height, paint.card);
  pen.text(20, 26, picture.thread, paint.ink, 16);
  drawColumns(pen, columns, 1, columns.length, frame, paint);
  for (let step = 0; step <= 4; step++) pen.text(8, frame.y((most * step) / 4) + 4, short((most * step) / 4), paint.soft, 12);
  return pen.svg(width, height, `${picture.thread}: ${columns.length} requests`);
}

function pngOf(chart: Chart, picture: Picture) {
  const from = chart.canvas();
  const to = document.createElement("canvas");
  const bar = 40 * devicePixelRatio;
  [to.width, to.height] = [from.width, from.height + bar];
  const ctx = to.getContext("2d")!;
  const paint = colours();
  const pen = canvasPen(ctx);
  pen.rect(0, 0, to.width, to.height, paint.card);
  pen.text(16 * devicePixelRatio, 26 * devicePixelRatio, visible(picture.thread), paint.ink, 16 * devicePixelRatio);
  ctx.drawImage(from, 0, bar);
  to.toBlob((blob) => blob && save(`${picture.thread}.png`, blob));
}

const CSV = ["n", "turn", "step", "epoch", "at", "model", "tokens", "read", "written", "fresh", "output", "reported", "usd", "units", "left_out", "refused"] as const;
export const csvOf = (columns: Column[]) =>
  csv([...CSV, "rebase"], columns.map((column) => [...CSV.map((name) => column[name]), column.rebase?.reason]));

export const totals = (columns: Column[]) => {
  const sum = (name: "read" | "written" | "fresh" | "units" | "tokens") => columns.reduce((all, column) => all + (column.ahead ? 0 : (column[name] ?? 0)), 0);
  const [read, written, fresh] = [sum("read"), sum("written"), sum("fresh")];
  const known = columns.filter((column) => !column.ahead && !column.refused);
  const usd = known.every((column) => column.usd === null || column.usd === undefined) ? null : known.reduce((all, column) => all + (column.usd ?? 0), 0);
  // How many tokens the provider counts where one is counted here.
  const factor = (read + written + fresh) / (sum("tokens") || 1) || 1;
  return { read, written, fresh, units: sum("units"), usd, factor, reported: columns.some((column) => column.reported) };
};

export const edits = (actions: Record<string, number>) =>
  Object.entries(actions).map(([action, n]) => `${plural(n, "entry")} ${EDITS[action] ?? action}`).join(", ") || "nothing was left out";
const EDITS: Record<string, string> = { drop: "left out", handle: "as handles", fold: "folded away", cut: "shortened", supersede: "superseded by newer ones" };

function Reading({ column }: { column: Column | undefined }) {
  if (!column) return <div class="reading soft">Point at a request to read it, click to open it. Drag to look closer; double-click shows all.</div>;
  const whole = (column.read ?? 0) + (column.written ?? 0) + (column.fresh ?? 0);
  return (
    <div class="reading">
      <b>Request {column.n}</b>
      <span>turn {column.turn}.{column.step}, epoch {column.epoch ?? "–"}</span>
      {column.refused ? <span class="chip error">refused: {visible(column.refused)}</span> : null}
      <span><b>{count(column.tokens)}</b> of {count(column.limit)} tokens</span>
      <span>{column.reported ? "" : "foreseen: "}<b>{percent(column.read ?? 0, whole)}</b> read, {count(column.written)} written{column.fresh ? `, ${count(column.fresh)} new` : ""}</span>
      <span>{column.usd !== null && column.usd !== undefined ? dollars(column.usd) : `${count(column.units)} plain input tokens`}</span>
      {column.cold ? <Chip kind="fresh">the cache had expired</Chip> : null}
      {column.rebase ? <Chip kind="written">rebase ({visible(column.rebase.reason)}): {count(column.rebase.freed)} tokens freed, {edits(column.rebase.actions)}</Chip> : null}
      {column.ahead ? <Chip>not sent yet</Chip> : null}
      <span class="soft">{moment(column.at)}</span>
    </div>
  );
}

export function PictureView({ source, thread, changed }: { source: Source; thread: string; changed: number }) {
  const loaded = useLoaded(() => source.picture(thread), [thread, changed]);
  return (
    <Await of={loaded} what="Folding the thread…">
      {(picture) => <Drawn picture={picture} />}
    </Await>
  );
}

function Drawn({ picture }: { picture: Picture }) {
  const { columns, thread } = picture;
  const box = useRef<HTMLDivElement>(null);
  const chart = useRef<Chart | null>(null);
  const [at, setAt] = useState<number | null>(null);
  // What is looked at; null: all, however much comes.
  const [range, setRange] = useState<[number, number] | null>(null);
  const [first, last] = range ?? [0.5, columns.length + 0.5];
  const dark = theme.value;
  useEffect(() => {
    if (!box.current || !columns.length) return;
    const made = new Chart(box.current, columns, {
      hover: setAt,
      open: (n) => go(href(thread, "request", n)),
      moved: () => setRange(made.last - made.first < columns.length - 0.01 ? [made.first, made.last] : null),
    });
    chart.current = made;
    if (range) made.show(...range);
    const watch = new ResizeObserver(() => made.resize());
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [picture]);
  useEffect(() => chart.current?.redraw(), [dark]);
  const cuts = useMemo(() => columns.filter((column) => column.rebase), [picture]);
  const sums = useMemo(() => totals(columns), [picture]);
  if (!columns.length) {
    return (
      <State title="No request yet">
        <span>Nobody has asked the model anything in this thread. <a href={href(thread, "chat")}>Talk to it</a>.</span>
      </State>
    );
  }
  const keys = (event: KeyboardEvent) => {
    const now = at ?? Math.round((first + last) / 2);
    const cut = (step: number) => (step > 0 ? cuts.find((each) => each.n > now) : [...cuts].reverse().find((each) => each.n < now))?.n ?? now;
    const moves: Record<string, () => void> = {
      ArrowRight: () => move(event.shiftKey ? cut(1) : now + 1),
      ArrowLeft: () => move(event.shiftKey ? cut(-1) : now - 1),
      Home: () => move(1),
      End: () => move(columns.length),
      "+": () => chart.current?.zoom(0.6, now),
      "=": () => chart.current?.zoom(0.6, now),
      "-": () => chart.current?.zoom(1.7, now),
      "0": () => chart.current?.show(0.5, columns.length + 0.5),
      Enter: () => go(href(thread, "request", now)),
    };
    const move = (n: number) => {
      const to = Math.min(columns.length, Math.max(1, n));
      chart.current?.point(to);
      setAt(to);
    };
    if (moves[event.key] && !event.ctrlKey && !event.metaKey) {
      moves[event.key]!();
      event.preventDefault();
      event.stopPropagation();
    }
  };
  const whole = sums.read + sums.written + sums.fresh;
  const largest = columns.reduce<Column | undefined>((best, column) => ((column.tokens ?? 0) > (best?.tokens ?? 0) ? column : best), undefined);
  const budget = picture.policy.budget - picture.policy.reply;
  const share = (n: number) => `${(100 * (n - 0.5)) / columns.length}%`;
  const drag = (event: PointerEvent) => {
    const track = event.currentTarget as HTMLElement;
    const to = (e: PointerEvent) => {
      const where = 0.5 + ((e.clientX - track.getBoundingClientRect().left) / track.clientWidth) * columns.length;
      chart.current?.pan(where - (chart.current.first + chart.current.last) / 2);
    };
    track.setPointerCapture(event.pointerId);
    to(event);
    track.onpointermove = to;
    track.onpointerup = () => (track.onpointermove = null);
  };
  return (
    <>
      <Figures
        of={[
          ["Requests", count(columns.length), `in ${plural(new Set(columns.map((column) => column.turn)).size, "turn")}`],
          ["Read from the cache", percent(sums.read, whole), `${short(sums.read)} of ${short(whole)} tokens${sums.reported ? " by the provider's count" : ""}`],
          ["Cost of input", sums.usd !== null ? dollars(sums.usd) : short(sums.units), sums.usd !== null ? "" : "plain input tokens"],
          ["Rebases", count(cuts.length), cuts.length ? [...new Set(cuts.map((column) => column.rebase!.reason))].join(", ") : "one epoch"],
          ["Largest request", count(largest?.tokens), largest?.limit ? `of ${count(largest.limit)}${largest.limit === budget ? "" : `; ${count(budget)} as the model counts`}` : ""],
        ]}
      />
      <Card
        title="Every request"
        more={
          <>
            <div class="legend">
              <span><i class="swatch read" />read from the cache</span>
              <span><i class="swatch written" />written to it</span>
              <span><i class="swatch fresh" />new, not cached</span>
              <span class="wide">─ limit</span>
              <span class="wide">┆ rebase</span>
              <span class="wide">▪ cost, below</span>
            </div>
            <div class="row push">
              <button class="plain" aria-label="Look closer" onClick={() => chart.current?.zoom(0.6)}>+</button>
              <button class="plain" aria-label="Look from further away" onClick={() => chart.current?.zoom(1.7)}>−</button>
              <button class="plain" onClick={() => chart.current?.show(0.5, columns.length + 0.5)}>All</button>
              <button class="plain" onClick={() => chart.current && pngOf(chart.current, picture)}>PNG</button>
              <button class="plain" onClick={() => save(`${thread}.svg`, svgOf(picture), "image/svg+xml")}>SVG</button>
              <button class="plain" onClick={() => save(`${thread}.csv`, csvOf(columns), "text/csv")}>CSV</button>
            </div>
          </>
        }
      >
        <div
          ref={box}
          class="chart"
          tabIndex={0}
          role="application"
          aria-label={`Tokens of ${columns.length} requests, and the cost of each below. Arrow keys move, shift with them goes to the next rebase, plus and minus look closer, Enter opens.`}
          onKeyDown={keys}
        />
        {range ? (
          <div class="track" onPointerDown={drag}>
            <i style={{ left: share(first), width: `${(100 * (last - first)) / columns.length}%` }} />
          </div>
        ) : null}
        <div aria-live="polite">
          <Reading column={at ? columns[at - 1] : undefined} />
        </div>
      </Card>
      {cuts.length ? <Rebases thread={thread} cuts={cuts} /> : null}
      <Requests thread={thread} columns={columns} at={at} />
      <Command words={["assemble", thread]} />
    </>
  );
}

function Rebases({ thread, cuts }: { thread: string; cuts: Column[] }) {
  return (
    <Card title={plural(cuts.length, "rebase")} more={<span class="soft small">Where the prefix was cut and written anew, and why</span>}>
      <div class="scroll" style={{ maxHeight: "320px" }} tabIndex={0} role="region" aria-label="Rebases">
        <table>
          <thead>
            <tr>
              <th>Request</th><th>Why</th><th class="num">Freed</th><th>What it did</th><th class="wide">When</th><th><span class="soft">Compare</span></th>
            </tr>
          </thead>
          <tbody>
            {cuts.map((column) => (
              <tr key={column.n}>
                <td><a href={href(thread, "request", column.n)}>{column.n}</a> <span class="soft small">turn {column.turn}.{column.step}</span></td>
                <td><Chip kind="written">{visible(column.rebase!.reason)}</Chip> <span class="small soft wide">{REASONS[column.rebase!.reason] ?? ""}</span></td>
                <td class="num">{count(column.rebase!.freed)}</td>
                <td>{edits(column.rebase!.actions)}</td>
                <td class="wide soft small nowrap">{moment(column.at)}</td>
                <td>{column.n > 1 ? <a href={href(thread, "compare", column.n - 1, column.n)}>with {column.n - 1}</a> : null}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

export const REASONS: Record<string, string> = {
  budget: "the budget was reached",
  rent: "carrying had cost as much as cutting",
  brim: "reading is free and the budget nearly used: a cheap moment",
  cold: "the cache had expired anyway",
  promote: "items moved into the library",
  tools: "the tools changed",
  asked: "somebody asked for it",
};

function Requests({ thread, columns, at }: { thread: string; columns: Column[]; at: number | null }) {
  return (
    <Card title="Requests" more={<span class="soft small">{columns.length > 40 ? "The newest are at the end" : ""}</span>}>
      <Rows
        label="Requests"
        count={columns.length}
        size={41}
        height={420}
        start={at && at > 1 ? at - 1 : undefined}
        row={(index) => <RequestLine thread={thread} column={columns[index]!} before={columns[index - 1]} chosen={at === index + 1} />}
      />
    </Card>
  );
}

function RequestLine({ thread, column, before, chosen }: { thread: string; column: Column; before: Column | undefined; chosen: boolean }) {
  const whole = (column.read ?? 0) + (column.written ?? 0) + (column.fresh ?? 0) || 1;
  const pause = column.at && before?.at ? column.at - before.at : 0;
  return (
    <div class="segment" style={chosen ? { background: "var(--sunken)" } : {}}>
      <a class="line-link" href={href(thread, "request", column.n)}>
        <span class="n">{column.n}</span>
        <span class="soft nowrap">{column.turn}.{column.step}</span>
        <span class="bar" role="img" aria-label={`${percent(column.read ?? 0, whole)} read`}>
          {STATES.map((state) => <i key={state} class={state} style={{ width: `${(100 * (column[state] ?? 0)) / whole}%` }} />)}
        </span>
        <span class="asked">{column.refused ? <span class="chip error">refused</span> : null}{column.rebase ? <Chip kind="written">{visible(column.rebase.reason)}</Chip> : null}{column.cold ? <Chip>expired{pause >= 240_000 ? ` after ${ago(pause)}` : ""}</Chip> : null} {column.asked ? visible(column.asked) : <span class="soft">with what its calls gave</span>}</span>
        <span class="num">{short(column.tokens)}</span>
      </a>
    </div>
  );
}
