// The token strip: every sampled token as a box, coloured by one of its figures, after the end of its prompt.
// Only the lines in view are drawn, so that a strip of any length is one small canvas.
"use strict";
(() => {
  const LINE = 24, PAD = 4, FONT = '12.5px "JetBrains Mono", ui-monospace, monospace', VIEW = 420, PROMPT = -1;
  const visible = (text) => text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍") || "∅";
  const figure = (value, digits = 3) => value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");

  function colours(root) {
    const probe = document.createElement("i");
    root.append(probe);
    const read = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
    const found = Object.fromEntries(["ink", "soft", "faint", "hair", "accent", "good", "bad", "warn", "sunk", "compaction", "spawn", "handoff", "fork", "root"].map((name) => [name, read(name)]));
    probe.remove();
    return found;
  }

  class Strip {
    constructor(root) {
      this.root = root;
      this.view = root.querySelector(".strip-view");
      this.room = root.querySelector(".strip-room");
      this.canvas = root.querySelector(".strip-view canvas");
      this.tip = root.querySelector(".tip");
      this.said = root.querySelector(".strip-token");
      this.selected = -1;
      this.mode = "logprob";
    }

    async load() {
      const answer = await fetch(this.root.dataset.src);
      if (!answer.ok) { this.said.textContent = `The tokens cannot be read (${answer.status}).`; return; }
      this.data = await answer.json();
      await document.fonts.load(FONT).catch(() => null);
      this.colours = colours(this.root);
      this.series();
      this.measure();
      this.listen();
      this.root.dataset.tokens = String(this.data.ids.length);
      if (!Object.keys(this.data.texts).length) this.say("The engine tells no texts now; these are ids.");
    }

    // which figures there are to colour by
    series() {
      const d = this.data;
      const versions = [...new Set(d.versions)].filter((v) => v !== null);
      this.modes = [["logprob", "log π at sampling"], ["version", "version"], ["mask", "trained"]];
      if (d.training_logprobs) this.modes.push(["training", "log π at training"], ["ratio", "ratio"]);
      if (d.advantage !== null) this.modes.push(["advantage", "advantage"]);
      this.versions = versions;
      const place = this.root.querySelector(".modes");
      place.replaceChildren(...this.modes.map(([mode, name]) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = name;
        button.setAttribute("role", "radio");
        button.addEventListener("click", () => { this.mode = mode; this.draw(); this.legend(); });
        button.dataset.mode = mode;
        return button;
      }));
      this.legend();
    }

    legend() {
      for (const button of this.root.querySelectorAll(".modes button")) button.setAttribute("aria-checked", String(button.dataset.mode === this.mode));
      const entry = (name, paint) => {
        const line = document.createElement("span");
        const box = document.createElement("canvas");
        box.width = paint.length > 1 ? 64 : 12;
        box.height = 12;
        const ctx = box.getContext("2d");
        paint.forEach((fill, at) => { ctx.globalAlpha = fill[1]; ctx.fillStyle = fill[0]; ctx.fillRect((at * box.width) / paint.length, 0, box.width / paint.length, 12); });
        line.append(box, name);
        return line;
      };
      const c = this.colours;
      const ramp = (colour) => Array.from({ length: 16 }, (_, at) => [colour, at / 15 * 0.75]);
      const entries = {
        logprob: () => [entry("p = 1 … 0.01 and less", ramp(c.compaction)), entry(`perplexity ${figure(this.data.perplexity, 2)}`, [[c.hair, 1]])],
        version: () => this.versions.map((v, at) => entry(`v${v}`, [[this.versionColour(at), 0.45]])),
        mask: () => [entry("trained", [[c.good, 0.4]]), entry("masked", [[c.faint, 0.25]])],
        training: () => [entry("p = 1 … 0.01 and less", ramp(c.compaction))],
        ratio: () => [entry("below 1", ramp(c.bad)), entry("above 1", ramp(c.good))],
        advantage: () => [entry(`advantage of the session ${figure(this.data.advantage, 2)}`, [[this.data.advantage >= 0 ? c.good : c.bad, 0.4]])],
      };
      this.root.querySelector(".legend").replaceChildren(...entries[this.mode]());
    }

    versionColour(at) { const c = this.colours; return [c.spawn, c.compaction, c.fork, c.handoff, c.root][at % 5]; }

    paint(at) {
      const c = this.colours, d = this.data;
      const surprise = (value) => value === null ? ["transparent", 0] : [c.compaction, Math.min(1, -value / 4.6) * 0.75];
      switch (this.mode) {
        case "version": return [this.versionColour(Math.max(0, this.versions.indexOf(d.versions[at]))), 0.45];
        case "mask": return d.trained ? [c.good, 0.4] : [c.faint, 0.25];
        case "training": return surprise(d.training_logprobs[at]);
        case "ratio": { const r = this.ratio(at); return r === null ? ["transparent", 0] : [r >= 1 ? c.good : c.bad, Math.min(1, Math.abs(Math.log(r)) * 4) * 0.75]; }
        case "advantage": return [d.advantage >= 0 ? c.good : c.bad, d.trained ? 0.4 : 0];
        default: return surprise(d.logprobs[at]);
      }
    }

    ratio(at) {
      const { training_logprobs: later, logprobs } = this.data;
      return later?.[at] == null || logprobs[at] === null ? null : Math.exp(later[at] - logprobs[at]);
    }

    text(id) { const found = this.data.texts[id]; return found === undefined ? `#${id}` : visible(found); }

    // boxes line by line; a token that holds a line feed ends its line
    measure() {
      const width = Math.max(160, this.view.clientWidth);
      const ctx = this.canvas.getContext("2d");
      ctx.font = FONT;
      this.boxes = [];
      let x = 0, line = 0;
      const put = (id, at) => {
        const text = this.text(id);
        if (text.startsWith("↵") && x > 0) { x = 0; line += 1; }
        const size = Math.min(width, Math.ceil(ctx.measureText(text).width) + 2 * PAD);
        if (x + size > width && x > 0) { x = 0; line += 1; }
        this.boxes.push({ x, line, size, text, at });
        x += size + 2;
        if (text.endsWith("↵") && text.length > 1) { x = 0; line += 1; }
      };
      for (const id of this.data.prompt) put(id, PROMPT);
      if (this.data.prompt.length && x > 0) { x = 0; line += 1; }
      this.first = this.boxes.length;
      this.data.ids.forEach(put);
      this.byLine = [];
      for (const box of this.boxes) (this.byLine[box.line] ??= []).push(box);
      this.height = (line + 1) * LINE + 4;
      this.room.style.height = `${this.height}px`;
      const shown = Math.min(this.height, VIEW), scale = devicePixelRatio || 1;
      this.canvas.width = width * scale;
      this.canvas.height = shown * scale;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${shown}px`;
      this.shown = shown;
      this.width = width;
      if (this.first && !this.placed) { this.placed = true; this.view.scrollTop = Math.max(0, this.boxes[this.first]?.line * LINE - 2 * LINE); }
      this.draw();
    }

    draw() {
      const ctx = this.canvas.getContext("2d"), scale = devicePixelRatio || 1, top = this.view.scrollTop, c = this.colours;
      ctx.setTransform(scale, 0, 0, scale, 0, 0);
      ctx.clearRect(0, 0, this.width, this.shown);
      ctx.font = FONT;
      ctx.textBaseline = "middle";
      const from = Math.max(0, Math.floor(top / LINE) - 1), to = Math.ceil((top + this.shown) / LINE) + 1;
      for (let line = from; line <= to; line += 1) {
        for (const box of this.byLine[line] ?? []) {
          const y = line * LINE - top + 2;
          if (box.at !== PROMPT) {
            const [fill, strength] = this.paint(box.at);
            ctx.globalAlpha = strength;
            ctx.fillStyle = fill;
            ctx.fillRect(box.x, y, box.size, LINE - 5);
            ctx.globalAlpha = 1;
            ctx.fillStyle = this.data.trained ? c.accent : c.hair;
            ctx.fillRect(box.x, y + LINE - 4, box.size, 1.5);
          }
          ctx.globalAlpha = 1;
          ctx.fillStyle = box.at === PROMPT ? c.faint : c.ink;
          ctx.fillText(box.text, box.x + PAD, y + (LINE - 5) / 2 + 1, box.size - PAD);
          if (box.at === this.selected && box.at !== PROMPT) { ctx.strokeStyle = c.accent; ctx.lineWidth = 1.5; ctx.strokeRect(box.x + 0.75, y + 0.75, box.size - 1.5, LINE - 6.5); }
        }
      }
    }

    listen() {
      this.view.addEventListener("scroll", () => this.draw());
      this.canvas.addEventListener("mousemove", (event) => this.hover(event));
      this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
      this.canvas.addEventListener("click", (event) => { const box = this.under(event); if (box) this.select(box.at); });
      this.canvas.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        this.select(Math.max(0, Math.min(this.data.ids.length - 1, this.selected + step)));
      });
      document.addEventListener("mosaic:theme", () => { this.colours = colours(this.root); this.legend(); this.draw(); });
      addEventListener("resize", () => { clearTimeout(this.waiting); this.waiting = setTimeout(() => this.measure(), 120); });
    }

    under(event) {
      const rect = this.canvas.getBoundingClientRect();
      const x = event.clientX - rect.left, line = Math.floor((event.clientY - rect.top + this.view.scrollTop) / LINE);
      return (this.byLine[line] ?? []).find((box) => box.at !== PROMPT && x >= box.x && x <= box.x + box.size);
    }

    hover(event) {
      const box = this.under(event);
      this.tip.hidden = !box;
      if (!box) return;
      const value = this.data.logprobs[box.at];
      const later = this.data.training_logprobs?.[box.at] ?? null;
      const trained = later === null ? "" : `\nat training ${figure(later)}  ratio ${figure(this.ratio(box.at))}`;
      this.tip.textContent = `${box.text}  #${this.data.ids[box.at]}\nlog π ${figure(value)}  p ${figure(value === null ? null : Math.exp(value))}${trained}`;
      const x = Math.min(box.x, this.width - this.tip.offsetWidth), y = (box.line + 1) * LINE + 2;
      this.tip.style.transform = `translate(${Math.max(0, x)}px, ${y}px)`;
    }

    select(at) {
      if (at < 0 || at >= this.data.ids.length) return;
      this.selected = at;
      const d = this.data, value = d.logprobs[at], box = this.boxes[this.first + at];
      const y = box.line * LINE;
      if (y < this.view.scrollTop) this.view.scrollTop = y;
      if (y + LINE > this.view.scrollTop + this.shown) this.view.scrollTop = y + LINE - this.shown;
      const facts = [["token", `${at + 1} of ${d.ids.length}`], ["text", box.text], ["id", String(d.ids[at])], ["position", String(d.prompt_tokens + at)],
        ["log π at sampling", figure(value)], ["p", figure(value === null ? null : Math.exp(value))], ["version", d.versions[at] === null ? "–" : `v${d.versions[at]}`], ["trained", d.trained ? "yes" : "masked"]];
      if (d.training_logprobs) facts.push(["log π at training", figure(d.training_logprobs[at])], ["ratio", figure(this.ratio(at))]);
      if (d.advantage !== null) facts.push(["advantage", figure(d.advantage, 2)]);
      this.say(...facts.map(([name, text]) => { const one = document.createElement("span"), bold = document.createElement("b"); bold.textContent = text; one.append(`${name} `, bold); return one; }));
      this.draw();
    }

    say(...parts) { this.said.replaceChildren(...parts); }
  }

  for (const root of document.querySelectorAll(".strip")) new Strip(root).load();
})();
