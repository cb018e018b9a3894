"use strict";
const draw = () => {
  const pad = (n) => String(n).padStart(2, "0");
  const clock = (d, day) => (day ? `${pad(d.getMonth() + 1)}-${pad(d.getDate())} ` : "") + `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  for (const time of document.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    if (isNaN(at)) continue;
    time.title = time.textContent;
    time.textContent = `${at.getFullYear()}-${clock(at, true)}`;
  }
  const size = (v) => {
    for (const [unit, scale] of [["PB", 1e15], ["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
      if (Math.abs(v) >= 0.99995 * scale) return `${(v / scale).toFixed(1)} ${unit}`;
    return `${v.toFixed(0)} B`;
  };
  const shown = (v, unit) => unit === "bytes" ? size(v) : unit === "bytes/s" ? `${size(v)}/s` : `${unit === "%" || unit === "W" ? v.toFixed(0) : Number(v.toPrecision(4))} ${unit}`.trim();
  const place = (v, kind) => kind === "time" ? clock(new Date(v * 1000), true) : String(Math.round(v));

  const plots = [...document.querySelectorAll("svg.plot")].map((svg) => {
    const d = svg.dataset;
    const [x0, x1, y0, y1] = [d.x0, d.x1, d.y0, d.y1].map(Number);
    const [left, right, top, bottom] = d.box.split(" ").map(Number);
    const lines = [...svg.querySelectorAll("polyline")].map((line) => ({
      name: line.dataset.name,
      points: line.getAttribute("points").split(" ").map((p) => p.split(",").map(Number)),
    }));
    return { svg, kind: d.kind, unit: d.unit, full: [x0, x1], view: [x0, x1], y0, y1, left, right, top, bottom, lines, tip: svg.parentElement.querySelector(".tip"), cross: svg.querySelector(".cross"), box: svg.querySelector(".select"), moved: svg.querySelector(".moved"), ticks: [...svg.querySelectorAll(".xt")] };
  });
  const ratio = (p) => (p.full[1] - p.full[0]) / (p.view[1] - p.view[0]);
  const toX = (p, px) => p.view[0] + (px - p.left) / (p.right - p.left) * (p.view[1] - p.view[0]);
  const fullPx = (p, x) => p.left + (x - p.full[0]) / (p.full[1] - p.full[0]) * (p.right - p.left);
  const at = (p, event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(p.svg.getScreenCTM().inverse());
    return Math.min(p.right, Math.max(p.left, point.x));
  };
  const hide = (p) => { p.tip.hidden = true; p.cross.setAttribute("visibility", "hidden"); };
  const tell = (p, px) => {
    const target = fullPx(p, toX(p, px));
    const rows = [];
    let near = null;
    for (const line of p.lines) {
      let low = 0, high = line.points.length - 1;
      while (low < high) { const mid = (low + high) >> 1; if (line.points[mid][0] < target) low = mid + 1; else high = mid; }
      if (low > 0 && target - line.points[low - 1][0] < line.points[low][0] - target) low -= 1;
      const [x, y] = line.points[low];
      if (near === null || Math.abs(x - target) < Math.abs(near - target)) near = x;
      rows.push(`${line.name}: ${shown(p.y0 + (p.bottom - y) / (p.bottom - p.top) * (p.y1 - p.y0), p.unit)}`);
    }
    if (near === null) return;
    const x = p.full[0] + (near - p.left) / (p.right - p.left) * (p.full[1] - p.full[0]);
    p.tip.textContent = [place(x, p.kind), ...rows].join("\n");
    p.tip.hidden = false;
    const share = (px - p.left) / (p.right - p.left);
    p.tip.style.left = share < 0.5 ? "auto" : "6rem";
    p.tip.style.right = share < 0.5 ? "1rem" : "auto";
    p.tip.style.top = "2.4rem";
    p.cross.setAttribute("x1", px); p.cross.setAttribute("x2", px);
    p.cross.setAttribute("visibility", "visible");
  };
  const look = (p, low, high) => {
    p.view = [low, high];
    const k = ratio(p), shift = p.left - (fullPx(p, low) - p.left) * k - p.left * k;
    p.moved.setAttribute("transform", `translate(${shift} 0) scale(${k} 1)`);
    p.ticks.forEach((tick, n) => {
      const px = p.left + (n + 0.5) / p.ticks.length * (p.right - p.left);
      tick.querySelector("text").textContent = place(toX(p, px), p.kind);
      tick.setAttribute("transform", `translate(${px} 0)`);
    });
  };
  const zoom = (p, low, high) => {
    const same = p.kind === "time" ? plots.filter((q) => q.kind === "time") : [p];
    for (const q of same) {
      const [from, to] = [Math.max(q.full[0], low), Math.min(q.full[1], high)];
      if (to > from) look(q, from, to);
    }
  };
  for (const p of plots) {
    for (const tick of p.ticks) if (p.kind === "time") tick.querySelector("text").textContent = place(Number(tick.dataset.at), "time").slice(p.full[1] - p.full[0] > 86400 ? 0 : 6);
    let began = null;
    p.svg.addEventListener("pointermove", (event) => {
      const px = at(p, event);
      tell(p, px);
      if (began === null) return;
      p.box.setAttribute("x", Math.min(began, px));
      p.box.setAttribute("width", Math.abs(px - began));
    });
    p.svg.addEventListener("pointerdown", (event) => { began = at(p, event); });
    p.svg.addEventListener("pointerup", (event) => {
      const px = at(p, event);
      if (began !== null && Math.abs(px - began) > 6) { const [a, b] = [toX(p, began), toX(p, px)]; zoom(p, Math.min(a, b), Math.max(a, b)); }
      began = null;
      p.box.setAttribute("width", 0);
    });
    p.svg.addEventListener("pointerleave", () => { hide(p); began = null; p.box.setAttribute("width", 0); });
    p.svg.addEventListener("dblclick", () => { for (const q of p.kind === "time" ? plots.filter((o) => o.kind === "time") : [p]) look(q, q.full[0], q.full[1]); });
  }
  for (const fatal of document.querySelectorAll("pre .fatal")) {
    const pre = fatal.closest("pre");
    pre.scrollTop = fatal.offsetTop - pre.offsetTop - pre.clientHeight / 2;
  }
  for (const input of document.querySelectorAll("input[data-filter]"))
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      for (const row of document.querySelectorAll(input.dataset.filter)) row.hidden = !row.dataset.find.toLowerCase().includes(wanted);
    });
  for (const button of document.querySelectorAll("button[data-open]"))
    button.addEventListener("click", () => {
      const all = [...document.querySelectorAll(button.dataset.open)];
      const open = !all.every((one) => one.open);
      for (const one of all) one.open = open;
    });
  if (location.hash) { const one = document.querySelector(location.hash); if (one && one.tagName === "DETAILS") one.open = true; }
};
draw();
addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details")) one.open = true; });
if (document.body.dataset.live) {
  let tag = "";
  const look = async () => {
    const answer = await fetch(document.body.dataset.live, tag ? { headers: { "If-None-Match": tag } } : {});
    if (answer.status !== 200) return;
    const first = tag === "";
    tag = answer.headers.get("ETag") || "";
    if (first) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = new Set([...document.querySelectorAll("details[open]")].map((one) => one.id || one.querySelector("summary").textContent.replace(/\d+/g, "")));
    for (const part of ["header", "main", "title"]) document.querySelector(part).replaceWith(fresh.querySelector(part));
    for (const one of document.querySelectorAll("details")) if (open.has(one.id || one.querySelector("summary").textContent.replace(/\d+/g, ""))) one.open = true;
    document.body.dataset.drawn = String(1 + Number(document.body.dataset.drawn || 0));
    draw();
  };
  const again = () => look().catch(() => undefined).finally(() => setTimeout(again, 2000));
  again();
}
