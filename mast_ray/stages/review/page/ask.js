// Questions to the server, below the page's own address (which holds the token).

export class Refused extends Error {}

async function answer(response) {
  if (response.ok) return response.json();
  let text = `${response.status}`;
  try { text = (await response.json()).error ?? text; } catch { /* the status says it */ }
  throw new Refused(text);
}

export const ask = async (what, values = {}) => answer(await fetch(`${what}?${new URLSearchParams(values)}`));

export const tell = async (what, body = {}) => answer(await fetch(what, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
}));

export const windowAddress = (what, recording, begin_s, seconds, more = {}) =>
  `${what}?${new URLSearchParams({ recording, begin_s: begin_s.toFixed(3), seconds: seconds.toFixed(3), ...more })}`;
