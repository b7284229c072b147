// What if: the recorded thread under other policies, each recomputed over the whole of it.
import { useState } from "preact/hooks";
import type { Outcome, Policy, Source, WhatIf } from "./data";
import { totals } from "./picture";
import { place, refine } from "./route";
import { Await, Card, Chip, Command, Loading, State, Trouble, count, csv, dollars, percent, save, short, useLoaded, visible } from "./ui";

interface Control {
  name: keyof Policy;
  label: string;
  says: string;
  min: number;
  max: number;
  step: number;
  show: (value: number) => string;
}
const share = (value: number) => `${Math.round(value * 100)} %`;
const CONTROLS: Control[] = [
  { name: "budget", label: "Budget", says: "Tokens one request may hold", min: 10, max: 20, step: 0.25, show: (value) => count(value) },
  { name: "floor", label: "Floor", says: "Share that stays verbatim", min: 0.05, max: 0.9, step: 0.05, show: share },
  { name: "handles", label: "Handles", says: "Share for turns whose results are handles", min: 0, max: 0.9, step: 0.05, show: share },
  { name: "summary", label: "Summary", says: "Share for the summary of what went", min: 0, max: 0.5, step: 0.05, show: share },
  { name: "opening", label: "Opening", says: "Share for the first entries, which stay", min: 0, max: 0.6, step: 0.05, show: share },
  { name: "read", label: "Read price", says: "Of a cached token", min: 0, max: 1, step: 0.05, show: (value) => `× ${value}` },
  { name: "write", label: "Write price", says: "Of a token written to the cache", min: 1, max: 2.5, step: 0.05, show: (value) => `× ${value}` },
  { name: "ttl_s", label: "Cache life", says: "Seconds until an unused cache is cold", min: 0, max: 7200, step: 60, show: (value) => (value ? `${value / 60} min` : "for ever") },
];

// A budget is chosen by its order of magnitude.
const shown = (control: Control, value: number) => (control.name === "budget" ? Math.log2(Math.max(1024, value)) : value);
const meant = (control: Control, value: number) => (control.name === "budget" ? Math.round(2 ** value / 64) * 64 : value);

export function WhatIfView({ source, thread }: { source: Source; thread: string }) {
  const picture = useLoaded(() => source.picture(thread), [thread]);
  const query = place.value.query;
  const asked = JSON.stringify(query);
  const compared = useLoaded(() => source.whatIf(thread, {}), [thread]);
  const [wanted, setWanted] = useState(false);
  const few = (picture.value?.columns.length ?? 1e9) <= 60;
  const best = useLoaded(async () => (source.live && (few || wanted) ? (await source.whatIf(thread, { ...query, only: "optimum" })).optimum : null), [thread, asked, few || wanted]);
  const own = useLoaded(async () => (Object.keys(query).length && source.live ? source.whatIf(thread, { ...query, only: "Quire" }) : null), [thread, asked]);
  return (
    <Await of={picture} what="Folding the thread…">
      {(value) =>
        value.columns.length ? (
          <div class="split">
            <Controls policy={value.policy} query={query} live={source.live} busy={own.busy && Object.keys(query).length > 0} />
            <div style={{ display: "grid", gap: "20px", minWidth: 0 }}>
              {own.error ? <Trouble error={own.error} /> : null}
              {compared.error ? <Trouble error={compared.error} />
                : compared.value ? <Outcomes thread={thread} recorded={totals(value.columns)} columns={value.columns.length} cuts={value.columns.filter((column) => column.rebase).map((column) => column.n - 1)} what={{ ...compared.value, optimum: best.value ?? compared.value.optimum }} find={source.live && !few ? () => setWanted(true) : undefined} finding={best.busy && (few || wanted)} own={own.value?.outcomes[0]} limit={value.policy.budget} />
                : <Loading what="Running every policy over the whole thread…" />}
              <Command words={["plan", thread, ...Object.entries(query).flatMap(([name, given]) => [`--${name === "ttl_s" ? "ttl" : name}`, given])]} />
            </div>
          </div>
        ) : (
          <State title="No request to try policies on" />
        )
      }
    </Await>
  );
}

function Controls({ policy, query, live, busy }: { policy: Policy; query: Record<string, string>; live: boolean; busy: boolean }) {
  const [moving, setMoving] = useState<Record<string, number>>({});
  const value = (control: Control) => moving[control.name] ?? Number(query[control.name] ?? policy[control.name] ?? 0);
  const settle = (control: Control, to: number) => refine({ ...query, [control.name]: String(Math.round(to * 1000) / 1000) });
  return (
    <Card title="Your policy" more={busy ? <Chip>recomputing…</Chip> : null}>
      <fieldset class="controls" disabled={!live} style={{ border: 0, margin: 0 }}>
        <legend class="skip">Policy</legend>
        {live ? null : <p class="small soft">This report holds the policies below. To move these, open the thread with <code>quire open</code>.</p>}
        {CONTROLS.map((control) => (
          <label class="field" key={control.name}>
            <span>{control.label} <output>{control.show(value(control))}</output></span>
            <input
              type="range" min={control.min} max={control.max} step={control.step} value={shown(control, value(control))} aria-label={`${control.label}: ${control.says}`} title={control.says}
              aria-valuetext={control.show(value(control))}
              onInput={(event) => setMoving({ ...moving, [control.name]: meant(control, Number(event.currentTarget.value)) })}
              onChange={(event) => settle(control, meant(control, Number(event.currentTarget.value)))}
            />
          </label>
        ))}
        <label class="field">
          <span>Items move into the library</span>
          <select value={query.promote ?? policy.promote} onChange={(event) => refine({ ...query, promote: event.currentTarget.value })}>
            <option value="at-rebase">at a rebase</option>
            <option value="each-turn">each turn</option>
          </select>
        </label>
        <button onClick={() => { setMoving({}); refine({}); }}>As recorded</button>
      </fieldset>
    </Card>
  );
}

