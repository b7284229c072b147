// What was lost of the provider's cache, why and for how much: as it passes the proxy, and over what was recorded.
import { useEffect, useState } from "preact/hooks";
import { type AuditReport, type Loss, type Outcome, Problem, type Spent, api } from "./data";
import { Await, Card, Chip, Command, Figures, State, Trouble, count, csv, dollars, moment, percent, plural, save, short, useLoaded, visible } from "./ui";

interface Passed {
  at: number | null;
  source: string;
  model: string;
  usage: Record<string, number> | null;
  tells_cache?: boolean;
  usd: number | null;
  lost: (Loss & { what: string; fix: string }) | null;
  side?: string;
  retry?: boolean;
  mended?: string[];
  refused?: string[];
  held_out?: boolean;
  difference?: string[];
  diagnosis?: { reason?: string; type?: string } | null;
}

interface Watched {
  total: Spent & { conversations: number };
  conversations: (Spent & { name: string; session: string; kind: string; retries?: number; requests_seen: Passed[] })[];
  failures: string[];
  savings?: {
    simulated: { rules: string; requests: number; tokens: number; usd: number }[];
    measured: { conversations: number; held_out: number; saving: number; interval: [number, number] } | null;
  };
  provider_agreement?: { asked: number; agreed: number };
}

const LOOK_MS = 1000;
const sure = (confidence: string) => ({ certain: "read", likely: "written" })[confidence] ?? "";

export function ProxyView() {
  const [looked, look] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && look((n) => n + 1), LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  const loaded = useLoaded(() => api<Watched>("proxy/conversations"), [looked]);
  const missing = loaded.error instanceof Problem && loaded.error.status === 404;
  return (
    <>
      <h1>Proxy</h1>
      {missing || (loaded.value && !loaded.value.conversations.length) ? (
        <State title="No client has passed yet">
          <span>Start with <code>quire serve --to https://api.anthropic.com</code> and give your application this page's address as its base URL. Every request, and every loss with its cause, appears here as it happens.</span>
        </State>
      ) : loaded.error !== undefined && !loaded.value ? (
        <Trouble error={loaded.error} />
      ) : (
        <Await of={{ ...loaded, error: undefined }} what="Looking at the proxy…">{(watched) => <Conversations watched={watched} />}</Await>
      )}
      <Command words={["proxy", "--to", "https://api.anthropic.com"]} />
    </>
  );
}

function Conversations({ watched }: { watched: Watched }) {
  const { total, provider_agreement: asked } = watched;
  const older = total.conversations - watched.conversations.length;
  return (
    <>
      <Figures
        of={[
          ["Conversations", count(total.conversations), plural(total.requests, "request")],
          ["Read from the cache", percent(total.read ?? 0, total.input ?? 0), `${short(total.input ?? 0)} tokens in`],
          ["Lost", short(total.lost), "tokens that could have been read"],
          ["Lost money", dollars(total.lost_usd), `of ${dollars(total.usd)}`],
          ...(asked?.asked ? ([["The provider agrees", percent(asked.agreed, asked.asked), plural(asked.asked, "comparison")]] as [string, string, string][]) : []),
        ]}
      />
      {watched.savings?.simulated.length ? <Saved savings={watched.savings} /> : null}
      {watched.conversations.map((each) => (
        <Card
          key={`${each.session} ${each.name}`}
          title={visible(each.name || each.session || "conversation")}
          more={<>{each.kind !== "main" ? <Chip>{visible(each.kind)}</Chip> : null}<span class="soft small">{plural(each.requests, "request")}{each.retries ? `, ${plural(each.retries, "retry")}` : ""}</span>{each.lost ? <Chip kind="fresh">{short(each.lost)} tokens lost, {dollars(each.lost_usd)}</Chip> : <Chip kind="read">nothing lost</Chip>}</>}
        >
          <div class="scroll" style={{ maxHeight: "360px" }} tabIndex={0} role="region" aria-label={`Requests of ${each.name}`}>
            <table class="passed">
              <thead><tr><th>When</th><th class="num">Input</th><th style={{ minWidth: "90px" }}>Read</th><th class="num">Cost</th><th style={{ minWidth: "260px", width: "60%" }}>Lost, and why</th>{told(each.requests_seen) ? <th>The provider says</th> : null}</tr></thead>
              <tbody>{[...each.requests_seen].reverse().map((one, n) => <PassedRow key={n} one={one} told={told(each.requests_seen)} />)}</tbody>
            </table>
          </div>
        </Card>
      ))}
      {older ? <p class="soft pad">{plural(older, "older conversation")} {older === 1 ? "is" : "are"} in the figures above and not shown.</p> : null}
      {watched.failures.length ? <Card title="What went wrong beside requests that passed all the same"><ul class="pad small">{watched.failures.map((each, n) => <li key={n}>{visible(each)}</li>)}</ul></Card> : null}
    </>
  );
}

