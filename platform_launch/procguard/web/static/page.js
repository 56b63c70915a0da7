// Common to all pages: refreshing, confirmation of irreversible actions, and refusals.
"use strict";

const words = JSON.parse(document.body.dataset.words);
const $ = (selector, within = document) => within.querySelector(selector);
const message = (key, values = {}) => words[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Morphing keeps open dialogs and details open. Focused elements are updated as well, such as a button or a table:
// refreshed parts have no text fields.
Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
  !(name === "open" && (node.tagName === "DETAILS" || node.tagName === "DIALOG"));

// Requests: JSON for the API, or the document in data-body. Fields with data-number are numbers, or null if empty;
// those with data-lines have one NAME=value per line.
htmx.defineExtension("json", {
  onEvent(name, event) {
    if (name === "htmx:configRequest") event.detail.headers["Content-Type"] = "application/json";
  },
  encodeParameters(_xhr, parameters, trigger) {
    const source = trigger.id === "ranks" ? $("#settings-form") : trigger; // a preview of the settings
    if (source.dataset.body !== undefined) return source.dataset.body;
    const body = {};
    for (const [name, value] of Object.entries(Object.fromEntries(parameters.entries?.() ?? Object.entries(parameters)))) {
      const kind = source.elements?.[name]?.dataset ?? {};
      if (kind.number !== undefined) body[name] = value === "" ? null : Number(value);
      else if (kind.optional !== undefined) body[name] = value.trim() || null;
      else if (kind.flag !== undefined) body[name] = true;
      else if (kind.words !== undefined) body[name] = value.split(/[\s,]+/).filter(Boolean);
      else body[name] = kind.lines === undefined ? value : variables(value);
    }
    for (const field of source.elements ?? []) if (field.dataset?.flag !== undefined) body[field.name] = field.checked;
    if (source.dataset.selection !== undefined) {
      body.workers = [...selected].sort();
      body.group ??= null;
    }
    return JSON.stringify(body);
  },
});

// One NAME=value per line; any other line is reported before anything is sent.
document.addEventListener("input", ({ target }) => {
  if (target.dataset.lines === undefined) return;
  const wrong = target.value.split("\n").find((line) => line.trim() && !/^\s*[A-Za-z_]\w{0,127}\s*=/.test(line));
  target.setCustomValidity(wrong === undefined ? "" : message("variables.wrong", { line: wrong.trim() }));
});

function variables(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(lines.map((line) => {
    const [name, ...rest] = line.split("=");
    return [name.trim(), rest.join("=").trim()];
  }));
}

// Notices
function notice(lines, bad = false) {
  const box = element("div", undefined, bad ? "bad" : "");
  const text = element("div");
  text.append(...lines.map((line) => element("p", line)));
  box.append(text);
  const close = element("button", message("dismiss"), "quiet");
  close.type = "button";
  close.addEventListener("click", () => box.remove());
  box.append(close);
  if (bad) box.setAttribute("role", "alert");
  $("#notices").append(box);
  while ($("#notices").children.length > 3) $("#notices").firstChild.remove();
  setTimeout(() => box.remove(), bad ? 15000 : 5000);
}

function refusal(xhr) {
  try {
    const answer = JSON.parse(xhr.responseText);
    if (answer.error) return answer;
  } catch { /* not the API's answer: a proxy's, or none */ }
  return { error: message("failed"), hint: "", problems: [] };
}

// A field's label, if the page has one.
function labelled(path) {
  const [name, ...rest] = path.split(".").filter((part) => !/^(\[key\]|\d+)$/.test(part));
  const label = document.getElementsByName(name)[0]?.labels?.[0];
  return label ? [label.firstChild.textContent.trim(), ...rest].join(": ") : path;
}

function problem({ code, text, hint, values }) {
  if (!words[`problem.${code}`]) return `${text}${hint ? `. ${hint}` : ""}`;
  const shown = values.field === undefined ? values : { ...values, field: labelled(values.field) };
  return [`problem.${code}`, `problem.${code}.hint`].filter((key) => words[key]).map((key) => message(key, shown)).join(" ");
}

const refused = ({ code, error, hint, values }) => problem({ code, text: error, hint, values });

// An action that removes the page's subject leads to another page: a refresh in between must not show "not found".
let leaving = false;
document.body.addEventListener("htmx:beforeSend", ({ detail }) => {
  if (detail.elt.dataset.go) leaving = true;
});
document.body.addEventListener("htmx:afterRequest", ({ detail }) => {
  const source = detail.requestConfig.elt;
  const verb = detail.requestConfig.verb;
  if (verb === "get" || detail.pathInfo.requestPath.startsWith("/fragments/")) {
    // The page's subject is gone.
    if (detail.xhr.status === 404 && !leaving) location.reload();
    return;
  }
  if (source.dataset.go && !detail.successful) leaving = false;
  const errors = source.dataset.errors && document.getElementById(source.dataset.errors);
  if (errors) errors.replaceChildren();
  if (!detail.successful) {
    const answer = refusal(detail.xhr);
    const lines = answer.problems?.length ? answer.problems.map(problem) : [refused(answer)];
    if (errors) errors.replaceChildren(...lines.map((line) => element("p", line)));
    else notice(lines, true);
    if (detail.xhr.status === 401 && location.pathname !== "/login") logInAgain();
    return;
  }
  if (source.dataset.shows) {
    const place = document.getElementById(source.dataset.shows);
    $("code", place).textContent = JSON.parse(detail.xhr.responseText).token;
    place.hidden = false;
  }
  if (source.dataset.go) return void location.assign(source.dataset.go.replace("{name}", () => source.elements.name.value));
  // Settings that were saved but cannot start are reported together with the reasons.
  const problems = source.id === "settings-form" ? [...document.querySelectorAll("#ranks .problem")] : [];
  if (source.id === "settings-form") $("#notices").replaceChildren(); // those of what was saved before
  if (problems.length) notice([message("saved_cannot_start"), ...problems.map((one) => one.textContent.trim())], true);
  else if (source.dataset.done) notice([source.dataset.done]);
  if (source.dataset.selection !== undefined) select([...selected], false);
  if (source.tagName === "FORM" && source.dataset.keep === undefined) source.reset();
  source.closest("dialog")?.close();
  source.dispatchEvent(new CustomEvent("done"));
  refresh();
});

// Dialogs
document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens).showModal();
  if (event.target.closest("[data-closes]")) event.target.closest("dialog").close();
});

