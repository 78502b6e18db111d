"use strict";
// Everything that comes from a run is text: nothing here becomes markup.

const COLORS = 7, WIDTH = 440, HEIGHT = 190, LEFT = 52, BOTTOM = 22, TOP = 8, RIGHT = 10;
const runs = [];
let chosen = 0, source = null, details = null, wanted = false;

const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const whole = (value) => Math.round(value).toLocaleString("en-US");

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed(value / 1e6)}M`;
  if (size >= 1e3) return `${trimmed(value / 1e3)}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return trimmed(value);
}

const trimmed = (value) => String(Number(value.toPrecision(3)));

function duration(seconds) {
  const whole = Math.floor(seconds), pad = (value) => String(value).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
}

// Ticks at 1, 2 or 5 times a power of ten.
function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let number = Math.ceil(low / step - 1e-9); number * step <= high + step * 1e-9; number++) found.push(number * step);
  return found;
}

// As short as tells them apart.
function labels(values) {
  const texts = values.map((value) => short(Math.abs(value) < 1e-12 ? 0 : value));
  if (new Set(texts).size === texts.length) return texts;
  const digits = Math.max(0, -Math.floor(Math.log10(values[1] - values[0])));
  return values.map((value) => value.toLocaleString("en-US", { maximumFractionDigits: digits }));
}

// Draw series [{name, points: [[env steps, value], ...]}, ...] into one picture.
function chart(title, series) {
  let low = Infinity, high = -Infinity, end = 1;
  for (const one of series) {
    for (const [steps, value] of one.points) {
      low = Math.min(low, value);
      high = Math.max(high, value);
      end = Math.max(end, steps);
    }
  }
  // Equal but for rounding: no ticks are between neighbouring floats.
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= size * 1e-9) { const room = size * 0.05 || 1; low -= room; high += room; }
  const x = (steps) => LEFT + (steps / end) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - BOTTOM - TOP);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} by env steps` });
  const values = ticks(low, high, 4), texts = labels(values);
  for (const [place, value] of values.entries()) {
    svg.append(drawn("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, texts[place]));
  }
  for (const steps of ticks(0, end, 4)) {
    svg.append(drawn("text", { x: x(steps), y: HEIGHT - 6, "text-anchor": x(steps) > WIDTH - 40 ? "end" : "middle" }, short(steps)));
  }
  series.forEach((one, place) => {
    const path = one.points.map(([steps, value], at) => `${at ? "L" : "M"}${x(steps).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const line = drawn("path", { class: `curve s${(one.color ?? place) % COLORS}`, d: one.points.length > 1 ? path : `${path}h3` });
    line.append(drawn("title", {}, one.name));
    svg.append(line);
  });
  const legend = element("p", { class: "legend" });
  for (const [place, one] of series.slice(0, COLORS).entries()) {
    const last = one.points[one.points.length - 1][1];
    legend.append(element("span", {}, element("i", { class: `key s${(one.color ?? place) % COLORS}` }), ` ${one.name} ${short(last)}`));
  }
  if (series.length > COLORS) legend.append(element("span", { class: "muted" }, `and ${series.length - COLORS} more`));
  return element("figure", {}, element("h3", {}, title), legend, svg);
}

function showRuns() {
  $("runs-section").hidden = runs.length < 2;
  if (runs.length < 2) return;
  $("runs").replaceChildren(...runs.map((run, place) => {
    const pick = element("button", { type: "button" }, run.name);
    pick.addEventListener("click", () => choose(place));
    const returns = run.returns.find((picture) => picture.title === "return")?.series ?? [];
    const last = returns.map((one) => `${one.name} ${short(one.points[one.points.length - 1][1])}`).join(", ");
    return element("tr", { "aria-current": place === chosen ? "true" : null },
      element("td", {}, pick), element("td", { class: run.state, title: run.reason }, run.state),
      element("td", { class: "number" }, whole(run.env_steps)), element("td", { class: "number" }, short(run.env_steps_per_s)), element("td", {}, last));
  }));
  const byPolicy = new Map();
  runs.forEach((run, place) => {
    for (const { title, series } of run.returns) {
      for (const { name, points } of series) {
        const key = `${title}, ${name}`;
        byPolicy.set(key, [...(byPolicy.get(key) ?? []), { name: run.name, points, color: place }]);
      }
    }
  });
  $("returns").replaceChildren(...[...byPolicy].map(([title, series]) => chart(title, series)));
}

function showRun() {
  const run = runs[chosen];
  if (!run || !details) return;
  document.title = `${run.name} – marlflow watch`;
  $("name").textContent = run.name;
  const steps = run.of_env_steps ? `${whole(run.env_steps)} of ${whole(run.of_env_steps)} env steps` : `${whole(run.env_steps)} env steps`;
  const state = element("span", { class: run.state }, run.reason ? `${run.state}: ${run.reason}` : run.state);
  $("state").replaceChildren(state, ` · ${steps} · ${short(run.env_steps_per_s)}/s · ${duration(run.time_s)}`);
  $("plan").replaceChildren(...details.plan.map(box));
  $("curves").replaceChildren(...details.curves.map(({ title, series }) => chart(title, series)));
  showStop(run);
  showFilm(details.film);
  const faults = Object.entries(run.faults);
  $("faults").textContent = faults.length ? faults.map(([name, count]) => `${name.replaceAll("_", " ")} ${count}`).join(", ") : "No faults.";
  $("log").textContent = details.log.join("\n");
  showConfig();
}

