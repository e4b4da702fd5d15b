// What every page does: keys, theme, copying, live updates. No content from agents is ever put in as HTML here; what
// comes from the server as HTML was escaped by it.
"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // writes carry the token that only a page of ours can have read
  const token = $("meta[name=csrf]")?.content ?? "";
  document.addEventListener("htmx:configRequest", (event) => { event.detail.headers["x-mosaic-csrf"] = token; });
  document.addEventListener("htmx:responseError", (event) => toast(`The server refused (${event.detail.xhr.status}).`));
  document.addEventListener("htmx:sendError", () => toast("The proxy does not answer."));

  function toast(text) {
    const shown = $("#toast");
    shown.textContent = text;
    shown.classList.add("shown");
    clearTimeout(toast.timer);
    toast.timer = setTimeout(() => shown.classList.remove("shown"), 2500);
  }

  function changeTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("mosaic-theme", root.dataset.theme); } catch { /* for this page then */ }
    document.dispatchEvent(new Event("mosaic:theme"));
  }

  // lines: j and k go through what can be opened
  const lines = () => all("[data-row]").filter((line) => line.offsetParent !== null);
  const selected = () => $("[data-row].selected");

  function move(step) {
    const found = lines();
    if (!found.length) return;
    const at = found.indexOf(selected());
    const next = found[at < 0 ? (step > 0 ? 0 : found.length - 1) : Math.min(found.length - 1, Math.max(0, at + step))];
    selected()?.classList.remove("selected");
    next.classList.add("selected");
    $("a", next)?.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  const go = (selector) => $(selector)?.click();
  const PAGES = { t: "/ui/trajectories", g: "/ui/groups", r: "/ui/training", h: "/ui/health" };
  const KEYS = {
    j: () => move(1), k: () => move(-1), d: changeTheme, u: () => go("a[data-up]"),
    "[": () => go("a[data-previous]"), "]": () => go("a[data-next]"),
    "?": () => $("#keys").showModal(), w: () => $("#reward")?.focus(), s: () => $(".strip-view canvas")?.focus(),
    "/": () => { if ($("#q")) $("#q").focus(); else location.assign("/ui/trajectories#q"); },
    Enter: () => $("a", selected() ?? document.createElement("i"))?.click(),
  };
  let leading = 0;

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (typing && event.key === "Escape") typing.blur();
    if (typing && typing.id === "q" && event.key === "Enter" && $("#rows a")) { event.preventDefault(); move(1); }
    if (typing || event.ctrlKey || event.metaKey || event.altKey || $("#keys[open]")) return;
    if (Date.now() - leading < 1200 && PAGES[event.key]) { leading = 0; location.assign(PAGES[event.key]); return; }
    if (event.key === "g") { leading = Date.now(); return; }
    if (event.key === "Enter" && event.target.closest("a, button, summary, canvas")) return;
    const act = KEYS[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") changeTheme();
    if (button.id === "help") $("#keys").showModal();
    if (button.dataset.copy) copy(button.dataset.copy);
    if (button.dataset.reward !== undefined) { $("#reward").value = button.dataset.reward; $("#reward").focus(); }
    if (button.dataset.judge) judge(button.dataset.judge, button.dataset.name);
    if (button.id === "judge-all") judge("", "the whole trajectory");
  });

  function judge(session, name) {
    $("#judge-session").value = session;
    $("#judged").textContent = name;
    $("#judge-all").hidden = !session;
    $("#reward").focus();
  }
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.target.id === "judge" && event.detail.successful && !$("#trajectory .wrong")) {
      event.target.reset();
      judge("", "the whole trajectory");
      $("#reward").blur();
    }
  });

  async function copy(address) {
    try {
      const answer = await fetch(address);
      if (!answer.ok) throw new Error(String(answer.status));
      await navigator.clipboard.writeText(await answer.text());
      toast("Copied.");
    } catch { toast("It could not be copied: the browser allows it on https and localhost only."); }
  }

  document.addEventListener("toggle", async (event) => {
    const details = event.target;
    const address = details.dataset?.lazy;
    if (!address || !details.open) return;
    delete details.dataset.lazy;
    const answer = await fetch(address);
    $("pre", details).textContent = answer.ok ? await answer.text() : `The server refused (${answer.status}).`;
  }, true);

  // ages stay right
  const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  function age(seconds) {
    const [unit, name] = UNITS.find(([size]) => seconds >= size) ?? [1, "s"];
    return `${Math.floor(Math.max(0, seconds) / unit)} ${name}`;
  }
  function ages() { for (const time of all("time[data-at]")) time.textContent = age(Date.now() / 1000 - Number(time.dataset.at)); }
  setInterval(ages, 10000);

  // live: what is committed arrives as events, and the lines that it concerns are fetched anew
  const live = $("[data-live]");
  if (live) follow(live);

  function follow(place) {
    const asked = new URLSearchParams({ start: place.dataset.mark });
    if (place.dataset.id) asked.set("trajectory", place.dataset.id);
    const source = new EventSource(`/ui/events?${asked}`);
    const sign = $("#live");
    source.onopen = () => { sign.hidden = false; sign.classList.remove("away"); };
    source.onerror = () => sign.classList.add("away");
    const waiting = new Set();
    let running = false;
    const heard = (event) => { waiting.add(JSON.parse(event.data).trajectory_id); if (!running) update(); };
    for (const kind of ["call", "reward"]) source.addEventListener(kind, heard);
    source.addEventListener("here", (event) => { if (JSON.parse(event.data).replaced) location.reload(); });
    addEventListener("pagehide", () => source.close());

    async function update() {
      running = true;
      while (waiting.size) {
        const ids = [...waiting].slice(0, 50);
        for (const one of ids) waiting.delete(one);
        const began = performance.now();
        try { await (place.dataset.live === "list" ? rows(ids) : trajectory()); } catch { /* the next event tries again */ }
        // a page that is slow to make is asked for less often
        await new Promise((done) => setTimeout(done, Math.max(300, 3 * (performance.now() - began))));
      }
      running = false;
    }
  }

  async function rows(ids) {
    const answer = await fetch(`/ui/rows?${new URLSearchParams(ids.map((one) => ["id", one]))}`);
    if (!answer.ok) return;
    const made = new DOMParser().parseFromString(`<ol>${await answer.text()}</ol>`, "text/html");
    const list = $("#rows");
    const form = new FormData($("#filters"));
    const filtered = [...form.values()].some(Boolean);
    for (const row of all("[data-id]", made).reverse()) {
      const known = $(`[data-id="${CSS.escape(row.dataset.id)}"]`, list);
      const line = document.importNode(row, true);
      line.classList.add("fresh");
      if (known) {
        if (known.classList.contains("selected")) line.classList.add("selected");
        const focused = known.contains(document.activeElement);
        known.replaceWith(line);
        if (focused) $("a", line).focus({ preventScroll: true });
      } else if (!filtered) {
        $(".empty")?.remove();
        list.prepend(line);
      }
    }
  }

  async function trajectory() {
    const place = $("#trajectory");
    const open = all("details[open][data-keep]", place).map((one) => one.dataset.keep);
    const at = selected()?.dataset.id;
    const before = new Set(all("[data-row]", place).map((one) => one.dataset.id));
    await htmx.ajax("GET", location.pathname, { target: place, swap: "innerHTML" });
    for (const name of open) $(`details[data-keep="${CSS.escape(name)}"]`, place)?.setAttribute("open", "");
    for (const line of all("[data-row]", place)) {
      if (line.dataset.id === at) line.classList.add("selected");
      if (!before.has(line.dataset.id)) line.classList.add("fresh");
    }
  }

  if (location.hash === "#q") $("#q")?.focus();
})();
