// A list of any length of which only the rows in sight exist; items come in pages and are kept while near.

const ROW_PX = 40, PAGE = 200, PAGES_KEPT = 30;

export class LongList {
  constructor(place, spacer, rows, load, draw, choose) {
    Object.assign(this, { place, spacer, rows, load, draw, choose, total: 0, current: -1, pages: new Map(), turn: 0 });
    place.addEventListener("scroll", () => this.show(), { passive: true });
    new ResizeObserver(() => this.show()).observe(place);
    rows.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.choose(Number(row.dataset.index));
    });
  }

  async reset() {
    this.turn += 1;
    this.pages.clear();
    this.current = -1;
    const { total, items } = await this.load(0, PAGE);
    this.total = total;
    this.pages.set(0, { items, ready: Promise.resolve() });
    this.spacer.style.height = `${this.total * ROW_PX}px`;
    this.place.scrollTop = 0;
    this.show();
  }

  page(number) {
    let found = this.pages.get(number);
    if (!found) {
      const turn = this.turn;
      found = { items: null };
      found.ready = this.load(number * PAGE, PAGE).then((answer) => {
        found.items = answer.items;
        if (turn === this.turn) this.show();
      });
      this.pages.set(number, found);
      if (this.pages.size > PAGES_KEPT) this.pages.delete(this.pages.keys().next().value);
    }
    return found;
  }

  async item(index) {
    const page = this.page(Math.floor(index / PAGE));
    await page.ready;
    return page.items[index % PAGE];
  }

  put(changed) {  // an item that has become different
    for (const { items } of this.pages.values()) {
      const at = items ? items.findIndex((item) => item.id === changed.id) : -1;
      if (at >= 0) items[at] = { ...items[at], ...changed };
    }
    this.show();
  }

  select(index) {
    this.current = index;
    const top = index * ROW_PX, height = this.place.clientHeight;
    if (top < this.place.scrollTop || top + ROW_PX > this.place.scrollTop + height) {
      this.place.scrollTop = Math.max(0, top - height / 2);
    }
    this.show();
  }

  show() {
    const first = Math.max(0, Math.floor(this.place.scrollTop / ROW_PX) - 5);
    const last = Math.min(this.total, Math.ceil((this.place.scrollTop + this.place.clientHeight) / ROW_PX) + 5);
    const drawn = [];
    for (let index = first; index < last; index += 1) {
      const item = this.page(Math.floor(index / PAGE)).items?.[index % PAGE];
      const row = item ? this.draw(item, index) : document.createElement("div");
      row.classList.add("row");
      row.classList.toggle("current", index === this.current);
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(index === this.current));
      row.dataset.index = String(index);
      drawn.push(row);
    }
    this.rows.style.transform = `translateY(${first * ROW_PX}px)`;
    this.rows.replaceChildren(...drawn);
  }
}