function showStop(run) {
  $("stop").hidden = !run.control || run.state !== "running";
  $("stop").disabled = run.is_stopping;
  $("stop").textContent = run.is_stopping ? "Stopping after this round …" : "Stop and save";
}

async function stop() {
  const run = runs[chosen], place = chosen;
  if (!confirm(`Stop ${run.name}? It finishes its round, saves a checkpoint and evaluates; marlflow resume continues it.`)) return;
  const answer = await fetch(`stop?run=${place}`, { method: "POST" });
  if (!answer.ok) alert(await answer.text());
}

// A film that plays is left alone until there is another one.
function showFilm(film) {
  $("film-section").hidden = !film;
  const address = film ? `film?run=${chosen}&written=${film.written}` : "";
  if ($("film").dataset.address === address) return;
  $("film").dataset.address = address;
  if (!film) { $("film").replaceChildren(); return; }
  const shown = film.type.startsWith("image/") ? element("img", { src: address, alt: film.name })
    : element("video", { src: address, controls: "", loop: "", playsinline: "", preload: "auto" });
  shown.muted = true;
  $("film").replaceChildren(shown, element("figcaption", { class: "muted" }, `${film.name}, the policies at ${whole(film.env_steps)} env steps`));
}

function box(plan) {
  const made = element("div", { class: "box" }, element("h3", {}, plan.title));
  for (const row of plan.rows) {
    const list = element("ol", { class: "row" });
    row.forEach((stage, place) => {
      const before = row[place - 1];
      list.append(element("li", { "data-flow": before && before.items_per_s ? `${short(before.items_per_s)}/s` : "" }, stageBox(stage)));
    });
    made.append(list);
  }
  return made;
}

function stageBox(stage) {
  const pressed = stage.blocked > 0.5 ? " pressed" : "";
  const made = element("div", { class: `stage${stage.queue ? " queue" : ""}${pressed}` }, element("b", {}, stage.label));
  if (stage.at) made.append(element("small", {}, stage.at));
  if (stage.rows_per_s !== null) made.append(element("small", {}, `${short(stage.items_per_s)} items, ${short(stage.rows_per_s)} rows/s`));
  if (stage.waiting !== null && stage.capacity) {
    const fill = element("i", { class: stage.waiting < stage.capacity ? "busy" : "blocked" });
    fill.style.width = `${(100 * stage.waiting) / stage.capacity}%`;
    made.append(element("small", {}, `${stage.waiting} of ${stage.capacity} waiting`), element("div", { class: "stack" }, fill));
  }
  if (stage.dropped) made.append(element("small", {}, `${whole(stage.dropped)} rows dropped`));
  for (const name of stage.arrows) made.append(element("small", {}, `→ ${name}`));
  if (stage.busy !== null && !stage.queue) {
    const stack = element("div", { class: "stack", title: ["busy", "starved", "blocked"].map((name) => `${name} ${Math.round(100 * stage[name])}%`).join(", ") });
    const whole = Math.max(1, stage.busy + stage.starved + stage.blocked);
    for (const name of ["busy", "starved", "blocked"]) {
      const part = element("i", { class: name });
      part.style.width = `${(100 * stage[name]) / whole}%`;
      stack.append(part);
    }
    made.append(stack);
  }
  return made;
}

function showConfig() {
  const text = $("filter").value.toLowerCase();
  const lines = details ? details.config.filter((line) => line.join(" ").toLowerCase().includes(text)) : [];
  $("config").replaceChildren(...lines.map(([key, value]) => element("tr", {}, element("td", {}, key), element("td", {}, value))));
}

// Many changes are drawn at once, and none while the page cannot be seen.
function draw() {
  if (wanted) return;
  wanted = true;
  requestAnimationFrame(() => { wanted = false; showRuns(); showRun(); });
}

function choose(place) {
  chosen = place;
  details = null;
  if (source) source.close();
  source = new EventSource(`events?run=${place}`);
  source.onopen = () => { $("connection").textContent = "· live"; };
  source.onerror = () => { $("connection").textContent = "· not connected: marlflow watch has ended, or cannot be reached"; };
  source.onmessage = (event) => {
    const run = JSON.parse(event.data);
    runs[run.run] = run;
    if (run.run === chosen && run.details) details = run.details;
    if (runs.length === run.runs && runs.every(Boolean)) draw();
  };
}

$("stop").addEventListener("click", stop);
$("filter").addEventListener("input", showConfig);
choose(0);
