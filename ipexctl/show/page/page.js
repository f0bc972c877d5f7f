"use strict";
(() => {
  const find = (selector, from = document) => Array.from(from.querySelectorAll(selector));
  const one = (id) => document.getElementById(id);
  const clock = (seconds) => {
    const whole = Math.max(Math.floor(seconds), 0), two = (n) => String(n).padStart(2, "0");
    return `${two(Math.floor(whole / 3600))}:${two(Math.floor(whole % 3600 / 60))}:${two(whole % 60)}`;
  };
  const parseClock = (text) => text.split(":").reduce((sum, part) => 60 * sum + Number(part), 0);

  // Charts: a cursor that follows the mouse or the arrow keys, on all charts of time at once.
  const curves = new WeakMap();
  const readCurves = (plot) => {
    if (!curves.has(plot)) {
      const low = Number(plot.dataset.low), high = Number(plot.dataset.high), inner = plot.querySelector("svg");
      const height = inner.viewBox.baseVal.height;
      curves.set(plot, find("polyline", inner).map((line) => ({
        line, name: line.dataset.name, marked: line.classList.contains("marked"),
        xs: Array.from(line.points, (point) => point.x),
        ys: Array.from(line.points, (point) => high - point.y / height * (high - low)),
      })));
    }
    return curves.get(plot);
  };
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  };
  const format = (value) => Math.abs(value) >= 10000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  const showCursor = (plot, x) => {
    let cursor = plot.querySelector(".cursor");
    if (!cursor) {
      cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
      cursor.setAttribute("class", "cursor");
      cursor.setAttribute("y1", "0");
      cursor.setAttribute("y2", "100%");
      plot.append(cursor);
    }
    cursor.setAttribute("x1", `${x / 10}%`);
    cursor.setAttribute("x2", `${x / 10}%`);
    const values = readCurves(plot).map((curve) => ({ ...curve, value: curve.ys[nearest(curve.xs, x)] }));
    const at = Number(plot.dataset.begin) + x / 1000 * Number(plot.dataset.extent);
    values.sort((a, b) => b.marked - a.marked || b.value - a.value);
    const shown = values.length > 8 ? [...values.slice(0, 4), null, ...values.slice(-3)] : values;
    const words = shown.map((curve) => curve ? `${curve.name}${curve.marked ? " (!)" : ""} ${format(curve.value)}` : "…");
    const readout = plot.closest("figure").querySelector(".readout");
    readout.textContent = `${plot.dataset.steps === "1" ? `step ${Math.round(at)}` : clock(at)}: ${words.join(" · ")}`;
  };
  let cursor = 500;
  const moveCursor = (plot, x) => {
    cursor = Math.min(Math.max(x, 0), 1000);
    const timed = plot.dataset.steps === "0";
    for (const other of find(".plot")) {
      if (other === plot || (timed && other.dataset.steps === "0" && onScreen(other))) showCursor(other, cursor);
    }
  };
  const onScreen = (element) => {
    const box = element.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  };
  const chart = (target) => target instanceof Element ? target.closest(".plot") : null;
  document.addEventListener("pointermove", (event) => {
    const plot = chart(event.target);
    if (!plot) return;
    const box = plot.getBoundingClientRect();
    moveCursor(plot, (event.clientX - box.left) / box.width * 1000);
  });

  // Logs: search, and the way from the time axis to a rank's lines.
  const logs = () => find(".log");
  let hits = [], hit = -1;
  const search = () => {
    const words = one("find").value.toLowerCase();
    hits = [];
    hit = -1;
    for (const log of logs()) {
      const lines = log.querySelector(".lines");
      let count = 0;
      lines.classList.toggle("filtered", words !== "");
      for (const line of lines.children) {
        const matches = words !== "" && line.textContent.toLowerCase().includes(words);
        line.classList.toggle("hit", matches);
        line.classList.remove("current");
        if (matches) { count += 1; hits.push(line); }
      }
      log.hidden = words !== "" && count === 0;
      if (words !== "") log.open = count > 0 && hits.length - count < 400;
    }
    one("hits").textContent = words === "" ? "" : `${hits.length} lines`;
  };
  const goTo = (line) => {
    find(".current").forEach((other) => other.classList.remove("current"));
    line.closest("details").open = true;
    line.classList.add("current");
    line.scrollIntoView({ block: "center" });
  };
  const step = (by) => {
    if (!hits.length) return;
    hit = (hit + by + hits.length) % hits.length;
    goTo(hits[hit]);
    one("hits").textContent = `${hit + 1} of ${hits.length} lines`;
  };
  const openLog = (rank, seconds) => {
    const log = one(`rank-${rank}`);
    if (!log) return;
    if (one("find").value) { one("find").value = ""; search(); }
    log.open = true;
    const lines = find("p[data-t]", log).filter((line) => !line.classList.contains("h") || one("logs").classList.contains("all"));
    const line = lines.find((each) => parseClock(each.dataset.t) >= seconds) || lines[lines.length - 1];
    if (line) goTo(line); else log.scrollIntoView();
  };
  document.addEventListener("click", (event) => {
    const row = event.target instanceof Element ? event.target.closest(".rows [data-rank]") : null;
    if (!row) return;
    const box = row.ownerSVGElement.getBoundingClientRect();
    openLog(row.dataset.rank, (event.clientX - box.left) / box.width * Number(one("time").dataset.length));
  });
  document.addEventListener("input", (event) => { if (event.target.id === "find") search(); });
  document.addEventListener("change", (event) => {
    if (event.target.id === "harmless") one("logs").classList.toggle("all", event.target.checked);
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const plot = chart(event.target);
    const moves = { ArrowLeft: cursor - 10, ArrowRight: cursor + 10, PageUp: cursor - 100, PageDown: cursor + 100, Home: 0, End: 1000 };
    if (plot && event.key in moves) moveCursor(plot, moves[event.key]);
    else if (plot && event.key === "Enter") openLog(0, cursor / 1000 * Number(one("time").dataset.length));
    else if (event.key === "/" && !typing && one("find")) { one("find").focus(); one("find").scrollIntoView({ block: "center" }); }
    else if (event.key === "Escape" && typing) { event.target.value = ""; search(); event.target.blur(); }
    else if (event.key === "Enter" && event.target.id === "find") step(event.shiftKey ? -1 : 1);
    else if (event.key === "n" && !typing) step(1);
    else if (event.key === "N" && !typing) step(-1);
    else return;
    event.preventDefault();
  });

  // A page that is served while the run goes on: its middle is replaced, what is open stays open.
  const live = document.body.dataset.live;
  const refresh = async (tag) => {
    try {
      const response = await fetch(`${location.pathname}?part`, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (response.status === 410) { one("state").textContent = "the run's watcher has ended"; return; }
      if (response.status === 200) {
        const part = new DOMParser().parseFromString(await response.text(), "text/html");
        const open = new Set(find("details[open][id]").map((each) => each.id));
        const scrolled = find(".lines").map((each) => [each.closest("details").id, each.scrollTop]);
        const words = one("find")?.value, all = one("logs").classList.contains("all");
        document.querySelector("main").replaceWith(document.adoptNode(part.querySelector("main")));
        open.forEach((id) => { if (one(id)) one(id).open = true; });
        scrolled.forEach(([id, top]) => { if (one(id)) one(id).querySelector(".lines").scrollTop = top; });
        if (words && one("find")) { one("find").value = words; search(); }
        if (all && one("harmless")) { one("logs").classList.add("all"); one("harmless").checked = true; }
        if (one("time").dataset.live === "0") { one("state").textContent = "the run has ended"; return; }
      }
      one("state").textContent = "live";
      setTimeout(refresh, 2000, response.headers.get("ETag") || tag);
    } catch {
      one("state").textContent = "no connection to ipexctl watch";
      setTimeout(refresh, 5000, tag);
    }
  };
  if (live === "1") setTimeout(refresh, 2000, "");
})();