const told = (requests: Passed[]) => requests.some((one) => one.diagnosis?.reason || one.diagnosis?.type);

/** What mending brought: by simulation of what came and what was sent; measured where some conversations were held out. */
function Saved({ savings: { simulated, measured } }: { savings: NonNullable<Watched["savings"]> }) {
  return (
    <Card title="What mending saved" more={<span class="soft small">Simulated: what was sent beside what came</span>}>
      <div class="scroll" tabIndex={0} role="region" aria-label="What mending saved">
        <table>
          <thead><tr><th>Rules</th><th class="num">Requests</th><th class="num">Tokens more read</th><th class="num">Money</th></tr></thead>
          <tbody>
            {simulated.map((each) => (
              <tr key={each.rules}><td>{visible(each.rules)}</td><td class="num">{count(each.requests)}</td><td class="num">{count(each.tokens)}</td><td class="num">{dollars(each.usd)}</td></tr>
            ))}
          </tbody>
        </table>
      </div>
      {measured ? <p class="pad">Measured: {percent(measured.saving, 1)} of the price of a token, 95 % between {percent(measured.interval[0], 1)} and {percent(measured.interval[1], 1)} ({plural(measured.conversations, "conversation")} against {count(measured.held_out)} held out).</p> : null}
    </Card>
  );
}

function PassedRow({ one, told }: { one: Passed; told: boolean }) {
  const usage = one.usage ?? {};
  const whole = usage.input_total || 1;
  return (
    <tr>
      <td class="nowrap small">{moment(one.at).slice(11)}<div class="soft">{visible(one.model)}</div></td>
      <td class="num">{one.usage ? short(usage.input_total) : "–"}</td>
      <td>{one.usage && one.tells_cache !== false ? <span class="bar" role="img" aria-label={`${percent(usage.cache_read ?? 0, whole)} read`}><i class="read" style={{ width: `${(100 * (usage.cache_read ?? 0)) / whole}%` }} /></span> : <span class="soft small">not told</span>}</td>
      <td class="num">{dollars(one.usd)}</td>
      <td>
        {one.lost ? (
          <>
            <b>{short(one.lost.lost)}</b> {dollars(one.lost.usd)} {visible(one.lost.what)} {one.side ? <Chip>{visible(one.side)}</Chip> : null} <Chip kind={sure(one.lost.confidence)}>{one.lost.confidence}</Chip>
            <div class="soft small">{one.lost.path ? <code>{visible(one.lost.path)} +{count(one.lost.offset)}</code> : null} {visible([one.lost.note, one.lost.fix].filter(Boolean).join(". "))}</div>
          </>
        ) : one.retry ? <Chip>a retry</Chip> : <span class="soft">nothing lost</span>}
        {one.mended?.length ? <div class="row small" style={{ gap: "4px" }}>mended: {one.mended.map((rule) => <Chip key={rule} kind="read">{visible(rule)}</Chip>)}</div> : null}
        {one.held_out ? <Chip>held out</Chip> : null}
      </td>
      {told ? <td class="small">{visible(one.diagnosis?.reason ?? one.diagnosis?.type ?? "")}</td> : null}
    </tr>
  );
}

// Over what was recorded

export function AuditView({ report }: { report?: AuditReport }) {
  const loaded = useLoaded(async () => report ?? (await api<AuditReport>("inspect/audit")), [report]);
  return (
    <>
      <h1>Audit</h1>
      <Await of={loaded} what="Going through every request…">
        {(found) => (found.total.requests ? <Audited found={found} /> : <State title="No request was recorded"><span>Requests that are sent from threads, or that pass the proxy, are counted here. <code>quire audit PATH</code> reads what other clients left.</span></State>)}
      </Await>
      {report ? null : <Command words={["audit", "--threads"]} />}
    </>
  );
}

