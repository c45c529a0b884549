// Requests to the server: the JSON of the answer, or a Problem with a message to show.

const token = document.querySelector('meta[name="token"]').content;
const { key } = document.body.dataset;

class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const thumbUrl = (row) => `/thumb/${row}?k=${encodeURIComponent(key)}`;
export const largeUrl = (row) => `/large/${row}?k=${encodeURIComponent(key)}`;

export async function get(path, signal) {
  return (await ask(path, { signal })).body;
}

export async function post(path, body) {
  const headers = { "Content-Type": "application/json", "X-Bitmosaic-Token": token };
  return (await ask(path, { method: "POST", headers, body: JSON.stringify(body) })).body;
}

/** Repeat the request every half second while the server is computing (202); `progress` gets {stage, done, total}. */
export async function poll(path, progress, signal) {
  for (;;) {
    const { status, body } = await ask(path, { signal });
    if (status !== 202) return body;
    progress(body);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "No answer from the explorer. Is “bitmosaic explore” still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(response.status, body.error || `The explorer answered with status ${response.status}.`);
  return { status: response.status, body };
}
