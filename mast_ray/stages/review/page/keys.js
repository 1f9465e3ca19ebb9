// Which key does what: one table for the keyboard, the hints and the help.

export const KEYS = [
  // key, command, words; those with a star stand below the picture
  ["y", "accept", "accept: it is a call*"],
  ["n", "reject", "reject: it is none (takes a drawn box back)*"],
  ["Enter", "name", "name (completes from known names)*"],
  ["d", "draw", "draw a box: arrows, then Enter; or drag with the mouse*"],
  ["m", "change", "move or resize: arrows, then Enter*"],
  ["w", "looked", "looked at: all calls of this window have a box; go on*"],
  ["u", "undo", "undo*"],
  ["U", "redo", "redo"],
  [" ", "play", "play (the box; again: stop)*"],
  ["p", "playAll", "play the window; again: stop"],
  ["b", "band", "band only (that of the box)*"],
  ["s", "speed", "speed: 1, 1/2, 1/4, 1/8*"],
  ["j", "next", "next in the queue"],
  ["ArrowDown", "next", "next in the queue"],
  ["k", "previous", "previous in the queue"],
  ["ArrowUp", "previous", "previous in the queue"],
  ["g", "nextOpen", "next that is not judged"],
  ["Tab", "other", "next box in this window"],
  ["ArrowLeft", "back", "earlier"],
  ["ArrowRight", "forth", "later"],
  ["+", "closer", "zoom in"],
  ["-", "farther", "zoom out"],
  ["f", "zoomBand", "zoom into the band of the box, and out again"],
  ["h", "faint", "show or hide boxes below the threshold"],
  ["x", "leaveOut", "look-alikes: leave one out"],
  ["?", "help", "all keys*"],
];

export const EDITING = [
  ["arrows", "move"], ["Shift arrows", "move the end and the top"], ["Alt arrows", "move the beginning and the bottom"],
  ["Enter", "keep"], ["Esc", "leave"],
];

const shown = { " ": "Space", ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→" };

function cap(key) {
  const element = document.createElement("kbd");
  element.textContent = shown[key] ?? key;
  return element;
}

export function hints(isEditing) {
  const rows = isEditing ? EDITING : KEYS.filter((row) => row[2].endsWith("*")).map((row) => [row[0], row[2].split(/[:(*]/)[0].trim()]);
  return rows.map(([key, text]) => {
    const hint = document.createElement("span");
    hint.append(cap(key), ` ${text}`);
    return hint;
  });
}

export function helpTable() {
  const table = document.createElement("div");
  const keysOf = new Map();  // command -> its keys and words
  for (const [key, command, text] of KEYS) {
    if (keysOf.has(command)) keysOf.get(command)[0].push(key);
    else keysOf.set(command, [[key], text.replace("*", "")]);
  }
  const rows = [...keysOf.values(), [["1", "...", "6"], "queues"], ...EDITING.map(([key, text]) => [[key], `drawing, moving: ${text}`])];
  for (const [keys, text] of rows) {
    const row = document.createElement("div");
    row.append(...keys.map(cap), ` ${text}`);
    table.append(row);
  }
  return table;
}
