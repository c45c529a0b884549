// Edits: each is sent with the version that the page has seen, then the page shows fresh data.

import { post } from "./api.js";
import { say, sayOnNextPage } from "./message.js";

let version = 0;
let reload = async () => {};

/** The edits as the server last told them. */
export function follow(edits) {
  version = edits.version;
}

export function afterEdits(callback) {
  reload = callback;
}

export const rename = (cluster, name) => send({ do: "name", cluster, name });
export const move = (rows, to) => send({ do: "move", rows, to });
export const undo = () => send({ do: "undo" });

/** `goTo`: the page to open afterwards, if this one is about a cluster that is gone then. */
export const merge = (clusters, into, goTo = null) => send({ do: "merge", clusters, into }, goTo);

/** True if the edit was made. */
async function send(edit, goTo = null) {
  try {
    const answer = await post("/api/edits", { version, edit });
    follow(answer.edits);
    if (goTo) leave(answer.message, goTo);
    else await tell(answer.message, edit.do !== "undo");
    return true;
  } catch (problem) {
    await explain(problem);
    return false;
  }
}

async function tell(words, undoable) {
  await reload();
  say(words, { action: undoable ? { words: "Undo", run: undo } : null });
}

function leave(words, path) {
  sayOnNextPage(words);
  location.href = path;
}

async function explain(problem) {
  if (problem.status !== 409) return say(problem.message, { error: true });
  await reload();
  say(`${problem.message} The page now shows the newest state; nothing of yours was changed.`, { error: true });
}