let confirmed = null;
document.body.addEventListener("htmx:confirm", (event) => {
  const { elt, question, issueRequest } = event.detail;
  if (elt.dataset.starts && unsaved() && !startAsSaved) return askAboutUnsaved(event);
  startAsSaved = false;
  if (!question) return;
  event.preventDefault();
  const dialog = $("#confirm");
  $("#confirm-title").textContent = message("confirm", { action: elt.dataset.ok });
  $("#confirm-text").textContent = question;
  $("#confirm-ok").textContent = elt.dataset.ok;
  $("#confirm-ok").classList.toggle("danger", elt.dataset.danger !== undefined);
  confirmed = () => (elt.isConnected ? issueRequest(true) : notice([message("overtaken")], true));
  dialog.showModal();
});
$("#confirm-ok")?.addEventListener("click", () => confirmed());

// Language and theme are cookies, so the server can apply them when it renders the page.
function remember(name, value) {
  document.cookie = `${name}=${value}; path=/; max-age=31536000; samesite=lax`;
}
$("#language").addEventListener("change", (event) => {
  remember("language", event.target.value);
  location.reload();
});
// The system's theme, then the other one, then explicitly the first one, then the system's again.
$("#theme").addEventListener("click", () => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const other = system === "dark" ? "light" : "dark";
  const next = { "": other, [other]: system, [system]: "" }[root.dataset.theme ?? ""];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  remember("theme", next);
});

// Refreshing: the server sends an event when something changed, and the page fetches what it shows. Hidden tabs hold
// no connection, because browsers allow only six per server.
const QUIET_MS = 15000;
let source = null;
let lastEventAt = 0;
let offlineSince = null;
let pause = 1000;
let again = 0;

function refresh() {
  htmx.trigger(document.body, "changed");
}

function connection(state) {
  const live = $("#live");
  live.dataset.state = state;
  live.lastElementChild.textContent = message(`live.${state}`);
  const offline = state === "offline";
  offlineSince = offline ? offlineSince ?? new Date() : null;
  $("#offline").hidden = !offline;
  document.body.classList.toggle("stale", offline);
  if (offline) $("#offline-since").textContent = message("offline.since", { time: offlineSince.toLocaleTimeString() });
}

