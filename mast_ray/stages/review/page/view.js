// The spectrogram of a window with its boxes: seconds from left to right, mel bins from below. All text is drawn as text.
import { windowAddress } from "./ask.js";

const COLOURS = { "": "#6cb6ff", right: "#5ad18a", wrong: "#ff6b6b" };
const LEFT = 44, BELOW = 22;
const LUT = heat();

function heat() {  // dark blue, violet, orange, pale yellow
  const stops = [[0, 8, 6, 30], [0.35, 80, 18, 110], [0.6, 190, 55, 85], [0.82, 247, 140, 40], [1, 252, 250, 190]];
  const table = new Uint8ClampedArray(256 * 3);
  for (let grey = 0; grey < 256; grey += 1) {
    const at = grey / 255;
    const next = Math.max(1, stops.findIndex((stop) => stop[0] >= at));
    const [from, to] = [stops[next - 1], stops[next]];
    const share = (at - from[0]) / (to[0] - from[0]);
    for (let i = 0; i < 3; i += 1) table[grey * 3 + i] = from[i + 1] + share * (to[i + 1] - from[i + 1]);
  }
  return table;
}

export function coloured(image) {  // a canvas with the picture in colour
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const brush = canvas.getContext("2d", { willReadFrequently: true });
  brush.drawImage(image, 0, 0);
  const pixels = brush.getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const grey = pixels.data[i] * 3;
    pixels.data[i] = LUT[grey]; pixels.data[i + 1] = LUT[grey + 1]; pixels.data[i + 2] = LUT[grey + 2];
  }
  brush.putImageData(pixels, 0, 0);
  return canvas;
}

export class Pictures {  // loaded pictures, the last ones kept
  constructor(most = 60) { this.most = most; this.kept = new Map(); }

  get(recording, begin_s, seconds) {
    const address = windowAddress("picture", recording, begin_s, seconds);
    let found = this.kept.get(address);
    if (!found) {
      found = new Promise((done, fail) => {
        const image = new Image();
        image.onload = () => done(coloured(image));
        image.onerror = () => { this.kept.delete(address); fail(new Error("this stretch cannot be read")); };
        image.src = address;
      });
      found.catch(() => {});
      this.kept.set(address, found);
      if (this.kept.size > this.most) this.kept.delete(this.kept.keys().next().value);
    }
    return found;
  }
}

