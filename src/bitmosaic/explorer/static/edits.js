// Edits are sent one after the other, each with the version from the previous answer. Then the page is reloaded.

import { post } from "./api.js";
import { showMessage, storeMessage } from "./message.js";

let known = { version: 0, last: null };
let reload = async () => {};
let turn = Promise.resolve(); // settles when the latest edit was answered
const pending = new Map(); // edit as text -> promise of whether it was made, until the page shows it

/** Store the state of the edit log from the server. */
export function setEditState(edits) {
  known = edits;
}

export function afterEdits(callback) {
  reload = callback;
}

export const rename = (cluster, name) => send({ do: "name", cluster, name });
export const move = (rows, to) => send({ do: "move", rows, to });
export const undo = () => make({ do: "undo" });

/** `goTo`: the page to open afterwards, if the merge removes the cluster of this page. */
export const merge = (clusters, into, goTo = null) => send({ do: "merge", clusters, into }, goTo);

/** True if the edit was made. The second click of a double click sends nothing. */
function send(edit, goTo = null) {
  const key = JSON.stringify(edit);
  if (!pending.has(key)) pending.set(key, make(edit, goTo).finally(() => pending.delete(key)));
  return pending.get(key);
}

async function make(edit, goTo = null) {
  try {
    const answer = await sendInOrder(edit);
    if (!answer) return false;
    if (goTo) await leave(answer.message, goTo);
    else await showResult(answer.message, edit.do !== "undo");
    return true;
  } catch (problem) {
    await showProblem(problem);
    return false;
  }
}

/** The answer to an edit, or null if there is nothing to undo. If an edit fails, the edits that wait for it fail too. */
function sendInOrder(edit) {
  const promise = turn.then(async () => {
    if (edit.do === "undo" && !known.last) return null;
    const answer = await post("/api/edits", { version: known.version, edit });
    setEditState(answer.edits);
    return answer;
  });
  turn = promise;
  promise.catch(() => (turn = Promise.resolve()));
  return promise;
}

async function showResult(words, undoable) {
  await reload();
  showMessage(words, { action: undoable ? { words: "Undo", run: undo } : null });
}

/** Settles when the page is left, so that the same edit is not sent again before. */
function leave(words, path) {
  storeMessage(words);
  location.href = path;
  return new Promise((resolve) => addEventListener("pagehide", resolve, { once: true }));
}

async function showProblem(problem) {
  if (problem.status !== 409) return showMessage(problem.message, { error: true });
  await reload();
  showMessage(`${problem.message} Your edit was not made. The page now shows the current state.`, { error: true });
}