// The session has ended: log in and return to this page.
function logInAgain() {
  location.assign(`/login?ended=1&next=${encodeURIComponent(location.pathname + location.search)}`);
}

function listen() {
  clearTimeout(again);
  source?.close();
  source = new EventSource("/stream");
  lastEventAt = Date.now();
  const alive = () => {
    lastEventAt = Date.now();
    pause = 1000;
    if ($("#live").dataset.state !== "live") {
      connection("live");
      refresh();
    }
  };
  source.addEventListener("alive", alive);
  source.addEventListener("changed", () => { alive(); refresh(); });
  source.addEventListener("error", lost);
}

function lost() {
  source?.close();
  source = null;
  clearTimeout(again);
  if (document.hidden) return;
  again = setTimeout(async () => {
    // A stream that ends after its lifetime is normal; one that cannot be reopened is not.
    try {
      const answer = await fetch("/api/v1/me");
      if (answer.status === 401) return void logInAgain();
      if (!answer.ok) throw new Error(answer.status);
      listen();
    } catch {
      connection("offline");
      pause = Math.min(pause * 1.5, 5000);
      lost();
    }
  }, offlineSince || pause > 1000 ? pause : 100);
}

if (document.body.dataset.live !== undefined) {
  listen();
  setInterval(() => source && !document.hidden && Date.now() - lastEventAt > QUIET_MS && (connection("offline"), lost()), 2000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      source?.close();
      source = null;
      clearTimeout(again);
    } else if (!source) {
      listen();
      refresh();
    }
  });
  addEventListener("pagehide", () => source?.close());
}

// Show progress for requests by the user, not for refreshing.
document.body.addEventListener("htmx:beforeRequest", ({ detail }) => {
  if (detail.requestConfig.triggeringEvent?.type !== "changed") $("#progress")?.classList.add("on");
});
document.body.addEventListener("htmx:afterRequest", () => $("#progress")?.classList.remove("on"));

// The table of workers: the selection is kept here across its pages.
const selected = new Set();
let lastTicked = null;
const boxes = () => [...document.querySelectorAll(".workers td.tick input")];

function select(names, on) {
  for (const name of names) on ? selected.add(name) : selected.delete(name);
  showSelection();
}

function showSelection() {
  const bar = $("#selection");
  if (!bar) return;
  for (const box of boxes()) {
    box.checked = selected.has(box.value);
    box.closest("tr").classList.toggle("ticked", box.checked);
  }
  const all = $("#tick-all");
  if (all) {
    const ticked = boxes().filter((box) => box.checked).length;
    all.checked = ticked > 0 && ticked === boxes().length;
    all.indeterminate = ticked > 0 && !all.checked;
  }
  bar.hidden = selected.size === 0;
  $("#selected-count").textContent = message("selected", { n: selected.size.toLocaleString() });
}

document.addEventListener("click", async ({ target, shiftKey }) => {
  if (target.matches(".workers td.tick input")) {
    const all = boxes();
    const from = shiftKey && lastTicked ? all.findIndex((box) => box.value === lastTicked) : -1;
    const to = all.indexOf(target);
    const range = from < 0 ? [target] : all.slice(Math.min(from, to), Math.max(from, to) + 1);
    lastTicked = target.value;
    select(range.map((box) => box.value), target.checked);
  } else if (target.id === "tick-all") {
    const on = target.checked;
    const query = new URLSearchParams(new FormData($("#filter")));
    const answer = await fetch(`/fragments/names?${query}`).catch(() => null);
    if (answer?.ok) select(await answer.json(), on);
    else showSelection();
  } else if (target.id === "clear-selection") {
    select([...selected], false);
  } else if (target.closest("[data-page]")) {
    $("#page").value = target.closest("[data-page]").dataset.page;
    htmx.trigger("#filter", "submit");
  }
});

// A new filter starts at its first page.
$("#filter")?.addEventListener("input", () => { $("#page").value = "1"; }, true);
$("#filter")?.addEventListener("reset", () => { $("#page").value = "1"; });

