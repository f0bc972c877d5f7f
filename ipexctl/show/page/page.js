"use strict";
(() => {
  const find = (selector, from = document) => Array.from(from.querySelectorAll(selector));
  const byId = (id) => document.getElementById(id);
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
      const height = Number(plot.getAttribute("height"));
      const named = new Map();  // a curve has a line for each start of the run
      for (const line of find("polyline", inner)) {
        const { name } = line.dataset, curve = named.get(name) || { name, marked: line.classList.contains("marked"), xs: [], ys: [] };
        named.set(name, curve);
        for (const { x, y } of line.points) { curve.xs.push(x); curve.ys.push(high - y / height * (high - low)); }
      }
      curves.set(plot, [...named.values()]);
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
  const draw = (name, attributes, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  };

  // Zoom: the window of the time axis of a run, as [begin, end] in seconds, which all its drawings share.
  let shown = null;
  const readLength = () => Number(byId("time").dataset.length);
  const readWindow = () => shown || [0, readLength()];
  const formatMoment = (at, span) => {
    const digits = span >= 5 ? 0 : Math.min(Math.max(1 - Math.floor(Math.log10(span)), 1), 4);
    const whole = Math.round(at * 10 ** digits) / 10 ** digits;
    return clock(whole) + (digits ? (whole % 1).toFixed(digits).slice(1) : "");
  };
  const sizes = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const listTicks = (begin, end) => {
    const span = end - begin, least = 10 ** Math.floor(Math.log10(span / 5));
    const size = span < 5 ? least * [1, 2, 5, 10].find((size) => span / (least * size) <= 5)
      : sizes.find((size) => span / size <= 5) || 86400 * Math.round(span / 5 / 86400);
    const first = Math.ceil(begin / size - 1e-9), count = Math.floor(end / size + 1e-9) - first + 1;
    return Array.from({ length: count }, (_, number) => (first + number) * size);
  };
  const drawTimes = () => {
    const [begin, end] = readWindow(), length = readLength(), span = end - begin;
    const place = (at) => (at - begin) / span * 100;
    for (const bar of find(".rows rect[width], .rows text")) {
      bar.at ??= ["x", "width"].map((name) => parseFloat(bar.getAttribute(name) || 0) / 100 * length);
      const from = place(bar.at[0]), to = place(bar.at[0] + bar.at[1]);
      bar.setAttribute("x", `${Math.max(from, 0)}%`);
      if (bar.tagName === "rect") bar.setAttribute("width", `${Math.max(Math.min(to, 100) - Math.max(from, 0), 0)}%`);
      else bar.style.display = from < 0 || from > 100 ? "none" : "";
    }
    const ticks = listTicks(begin, end).map((at) => [place(at), end < 60 ? `${Number(at.toFixed(4))} s` : formatMoment(at, span).slice(end < 3600 ? 3 : 0)]);
    const lines = ticks.map(([x]) => draw("line", { x1: `${x}%`, x2: `${x}%`, y1: 0, y2: "100%", class: "grid" }));
    for (const group of find(".rows .ticks")) group.replaceChildren(...lines);
    const names = ticks.map(([x, name]) => draw("text", { x: `${x}%`, y: 12, class: `tick${x < 5 ? " first" : x > 95 ? " last" : ""}` }, name));
    for (const axis of find(".axis")) axis.replaceChildren(...names.map((name) => name.cloneNode(true)));
  };
  const drawWindow = () => {
    drawTimes();
    const [begin, end] = readWindow(), length = readLength();
    for (const inner of find(".plot > svg")) {
      const box = inner.viewBox.baseVal;
      [box.x, box.width] = [1000 * begin / length, 1000 * (end - begin) / length];
    }
    const width = shown && shown[1] - shown[0];
    for (const note of find(".window")) {
      note.hidden = !shown;
      note.firstElementChild.textContent = shown ? `${formatMoment(shown[0], width)} to ${formatMoment(shown[1], width)}` : "";
    }
  };
  const zoom = (begin, end) => {
    const length = readLength(), span = Math.max(end - begin, 0.01, length * 1e-6);
    if (span >= length) shown = null;
    else {
      const from = Math.min(Math.max((begin + end - span) / 2, 0), length - span);
      shown = [from, from + span];
    }
    drawWindow();
  };
  const showWhole = () => { shown = null; drawWindow(); };

  const showCursor = (plot, x) => {
    const cursor = plot.querySelector(".cursor") || plot.appendChild(draw("line", { class: "cursor", y1: 0, y2: "100%" }));
    cursor.setAttribute("x1", `${x / 10}%`);
    cursor.setAttribute("x2", `${x / 10}%`);
    const [begin, end] = readWindow(), at = begin + x / 1000 * (end - begin);
    const values = readCurves(plot).map((curve) => ({ ...curve, value: curve.ys[nearest(curve.xs, 1000 * at / readLength())] }));
    values.sort((a, b) => b.marked - a.marked || b.value - a.value);
    const shown = values.length > 8 ? [...values.slice(0, 4), null, ...values.slice(-3)] : values;
    const words = shown.map((curve) => curve ? `${curve.name}${curve.marked ? " (!)" : ""} ${format(curve.value)}` : "…");
    const readout = plot.closest("figure").querySelector(".readout");
    readout.textContent = `${formatMoment(at, end - begin)}: ${words.join(" · ")}`;
  };
  let cursor = 500;
  const moveCursor = (plot, x) => {
    const [begin, end] = readWindow(), beyond = x > 1000 ? x - 1000 : Math.min(x, 0);
    if (beyond && shown) zoom(begin + beyond / 1000 * (end - begin), end + beyond / 1000 * (end - begin));
    cursor = Math.min(Math.max(x, 0), 1000);
    for (const other of find(".plot")) {
      if (other === plot || onScreen(other)) showCursor(other, cursor);
    }
  };
  const zoomAt = (drawing, times) => {
    const [begin, end] = readWindow(), at = begin + cursor / 1000 * (end - begin);
    zoom(at - (at - begin) / times, at + (end - at) / times);
    if (drawing.matches(".plot")) moveCursor(drawing, cursor);
  };
  const onScreen = (element) => {
    const box = element.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  };
  const closest = (target, selector) => target instanceof Element ? target.closest(selector) : null;
  const chart = (target) => closest(target, ".plot");
  const readPlace = (drawing, event) => {
    const box = drawing.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  const readMoment = (place) => {
    const [begin, end] = readWindow();
    return begin + place * (end - begin);
  };
  let drag = null;  // where a button went down, and the area that is drawn from there
  document.addEventListener("pointerdown", (event) => {
    const drawing = closest(event.target, ".plot, .rows");
    drag = drawing && event.button === 0 ? { drawing, from: readPlace(drawing, event), area: null } : null;
  });
  document.addEventListener("pointermove", (event) => {
    if (drag) {
      const { drawing, from } = drag, to = readPlace(drawing, event);
      if (!drag.area && Math.abs(to - from) * drawing.getBoundingClientRect().width > 5) drag.area = drawing.appendChild(draw("rect", { class: "select", y: 0, height: "100%" }));
      drag.area?.setAttribute("x", `${100 * Math.min(from, to)}%`);
      drag.area?.setAttribute("width", `${100 * Math.abs(to - from)}%`);
    }
    const plot = chart(event.target);
    if (plot && !drag?.area) moveCursor(plot, 1000 * readPlace(plot, event));
  });
  let dragged = false;  // the click that follows belongs to it
  const endDrag = (event) => {
    const { drawing, from, area } = drag || {};
    drag = null;
    dragged = Boolean(area);
    area?.remove();
    if (area && event.type === "pointerup") {
      const to = readPlace(drawing, event);
      zoom(readMoment(Math.min(from, to)), readMoment(Math.max(from, to)));
    }
  };
  document.addEventListener("pointerup", endDrag);
  document.addEventListener("pointercancel", endDrag);

  // Logs: search, and the way from the time axis to a rank's lines.
  const search = () => {
    const words = byId("find").value.toLowerCase();
    let hits = 0;
    for (const log of find(".log")) {
      const lines = log.querySelector(".lines");
      let count = 0;
      lines.classList.toggle("filtered", words !== "");
      for (const line of lines.children) {
        const matches = words !== "" && line.textContent.toLowerCase().includes(words);
        line.classList.toggle("hit", matches);
        line.classList.remove("current");
        if (matches) count += 1;
      }
      log.hidden = words !== "" && count === 0;
      if (words !== "") log.open = count > 0 && hits < 400;
      hits += count;
    }
    byId("hits").textContent = words === "" ? "" : `${hits} lines`;
  };
  const goTo = (line) => {
    find(".current").forEach((other) => other.classList.remove("current"));
    line.closest("details").open = true;
    line.classList.add("current");
    line.scrollIntoView({ block: "center" });
  };
  const openLog = (rank, seconds) => {
    const log = byId(`rank-${rank}`);
    if (!log) return;
    if (byId("find").value) { byId("find").value = ""; search(); }
    log.open = true;
    const lines = find("p[data-t]", log).filter((line) => !line.classList.contains("h") || byId("logs").classList.contains("all"));
    const line = lines.find((each) => parseClock(each.dataset.t) >= seconds) || lines[lines.length - 1];
    if (line) goTo(line); else log.scrollIntoView();
  };
  document.addEventListener("click", (event) => {
    const row = closest(event.target, ".rows [data-rank]"), button = closest(event.target, "button");
    if (button?.matches(".whole")) { showWhole(); closest(button, "main")?.querySelector(".scroll, .plot")?.focus(); }
    else if (row && !dragged) openLog(row.dataset.rank, readMoment(readPlace(row.ownerSVGElement, event)));
    dragged = false;
  });
  document.addEventListener("input", (event) => { if (event.target === byId("find")) search(); });
  document.addEventListener("change", (event) => {
    if (event.target === byId("harmless")) byId("logs").classList.toggle("all", event.target.checked);
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const plot = chart(event.target), drawing = plot || closest(event.target, ".scroll")?.querySelector(".rows");
    const moves = { ArrowLeft: cursor - 10, ArrowRight: cursor + 10, PageUp: cursor - 100, PageDown: cursor + 100, Home: 0, End: 1000 };
    if (plot && event.key in moves) moveCursor(plot, moves[event.key]);
    else if (plot && event.key === "Enter") openLog(0, readMoment(cursor / 1000));
    else if (drawing && (event.key === "+" || event.key === "=")) zoomAt(drawing, 2);
    else if (drawing && event.key === "-") zoomAt(drawing, 0.5);
    else if (drawing && event.key === "0") showWhole();
    else if (event.key === "Escape" && typing) { event.target.value = ""; search(); event.target.blur(); }
    else return;
    event.preventDefault();
  });

  // A page that is served while the run goes on asks for itself again, unless somebody reads its logs or has zoomed.
  const renew = Number(document.body.dataset.renew);
  if (renew) setInterval(() => { if (!shown && !byId("find")?.value && !find(".log[open]").length) location.reload(); }, 1000 * renew);
  drawWindow();
})();
