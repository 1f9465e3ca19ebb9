// Look-alikes side by side: all are judged at once, some may be left out.

export class Group {
  constructor(place, pictures, recordings) {
    Object.assign(this, { place, pictures, recordings, boxes: [], out: new Set(), at: 0 });
    place.addEventListener("click", (event) => {
      const member = event.target.closest(".member");
      if (!member) return;
      this.at = [...place.children].indexOf(member);
      this.toggle();
    });
  }

  async show(boxes) {
    Object.assign(this, { boxes, out: new Set(), at: 0 });
    this.place.replaceChildren(...boxes.map((box) => this.member(box)));
    this.mark();
  }

  member(box) {
    const element = document.createElement("div"), canvas = document.createElement("canvas"), text = document.createElement("div");
    element.className = "member";
    text.className = "second";
    const [path, site] = this.recordings[box.recording];
    text.textContent = `${box.score.toFixed(2)} ${box.label} ${site} ${path}`;
    element.append(canvas, text);
    const seconds = Math.max(2, (box.end_s - box.begin_s) * 1.5);
    const begin_s = Math.round(Math.max(0, (box.begin_s + box.end_s - seconds) / 2) * 100) / 100;
    this.pictures.get(box.recording, begin_s, Math.min(seconds, 120)).then((picture) => {
      [canvas.width, canvas.height] = [picture.width, picture.height];
      canvas.getContext("2d").drawImage(picture, 0, 0);
    }).catch(() => { text.textContent = `cannot be read: ${path}`; });
    return element;
  }

  mark() {
    [...this.place.children].forEach((element, number) => {
      const box = this.boxes[number];
      element.classList.toggle("current", number === this.at);
      element.classList.toggle("out", this.out.has(box.id));
      for (const verdict of ["right", "wrong"]) element.classList.toggle(verdict, box.verdict === verdict);
    });
    this.place.children[this.at]?.scrollIntoView({ block: "nearest" });
  }

  current() { return this.boxes[this.at] ?? null; }
  chosen() { return this.boxes.filter((box) => !this.out.has(box.id)); }

  toggle() {
    const box = this.current();
    if (!box) return;
    if (!this.out.delete(box.id)) this.out.add(box.id);
    this.mark();
  }

  move(by, after) {
    this.at = Math.min(Math.max(this.at + by, 0), this.boxes.length - 1);
    this.mark();
    after();
  }

  put(changed) {
    const at = this.boxes.findIndex((box) => box.id === changed.id);
    if (at < 0) return;
    this.boxes[at] = { ...this.boxes[at], ...changed };
    this.mark();
  }
}