function Cuts({ cuts, of }: { cuts: number[]; of: number }) {
  return (
    <svg class="cuts" viewBox={`0 0 ${Math.max(1, of)} 16`} preserveAspectRatio="none" role="img" aria-label={`${cuts.length} cuts`}>
      <line x1="0" y1="8" x2={of} y2="8" stroke="currentColor" stroke-opacity="0.25" vector-effect="non-scaling-stroke" />
      {cuts.map((cut) => <line key={cut} x1={cut + 0.5} x2={cut + 0.5} y1="1" y2="15" stroke="currentColor" stroke-width="1.5" vector-effect="non-scaling-stroke" />)}
    </svg>
  );
}

function Outcomes({ thread, recorded, columns, cuts, what, own, limit, find, finding }: { find?: () => void; finding: boolean; thread: string; recorded: ReturnType<typeof totals>; columns: number; cuts: number[]; what: WhatIf; own?: Outcome; limit: number }) {
  const { factor } = recorded;
  // What is simulated is counted here; the recorded costs are in the provider's tokens.
  const rows = [...(own ? [{ ...own, policy: "Your policy" }] : []), ...what.outcomes].map((row) => ({ ...row, cost: row.cost * factor, usd: row.usd === null ? null : row.usd * factor }));
  const best = what.optimum && { ...what.optimum, cost: what.optimum.cost === null ? null : what.optimum.cost * factor };
  const most = Math.max(1, recorded.units, ...rows.map((row) => row.cost));
  const whole = recorded.read + recorded.written + recorded.fresh;
  const save_ = () => save(`${thread}-what-if.csv`, csv(["policy", "requests", "tokens", "read", "cost", "usd", "kept", "actions", "grounded", "cuts", "over"], rows.map((row) => [row.policy, row.requests, row.tokens, row.read, row.cost, row.usd, row.kept, row.actions, row.grounded, row.cuts.length, row.over])), "text/csv");
  return (
    <Card title="The whole thread, recomputed" more={<><span class="soft small">Simulated with the replies as recorded; cost in plain input tokens{recorded.reported ? ", beside the recorded one" : ""}</span><button class="plain push" onClick={save_}>CSV</button></>}>
      <div class="scroll" tabIndex={0} role="region" aria-label="Policies">
        <table>
          <thead>
            <tr><th>Policy</th><th class="num">Cost</th><th style={{ width: "18%" }}><span class="skip">Cost as a bar</span></th><th class="num">USD</th><th class="num">Read</th><th class="num">Kept</th><th class="num">Grounded</th><th class="num">Cuts</th><th style={{ width: "22%" }}>Where</th></tr>
          </thead>
          <tbody>
            {recorded.reported ? <tr>
              <td class="name"><b>As recorded</b></td><td class="num">{short(recorded.units)}</td><td><Bar part={recorded.units} of={most} /></td><td class="num">{dollars(recorded.usd)}</td>
              <td class="num">{percent(recorded.read, whole)}</td><td class="num">–</td><td class="num">–</td><td class="num">{count(cuts.length)}</td><td><Cuts cuts={cuts} of={columns} /></td>
            </tr> : null}
            {rows.map((row) => (
              <tr key={row.policy} class={row === rows[0] && own ? "own" : ""}>
                <td class="name">{visible(row.policy)} {row.over ? <Chip kind="error">{count(row.over)} beyond {short(limit)}</Chip> : null}</td>
                <td class="num">{short(row.cost)}</td><td><Bar part={row.cost} of={most} /></td><td class="num">{dollars(row.usd)}</td>
                <td class="num">{percent(row.read, row.tokens)}</td><td class="num">{percent(row.kept, 1)}</td>
                <td class="num" title={`${row.grounded} of ${row.actions} actions`}>{row.actions ? percent(row.grounded, row.actions) : "–"}</td>
                <td class="num">{count(row.cuts.length)}</td><td><Cuts cuts={row.cuts} of={columns} /></td>
              </tr>
            ))}
            {best ? (
              <tr>
                <td class="name soft">Hindsight optimum{own ? " of your policy" : ""}</td><td class="num">{best.cost === null ? "none" : short(best.cost)}</td><td><Bar part={best.cost ?? 0} of={most} /></td><td /><td /><td /><td />
                <td class="num">{count(best.cuts.length)}</td><td><Cuts cuts={best.cuts} of={columns} /></td>
              </tr>
            ) : finding || find ? (
              <tr><td class="name soft">Hindsight optimum</td><td colSpan={8}>{finding ? <Chip>looking for the cheapest cuts…</Chip> : <button class="plain small" onClick={find}>Find the cheapest cuts (takes a while)</button>}</td></tr>
            ) : null}
          </tbody>
        </table>
      </div>
      <p class="pad small soft">Kept: the share of the conversation that a request held, on average. Grounded: of the calls that named an id, a path or a date from earlier, those whose request still held it.{Math.abs(factor - 1) > 0.02 ? ` Where one token is counted here, the provider counted ${factor.toFixed(2)}; what is simulated is priced by that.` : ""}</p>
    </Card>
  );
}

function Bar({ part, of }: { part: number; of: number }) {
  return <span class="bar"><i class="accent" style={{ width: `${(100 * part) / of}%` }} /></span>;
}
