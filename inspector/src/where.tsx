// Where did it go? A string: when it entered, in which requests it stood and as what, whether recall brings it back.
import { useState } from "preact/hooks";
import type { Source, Standing, Whereabouts } from "./data";
import { Original } from "./request";
import { href, place, refine } from "./route";
import { Await, Card, Chip, Command, State, count, moment, useLoaded, visible } from "./ui";

const NAMES: Record<Standing, string> = {
  verbatim: "verbatim",
  library: "in the library",
  handle: "in a handle or a cut result",
  summary: "in the summary",
  nothing: "nowhere",
};

export function WhereView({ source, thread }: { source: Source; thread: string }) {
  const text = place.value.query.text ?? "";
  const [typed, setTyped] = useState(text);
  const loaded = useLoaded(async () => (text ? source.where(thread, text) : null), [thread, text]);
  return (
    <>
      <form class="row" role="search" onSubmit={(event) => { event.preventDefault(); refine({ text: typed }); }}>
        <input
          type="search" value={typed} size={60} style={{ flex: "1 1 320px" }} aria-label="The string to look for"
          placeholder="A path, an id, a sentence: paste what the model seems to have lost"
          onInput={(event) => setTyped(event.currentTarget.value)}
        />
        <button class="primary" type="submit">Where did it go?</button>
      </form>
      {text ? (
        <Await of={loaded} what="Looking through every request…">
          {(found) => (found ? <Found source={source} thread={thread} found={found} /> : null)}
        </Await>
      ) : (
        <State title="Follow a string through the thread">
          <span>Give a string that was said once. You see when it entered, in which requests it stood, what became of it, and whether recall brings it back.</span>
        </State>
      )}
    </>
  );
}

/** What became of it, in a sentence. */
export function sentence(found: Whereabouts): string {
  const { stretches, entered, recalled } = found;
  if (!entered.length && !stretches.length) return "It never stood in this thread.";
  const last = stretches.at(-1);
  const begins = entered[0] ? `It entered with entry ${entered[0].seq} (${entered[0].kind}, turn ${entered[0].turn})` : "It was never an entry's own word";
  if (!last) return `${begins}, and no request has held it yet.`;
  const now = last.standing === "nothing"
    ? `left with request ${last.first}${last.by ? `, ${last.by}` : ""}, and stands in no request since`
    : `stands ${NAMES[last.standing]} to this day (request ${last.last})`;
  const back = last.standing !== "nothing" || recalled === null ? "" : recalled.length ? ` Recall brings it back (entry ${recalled.join(", ")}).` : " Recall does not find it.";
  return `${begins}; it ${now}.${back}`;
}

function Found({ source, thread, found }: { source: Source; thread: string; found: Whereabouts }) {
  const [seq, setSeq] = useState<number | null>(null);
  const { stretches } = found;
  const all = stretches.length ? stretches.at(-1)!.last - stretches[0]!.first + 1 : 1;
  return (
    <>
      <p class="verdict" role="status">{visible(sentence(found))}</p>
      {stretches.length ? (
        <Card
          title={`Requests ${stretches[0]!.first} to ${stretches.at(-1)!.last}`}
          more={
            <div class="legend">
              {(Object.keys(NAMES) as Standing[]).filter((kind) => stretches.some((each) => each.standing === kind)).map((kind) => (
                <span key={kind}><i class={`swatch ${kind}`} />{NAMES[kind]}</span>
              ))}
            </div>
          }
        >
          <div class="pad">
            <div class="strip">
              {stretches.map((each) => (
                <a
                  key={each.first} class={each.standing} href={href(thread, "request", each.first)} style={{ width: `${(100 * (each.last - each.first + 1)) / all}%` }}
                  aria-label={`Requests ${each.first} to ${each.last}: ${NAMES[each.standing]}`} title={`Requests ${each.first}–${each.last}: ${NAMES[each.standing]}`}
                />
              ))}
            </div>
          </div>
          <div class="scroll" tabIndex={0} role="region" aria-label="How it stood">
            <table>
              <thead><tr><th>Requests</th><th>It stood</th><th>Because of</th></tr></thead>
              <tbody>
                {stretches.map((each) => (
                  <tr key={each.first}>
                    <td class="nowrap"><a href={href(thread, "request", each.first)}>{each.first}</a> to <a href={href(thread, "request", each.last)}>{each.last}</a></td>
                    <td><i class={`swatch ${each.standing}`} style={{ display: "inline-block", verticalAlign: "-1px", marginRight: "8px" }} />{NAMES[each.standing]}</td>
                    <td>{visible(each.by ?? "")}{each.by && each.first > 1 ? <> <a class="small" href={href(thread, "compare", each.first - 1, each.first)}>compare</a></> : null}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </Card>
      ) : null}
      {found.entered.length ? (
        <Card title={found.count === 1 ? "One entry holds it" : `${count(found.count)} entries hold it`} more={found.count > found.entered.length ? <Chip>the first {count(found.entered.length)}</Chip> : null}>
          <div class="scroll" tabIndex={0} role="region" aria-label="Entries that hold it" style={{ maxHeight: "360px" }}>
            <table>
              <thead><tr><th>Entry</th><th>Kind</th><th class="num">Turn</th><th>There</th><th class="wide">When</th></tr></thead>
              <tbody>
                {found.entered.map((hit) => (
                  <tr key={hit.seq}>
                    <td><button class="plain small" onClick={() => setSeq(hit.seq)}>{hit.seq}</button></td>
                    <td>{visible(hit.kind)}</td>
                    <td class="num">{hit.turn}</td>
                    <td class="mono">{marked(hit.around, found.text)}</td>
                    <td class="wide soft small nowrap">{moment(hit.at)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {seq !== null ? <Original key={seq} source={source} thread={thread} seq={seq} /> : null}
        </Card>
      ) : null}
      <Command words={["where", thread, found.text]} />
    </>
  );
}

function marked(around: string, text: string) {
  const at = around.indexOf(text);
  if (at < 0) return visible(around);
  return <>{visible(around.slice(0, at))}<mark>{visible(text)}</mark>{visible(around.slice(at + text.length))}</>;
}