// After the page has fetched something
function localTimes() {
  for (const time of document.querySelectorAll("time")) {
    const text = new Date(time.dateTime).toLocaleString(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });
    if (time.textContent !== text) time.textContent = text;
  }
}

function groupOptions() {
  const choice = $("#filter-group");
  const names = $("#group-names");
  if (!choice || !names) return;
  const known = [...choice.options].slice(2).map((option) => option.value);
  const wanted = JSON.parse(names.dataset.names);
  if (known.join(" ") === wanted.join(" ")) return;
  const value = choice.value;
  [...choice.options].slice(2).forEach((option) => option.remove());
  choice.append(...wanted.map((name) => new Option(name, name, false, name === value)));
}

// The choices come first, so that Enter chooses one instead of cancelling.
function focusChoice() {
  if (document.activeElement === $("#move-body")) $("#move-body button:enabled")?.focus();
}

// The browser tab shows the state of a group too.
const pageTitle = document.title;
function titleState() {
  const state = $("#title-state")?.dataset.state;
  if (state) document.title = `${state} · ${pageTitle}`;
}

// Selected runs stay selected when the list is refreshed.
const pickedRuns = new Set();
document.addEventListener("change", ({ target }) => {
  if (target.matches(".runs td.tick input")) target.checked ? pickedRuns.add(target.value) : pickedRuns.delete(target.value);
});
function showPickedRuns() {
  for (const box of document.querySelectorAll(".runs td.tick input")) box.checked = pickedRuns.has(box.value);
}

function afterSwap() {
  titleState();
  showPickedRuns();
  focusChoice();
  localTimes();
  groupOptions();
  showSelection();
}
document.body.addEventListener("htmx:afterSwap", afterSwap);
afterSwap();

// A group's settings: unsaved changes, and changes saved by others.
const settings = $("#settings-form");
const content = () => new URLSearchParams(new FormData(settings)).toString();
let kept = settings && content();
let startAsSaved = false;

function unsaved() {
  return Boolean(settings) && content() !== kept;
}

// A start uses the saved settings: ask first if there are unsaved changes.
function askAboutUnsaved(event) {
  event.preventDefault();
  const { elt } = event.detail;
  const dialog = $("#unsaved-start");
  const choose = (id, act) => {
    const button = $(`#${id}`);
    button.textContent = button.dataset[elt.dataset.starts];
    button.onclick = () => { dialog.close(); act(); };
  };
  const go = () => {
    startAsSaved = true;
    document.getElementById(elt.id)?.click();
  };
  choose("start-as-saved", go);
  choose("save-and-start", () => {
    settings.addEventListener("done", go, { once: true });
    settings.requestSubmit();
  });
  dialog.showModal();
}

if (settings) {
  addEventListener("beforeunload", (event) => {
    if (unsaved() && !leaving) event.preventDefault();
  });
  let saved = $("#saved").dataset.settings;
  let members = $("#saved").dataset.members;
  let ours = false;
  const compare = () => {
    const changed = unsaved();
    for (const id of ["unsaved", "settings-undo"]) if ($(`#${id}`)) $(`#${id}`).hidden = !changed;
  };
  settings.addEventListener("input", compare);
  settings.addEventListener("reset", () => setTimeout(compare));
  settings.addEventListener("done", () => {
    kept = content();
    ours = true;
    for (const field of settings.elements) { // so that "undo" returns to the saved values
      if (field.tagName === "SELECT") for (const option of field.options) option.defaultSelected = option.selected;
      else if (field.name) field.defaultValue = field.value;
    }
    compare();
  });
  document.body.addEventListener("htmx:afterSwap", ({ detail }) => {
    if (detail.target.id !== "group") return;
    const now = $("#saved").dataset;
    if (now.settings !== saved) {
      if (!ours) $("#elsewhere").hidden = false;
      saved = now.settings;
      ours = false;
    }
    if (now.members !== members) {
      members = now.members;
      htmx.trigger(document.body, "members");
    }
  });
}

// Pages start inert: before the scripts run, clicks would be lost, and a form would submit itself with a password in
// its address. htmx, whose listener runs first, is ready now.
document.addEventListener("DOMContentLoaded", () => {
  for (const part of document.querySelectorAll("[inert]")) part.inert = false;
  $("[autofocus]")?.focus();
});