function Audited({ found }: { found: AuditReport }) {
  const { total, causes } = found;
  const could = (total.read ?? 0) + total.lost;
  const dearest = Math.max(...causes.map((each) => each.lost_usd || each.lost), 1e-9);
  const export_ = () => save("audit.csv", csv(["cause", "times", "tokens", "usd"], causes.map((each) => [each.cause, each.requests, each.lost, each.lost_usd])), "text/csv");
  return (
    <>
      <Figures
        of={[
          ["Requests", count(total.requests), plural(found.conversations.length, "conversation")],
          ["Input", short(total.input), `${percent(total.read ?? 0, total.input ?? 0)} read`],
          ["Before", dollars(total.usd ?? 0), "what it cost"],
          ["After", dollars((total.usd ?? 0) - total.lost_usd), "had all been read"],
          ["Lost", dollars(total.lost_usd), `${short(total.lost)} tokens, ${percent(total.lost, could)} of what could be read`],
        ]}
      />
      <Card title="Causes by money" more={<button class="plain push" onClick={export_}>CSV</button>}>
        {causes.length ? (
          <div class="scroll" tabIndex={0} role="region" aria-label="Causes">
            <table>
              <thead><tr><th>Why</th><th class="num">Times</th><th class="num">Tokens</th><th class="num">Money</th><th style={{ width: "20%" }}><span class="skip">Money as a bar</span></th><th>What to change</th></tr></thead>
              <tbody>
                {causes.map((each) => (
                  <tr key={each.cause}>
                    <td><b>{visible(each.cause)}</b><div class="soft small">{visible(each.what)}</div></td><td class="num">{count(each.requests)}</td><td class="num">{short(each.lost)}</td><td class="num">{dollars(each.lost_usd)}</td>
                    <td><span class="bar"><i class="fresh" style={{ width: `${(100 * (each.lost_usd || each.lost)) / dearest}%` }} /></span></td>
                    <td class="small">{visible(each.fix)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        ) : <State title="Nothing was lost"><span>Everything that could be read from the cache was.</span></State>}
      </Card>
      {found.what_if?.length ? <Policies outcomes={found.what_if} /> : null}
      <Card title="Worst conversations">
        <div class="scroll" style={{ maxHeight: "480px" }} tabIndex={0} role="region" aria-label="Worst conversations">
          <table>
            <thead><tr><th>Conversation</th><th class="num">Requests</th><th class="num">Input</th><th class="num">Read</th><th class="num">Lost</th><th class="num">Money</th><th>Mostly</th></tr></thead>
            <tbody>
              {found.conversations.slice(0, 200).map((each) => (
                <tr key={each.name}>
                  <td class="name">{visible(each.name)} {each.kind !== "main" ? <Chip>{visible(each.kind)}</Chip> : null}</td><td class="num">{count(each.requests)}</td><td class="num">{short(each.input)}</td>
                  <td class="num">{percent(each.read ?? 0, each.input ?? 0)}</td><td class="num">{short(each.lost)}</td><td class="num">{dollars(each.lost_usd)}</td>
                  <td class="small">{mostly(each.losses)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Card>
    </>
  );
}

function Policies({ outcomes }: { outcomes: Outcome[] }) {
  const most = Math.max(...outcomes.map((each) => each.cost), 1);
  return (
    <Card title="The same conversations under other policies" more={<span class="soft small">Simulated with the replies as recorded</span>}>
      <div class="scroll" tabIndex={0} role="region" aria-label="Other policies">
        <table>
          <thead><tr><th>Policy</th><th class="num">Cost</th><th style={{ width: "24%" }}><span class="skip">Cost as a bar</span></th><th class="num">USD</th><th class="num">Read</th><th class="num">Kept</th><th class="num">Grounded</th></tr></thead>
          <tbody>
            {outcomes.map((each) => (
              <tr key={each.policy}>
                <td class="name">{visible(each.policy)}</td><td class="num">{short(each.cost)}</td><td><span class="bar"><i class="accent" style={{ width: `${(100 * each.cost) / most}%` }} /></span></td>
                <td class="num">{dollars(each.usd)}</td><td class="num">{percent(each.read, each.tokens)}</td><td class="num">{percent(each.kept, 1)}</td><td class="num">{each.actions ? percent(each.grounded, each.actions) : "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function mostly(losses: Loss[]) {
  const by = new Map<string, number>();
  for (const loss of losses) by.set(loss.cause, (by.get(loss.cause) ?? 0) + loss.lost);
  return [...by].sort((a, b) => b[1] - a[1]).slice(0, 2).map(([cause]) => visible(cause)).join(", ");
}
