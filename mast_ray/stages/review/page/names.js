// The field for a name: what was typed, or a known name that begins or holds it.

const MOST = 8;

export class NameField {
  constructor(form, input, listing, known, done) {
    Object.assign(this, { form, input, listing, known: [...known], done, keep: null, at: -1 });
    input.addEventListener("input", () => { this.at = -1; this.complete(); });
    input.addEventListener("keydown", (event) => this.key(event));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.finish(); });
    listing.addEventListener("pointerdown", (event) => {
      const row = event.target.closest("li");
      if (row) { event.preventDefault(); input.value = row.textContent; this.finish(); }
    });
  }

  open(label, keep) {
    this.keep = keep;
    this.form.hidden = false;
    this.input.value = label;
    this.at = -1;
    this.complete();
    this.input.focus();
    this.input.select();
  }

  learn(label) { if (label && !this.known.includes(label)) this.known.push(label); }

  matches() {
    const typed = this.input.value.trim().toLowerCase();
    const begins = this.known.filter((name) => name.toLowerCase().startsWith(typed));
    const holds = this.known.filter((name) => !begins.includes(name) && name.toLowerCase().includes(typed));
    return [...begins, ...holds].slice(0, MOST);
  }

  complete() {
    this.listing.replaceChildren(...this.matches().map((name, number) => {
      const row = document.createElement("li");
      row.textContent = name;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(number === this.at));
      return row;
    }));
    this.input.setAttribute("aria-expanded", String(this.listing.children.length > 0));
  }

  key(event) {
    const found = this.matches();
    if (event.key === "Escape") { event.preventDefault(); this.close(); }
    else if (event.key === "Enter") { event.preventDefault(); this.finish(); }
    else if (event.key === "Tab" && found.length) {  // the first that fits
      event.preventDefault();
      this.input.value = found[Math.max(this.at, 0)];
      this.complete();
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && found.length) {
      event.preventDefault();
      this.at = (this.at + (event.key === "ArrowDown" ? 1 : found.length - (this.at < 0 ? 0 : 1)) ) % found.length;
      this.complete();
    }
  }

  finish() {
    const label = this.at >= 0 ? this.matches()[this.at] : this.input.value.trim();
    const { keep } = this;
    this.close();
    if (keep) keep(label);
  }

  close() {
    this.form.hidden = true;
    this.keep = null;
    this.done();
  }
}
