// Edits: one at a time, each sent with the version that the one before has made; then the page shows fresh data.

import { post } from "./api.js";
import { say, sayOnNextPage } from "./message.js";

let known = { version: 0, last: null };
let reload = async () => {};
let turn = Promise.resolve(); // settles when the last edit that was asked for has been answered
const underWay = new Map(); // edit as text -> whether it was made; until the page shows it

/** The edits as the server last told them. */
export function follow(edits) {
  known = edits;
}

export function afterEdits(callback) {
  reload = callback;
}

export const rename = (cluster, name) => send({ do: "name", cluster, name });
export const move = (rows, to) => send({ do: "move", rows, to });
export const undo = () => make({ do: "undo" });

/** `goTo`: the page to open afterwards, if this one is about a cluster that is gone then. */
export const merge = (clusters, into, goTo = null) => send({ do: "merge", clusters, into }, goTo);

/** True if the edit was made. The second click of a double click asks for nothing new. */
function send(edit, goTo = null) {
  const key = JSON.stringify(edit);
  if (!underWay.has(key)) underWay.set(key, make(edit, goTo).finally(() => underWay.delete(key)));
  return underWay.get(key);
}

async function make(edit, goTo = null) {
  try {
    const answer = await inTurn(edit);
    if (!answer) return false;
    if (goTo) await leave(answer.message, goTo);
    else await tell(answer.message, edit.do !== "undo");
    return true;
  } catch (problem) {
    await explain(problem);
    return false;
  }
}

/** The answer to an edit, or null where nothing is left to undo. What waits for an edit that fails, fails with it. */
function inTurn(edit) {
  const mine = turn.then(async () => {
    if (edit.do === "undo" && !known.last) return null;
    const answer = await post("/api/edits", { version: known.version, edit });
    follow(answer.edits);
    return answer;
  });
  turn = mine;
  mine.catch(() => (turn = Promise.resolve()));
  return mine;
}

async function tell(words, undoable) {
  await reload();
  say(words, { action: undoable ? { words: "Undo", run: undo } : null });
}

/** Ends when the page is left, so that until then the same edit is not sent again. */
function leave(words, path) {
  sayOnNextPage(words);
  location.href = path;
  return new Promise((resolve) => addEventListener("pagehide", resolve, { once: true }));
}

async function explain(problem) {
  if (problem.status !== 409) return say(problem.message, { error: true });
  await reload();
  say(`${problem.message} The page now shows the newest state; nothing of yours was changed.`, { error: true });
}