export class View {
  constructor(canvas, hertz, bins) {
    Object.assign(this, { canvas, hertz, bins, recording: -1, begin_s: 0, seconds: 10.24, low: 0, high: 1, picture: null,
      boxes: [], spans: [], chosen: "", draft: null, cursor_s: null, faint: false });
    this.brush = canvas.getContext("2d");
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  // share of the height of all bins (0 below) <-> hertz, by the server's own table
  shareOf(hz) { return between(hz, this.hertz, this.bins); }
  hertzOf(share) { return between(share, this.bins, this.hertz); }

  size() { return { width: this.canvas.clientWidth - LEFT, height: this.canvas.clientHeight - BELOW }; }
  left(at_s) { return LEFT + ((at_s - this.begin_s) / this.seconds) * this.size().width; }
  top(hz) { return (1 - (this.shareOf(hz) - this.low) / (this.high - this.low)) * this.size().height; }
  secondAt(px) { return this.begin_s + ((px - LEFT) / this.size().width) * this.seconds; }
  hertzAt(px) { return this.hertzOf(this.low + (1 - px / this.size().height) * (this.high - this.low)); }

  isFaint(box) { return box.verdict === "" && box.score !== null && box.score < this.threshold; }
  visible() { return this.boxes.filter((box) => this.faint || box.id === this.chosen || !this.isFaint(box)); }

  boxAt(x, y) {  // the smallest box under a point
    const inside = this.visible().filter((box) => this.left(box.begin_s) <= x && x <= this.left(box.end_s)
      && this.top(box.high_hz) <= y && y <= this.top(box.low_hz));
    return inside.sort((a, b) => (a.end_s - a.begin_s) - (b.end_s - b.begin_s))[0] ?? null;
  }

  draw() {
    const { canvas, brush } = this;
    const ratio = devicePixelRatio || 1;
    const [wide, tall] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (canvas.width !== wide || canvas.height !== tall) [canvas.width, canvas.height] = [wide, tall];
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { width, height } = this.size();
    brush.fillStyle = "#14161a";
    brush.fillRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    if (width < 10 || height < 10) return;
    brush.save();
    brush.beginPath(); brush.rect(LEFT, 0, width, height); brush.clip();
    if (this.picture) {
      const rows = this.picture.height;
      brush.imageSmoothingQuality = "high";
      brush.drawImage(this.picture, 0, (1 - this.high) * rows, this.picture.width, (this.high - this.low) * rows, LEFT, 0, width, height);
    }
    brush.fillStyle = "rgb(90 209 138 / .8)";
    for (const [begin_s, end_s] of this.spans) brush.fillRect(this.left(begin_s), 0, this.left(end_s) - this.left(begin_s), 4);
    for (const box of this.visible()) if (box.id !== this.chosen) this.drawBox(box, false);
    const chosen = this.boxes.find((box) => box.id === this.chosen);
    if (chosen && !this.draft) this.drawBox(chosen, true);
    if (this.draft) this.drawBox({ verdict: "", label: this.draft.label ?? "", ...this.draft }, true, "#ffd166");
    if (this.cursor_s !== null) {
      brush.fillStyle = "#ffffff";
      brush.fillRect(this.left(this.cursor_s) - 0.75, 0, 1.5, height);
    }
    brush.restore();
    this.axes(width, height);
  }

  drawBox(box, isChosen, colour = COLOURS[box.verdict]) {
    const { brush } = this;
    const [x, y] = [this.left(box.begin_s), this.top(box.high_hz)];
    const [wide, tall] = [this.left(box.end_s) - x, this.top(box.low_hz) - y];
    const isFaint = !isChosen && this.isFaint(box);
    brush.globalAlpha = isFaint ? 0.45 : 1;
    brush.setLineDash(isFaint || box.verdict === "wrong" ? [5, 4] : []);
    brush.lineWidth = isChosen ? 3 : 1.5;
    brush.strokeStyle = colour;
    brush.strokeRect(x, y, wide, tall);
    brush.setLineDash([]);
    const score = box.score === null || box.score === undefined ? "" : box.score.toFixed(2);
    const text = [box.label, isChosen || box.label ? score : ""].filter(Boolean).join(" ").slice(0, 60);
    if (text) {
      brush.font = `${isChosen ? 600 : 400} 12px system-ui, sans-serif`;
      const long = brush.measureText(text).width + 6, up = y > 17 ? y - 16 : y + 2;
      brush.fillStyle = "rgb(0 0 0 / .65)"; brush.fillRect(x, up, long, 15);
      brush.fillStyle = colour; brush.fillText(text, x + 3, up + 11.5);
    }
    brush.globalAlpha = 1;
  }

  axes(width, height) {
    const { brush } = this;
    brush.fillStyle = "#9aa3b2"; brush.strokeStyle = "#343943"; brush.lineWidth = 1;
    brush.font = "11px system-ui, sans-serif";
    brush.textAlign = "right";
    let last = Infinity;
    for (const khz of [0.2, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 7, 8]) {
      const y = this.top(khz * 1000);
      if (y < -1 || y > height || last - y < 16) continue;
      last = y;
      brush.fillText(`${khz}${khz === 8 ? " kHz" : ""}`, LEFT - 5, Math.max(y + 4, 10));
      brush.beginPath(); brush.moveTo(LEFT - 3, y); brush.lineTo(LEFT, y); brush.stroke();
    }
    brush.textAlign = "center";
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20].find((s) => s * width / this.seconds > 60) ?? 30;
    for (let k = Math.ceil(this.begin_s / step); k * step <= this.begin_s + this.seconds; k += 1) {
      const x = this.left(k * step);
      brush.fillText(`${Number((k * step).toFixed(1))} s`, x, height + 16);
      brush.beginPath(); brush.moveTo(x, height); brush.lineTo(x, height + 4); brush.stroke();
    }
    brush.textAlign = "left";
  }
}

function between(value, from, to) {  // linear between the points of a rising table
  let [low, high] = [0, from.length - 1];
  if (value <= from[0]) return to[0] + (value - from[0]) * (to[1] - to[0]) / (from[1] - from[0]);
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (from[middle] <= value) low = middle; else high = middle;
  }
  return to[low] + (value - from[low]) * (to[high] - to[low]) / (from[high] - from[low]);
}
